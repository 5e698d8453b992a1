// The updates of all params of a worker at once. PROGRAMS has one case for each program, which updates an element: it is
// generated from the updaters' formulas (update.py) and rounds after each operation, so that no two are contracted.
#ifndef PROGRAMS
#define PROGRAMS
#endif

#define CHUNK 2048  // elements of a block

__device__ inline float larger(float a, float b) { return a >= b || a != a ? a : b; }  // NaN stays NaN
__device__ inline float smaller(float a, float b) { return a <= b || a != a ? a : b; }

// Columns of a param's row in ``params``. Behind them come the addresses of state, and then constants, as doubles.
enum { PROGRAM, ROWS, WIDTH, SIZE, VALUE, GRADIENT, STATE };

// ``chunks`` has for each block the param that it updates, and the first element of the gradient. Nothing is changed
// where ``finite`` is 0.
KERNEL update(const Index* params, const Index* chunks, const float* shrink, const Index* finite, Index columns) {
    if (finite && !*finite) return;
    const Index param = chunks[2 * blockIdx.x], start = chunks[2 * blockIdx.x + 1];
    const Index* row = params + param * columns;
    const Index* rows = (const Index*)row[ROWS];
    const Index stop = min(start + CHUNK, row[SIZE]), width = row[WIDTH];
    const float* gradient = (const float*)row[GRADIENT];
    for (Index i = start + threadIdx.x; i < stop; i += blockDim.x) {
        const Index at = rows ? rows[i / width] * width + i % width : i;
        const float g = shrink ? __fmul_rn(gradient[i], shrink[param]) : gradient[i];
        switch (row[PROGRAM]) { PROGRAMS }
    }
}

// Euclidean norms of the gradients of all params at once, and the factor that scales each down to the norm ``most``.

#define CHUNK 2048            // as in update.cu
enum { SIZE = 3, GRADIENT = 5 };  // likewise

// The sum of the squares of each chunk.
KERNEL squares(const Index* params, const Index* chunks, double* sums, Index columns) {
    const Index* row = params + chunks[2 * blockIdx.x] * columns;
    const Index start = chunks[2 * blockIdx.x + 1], stop = min(start + CHUNK, row[SIZE]);
    const float* gradient = (const float*)row[GRADIENT];
    double sum = 0;
    for (Index i = start + threadIdx.x; i < stop; i += blockDim.x) sum += (double)gradient[i] * gradient[i];
    sum = block_sum(sum);
    if (threadIdx.x == 0) sums[blockIdx.x] = sum;
}

// A block for each param, whose chunks are ``first[param]`` to ``first[param + 1]`` - 1. The factor is 1 if the norm is
// not finite.
KERNEL shrinkages(const double* sums, const Index* first, float* shrink, double most) {
    const Index param = blockIdx.x;
    double sum = 0;
    for (Index i = first[param] + threadIdx.x; i < first[param + 1]; i += blockDim.x) sum += sums[i];
    const double norm = sqrt(block_sum(sum));
    if (threadIdx.x == 0) shrink[param] = most < norm && norm <= 1.7976931348623157e308 ? (float)(most / norm) : 1;
}

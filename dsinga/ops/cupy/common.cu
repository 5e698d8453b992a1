// Included before every file of kernels. REAL is float or double, set when a file is compiled.
//
// Arguments that are numbers are long long and double. Images are channels-last: a row is a pixel, C numbers long.

typedef long long Index;

#define KERNEL extern "C" __global__ void

// Loop over 0 ... n - 1 with all threads of the grid.
#define FOR_EACH(i, n) \
    for (Index i = blockIdx.x * (Index)blockDim.x + threadIdx.x; i < (n); i += (Index)gridDim.x * blockDim.x)

// Loop over the columns of one row with the threads of one block.
#define FOR_COLUMN(j, n) for (Index j = threadIdx.x; j < (n); j += blockDim.x)

__device__ inline REAL logistic(REAL x) { return 1 / (1 + exp(-x)); }  // exp may be infinite: the inverse is 0

// Sum over the threads of a block, the same for all, always in the same order. Whole warps, at most 32 of them.
template <typename T> __device__ T block_sum(T value) {
    __shared__ T partial[32];
    for (int offset = 16; offset; offset /= 2) value += __shfl_xor_sync(0xffffffffu, value, offset);
    __syncthreads();  // the partial sums of the call before have been read
    if (threadIdx.x % 32 == 0) partial[threadIdx.x / 32] = value;
    __syncthreads();
    value = 0;
    for (int warp = 0; warp < (int)blockDim.x / 32; ++warp) value += partial[warp];
    return value;
}

// Largest over the threads of a block, the same for all.
__device__ inline REAL block_max(REAL value) {
    __shared__ REAL partial[32];
    for (int offset = 16; offset; offset /= 2) value = max(value, __shfl_xor_sync(0xffffffffu, value, offset));
    __syncthreads();
    if (threadIdx.x % 32 == 0) partial[threadIdx.x / 32] = value;
    __syncthreads();
    value = partial[0];
    for (int warp = 1; warp < (int)blockDim.x / 32; ++warp) value = max(value, partial[warp]);
    return value;
}

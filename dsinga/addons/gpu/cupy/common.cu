// Included before every file of kernels. REAL is float or double, set when a file is compiled; with REAL float, BFLOAT16
// may be set.
//
// Arguments that are numbers are long long and double. Images are channels-last: a row is a pixel, C numbers long.

typedef long long Index;

#define KERNEL extern "C" __global__ void

// Loop over 0 ... n - 1 with all threads of the grid.
#define FOR_EACH(i, n) \
    for (Index i = blockIdx.x * (Index)blockDim.x + threadIdx.x; i < (n); i += (Index)gridDim.x * blockDim.x)

// Loop over the columns of one row with the threads of one block.
#define FOR_COLUMN(j, n) for (Index j = threadIdx.x; j < (n); j += blockDim.x)

// float as bfloat16, to the nearest, ties to even; NaN stays NaN.
__device__ inline unsigned short round_to_bfloat16(float x) {
    const unsigned bits = __float_as_uint(x);
    const bool nan = (bits & 0x7fffffffu) > 0x7f800000u;
    return nan ? 0x7fff : (unsigned short)((bits + 0x7fffu + (bits >> 16 & 1)) >> 16);
}

__device__ inline float from_bfloat16_bits(unsigned short bits) { return __uint_as_float((unsigned)bits << 16); }

// How features and their gradients are in memory: as REAL, or as bfloat16, of which each number is read as float, and
// rounded when it is written.
#ifdef BFLOAT16
struct STORED {
    unsigned short bits;
    __device__ operator float() const { return from_bfloat16_bits(bits); }
    __device__ STORED& operator=(float x) {
        bits = round_to_bfloat16(x);
        return *this;
    }
};
#else
typedef REAL STORED;
#endif

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

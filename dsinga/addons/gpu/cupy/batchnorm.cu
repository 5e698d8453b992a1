// Batch normalisation of whole batches in two launches each way: sums, which the last block of each column turns into the
// constants of the channels, and the function of each number. For features in bfloat16.

struct Two {
    double first, second;
};

// Sums over rows of both values(place), in float64: each block 32 columns of a stretch of rows, a row of each matrix of
// `partial` (2, blocks, c). Blocks have 8 groups of 32 threads. Several rows may be joined to one (channels.cu).
template <typename Values>
__device__ void sum_columns_twice(Values values, double* partial, Index rows, Index stretch, Index c) {
    __shared__ double sums[2][8][33];
    const int lane = threadIdx.x % 32, group = threadIdx.x / 32;
    const Index column = blockIdx.x * (Index)32 + lane, first = blockIdx.y * stretch;
    const Index last = min(first + stretch, rows);
    double sum = 0, other_sum = 0;
    if (column < c)
        for (Index row = first + group; row < last; row += 8) {
            const Two value = values(row * c + column);
            sum += value.first;
            other_sum += value.second;
        }
    sums[0][group][lane] = sum;
    sums[1][group][lane] = other_sum;
    __syncthreads();
    if (group > 1 || column >= c) return;
    sum = 0;
    for (int other = 0; other < 8; ++other) sum += sums[group][other][lane];
    partial[(group * gridDim.y + blockIdx.y) * c + column] = sum;
}

// Whether this block is the last of its columns, so that the partial sums of all of them can be read. `counters` has a
// number for each 32 columns, 0 before and after a launch.
__device__ inline bool is_last_block(int* counters) {
    __shared__ int is_last;
    __threadfence();  // the partial sums are seen by other blocks before the counter is
    __syncthreads();
    if (!threadIdx.x) {
        is_last = atomicAdd(&counters[blockIdx.x], 1) == (int)gridDim.y - 1;
        if (is_last) counters[blockIdx.x] = 0;
    }
    __syncthreads();
    return is_last;
}

// The totals of a channel over all blocks, in a fixed order. One thread of the last block gets those of each of its
// channels; the others get the channel -1.
__device__ inline Two totals_of_channel(const volatile double* partial, Index channels, Index c, Index& channel) {
    __shared__ double sums[2][8][33];
    const int lane = threadIdx.x % 32, group = threadIdx.x / 32;
    const Index start = blockIdx.x * (Index)32, width = min(c - start, (Index)32);
    for (int k = 0; k < 2; ++k) {
        double sum = 0;
        if (lane < width)
            for (Index block = group; block < gridDim.y; block += 8) sum += partial[(k * gridDim.y + block) * c + start + lane];
        sums[k][group][lane] = sum;
    }
    __syncthreads();
    Two total = {0, 0};
    channel = group || lane >= width || start + lane >= channels ? -1 : start + lane;
    if (channel >= 0)
        for (Index column = lane; column < width; column += channels)
            for (int other = 0; other < 8; ++other) {
                total.first += sums[0][other][column];
                total.second += sums[1][other][column];
            }
    return total;
}

// Moments of x, which are summed about the first number of each channel, so that a mean far from 0 does not hide the
// variance; factor and shift of batch normalisation; the moving averages.
KERNEL batch_norm_moments(
    const STORED* x, const REAL* scale, const REAL* bias, const REAL* running_mean, const REAL* running_variance,
    double* partial, int* counters, double* mean, double* variance, REAL* factor, REAL* shift, REAL* moved_mean,
    REAL* moved_variance, const double* share_of_step, double share, double inverse_count, double unbias,
    double epsilon, Index channels, Index rows, Index stretch, Index c
) {
    const double origin = x[(blockIdx.x * (Index)32 + threadIdx.x % 32) % channels];
    const auto from_origin = [=](Index i) {
        const double distance = x[i] - origin;
        return Two{distance, distance * distance};
    };
    sum_columns_twice(from_origin, partial, rows, stretch, c);
    if (!is_last_block(counters)) return;
    Index i;
    const Two total = totals_of_channel(partial, channels, c, i);
    if (i < 0) return;
    if (share_of_step) share = *share_of_step;
    const double offset = total.first * inverse_count, middle = origin + offset;
    double spread = total.second * inverse_count - offset * offset;
    spread = spread < 0 ? 0 : spread;  // NaN stays NaN
    mean[i] = middle;
    variance[i] = spread;
    const double own = scale[i] / sqrt(spread + epsilon);
    factor[i] = own;
    shift[i] = bias[i] - middle * own;
    moved_mean[i] = (1 - share) * running_mean[i] + share * middle;
    moved_variance[i] = (1 - share) * running_variance[i] + share * (spread * unbias);
}

// The gradient of y, dy, or if y is given, of the same before its rectifier.
__device__ inline float before_rectifier(const STORED* y, const STORED* dy, Index i) {
    return !y || (float)y[i] > 0 ? (float)dy[i] : 0.0f;
}

// The gradients of scale and bias, and the constants of rectified_batch_norm_grad.
KERNEL batch_norm_gradients(
    const STORED* x, const STORED* y, const STORED* dy, const REAL* scale, const double* mean, const double* variance,
    double* partial, int* counters, REAL* dscale, REAL* dbias, REAL* factor, REAL* slope, REAL* shift, double size,
    double epsilon, Index channels, Index rows, Index stretch, Index c
) {
    const Index own = (blockIdx.x * (Index)32 + threadIdx.x % 32) % channels;
    const double middle = mean[own], inverse = 1 / sqrt(variance[own] + epsilon);
    const auto gradients = [=](Index i) {
        const double gradient = before_rectifier(y, dy, i);
        return Two{gradient, gradient * (x[i] - middle) * inverse};
    };
    sum_columns_twice(gradients, partial, rows, stretch, c);
    if (!is_last_block(counters)) return;
    Index i;
    const Two total = totals_of_channel(partial, channels, c, i);
    if (i < 0) return;
    const double along = -inverse * total.second / size;
    dbias[i] = total.first;
    dscale[i] = total.second;
    factor[i] = scale[i] * inverse;
    slope[i] = along;
    shift[i] = -total.first / size - along * middle;
}

// Rows of c numbers: the gradient of x, and that of what was added before the rectifier, of those that are asked for.
KERNEL rectified_batch_norm_grad(
    const STORED* x, const STORED* y, const STORED* dy, const REAL* factor, const REAL* slope, const REAL* shift,
    STORED* dx, STORED* dother, Index c, Index n
) {
    FOR_EACH(i, n) {
        const Index own = i % c;
        const float gradient = before_rectifier(y, dy, i);
        if (dother) dother[i] = gradient;
        if (dx) dx[i] = factor[own] * (gradient + slope[own] * x[i] + shift[own]);
    }
}

// Across the channels of a pixel, and along each of them. Rows are pixels, c numbers long.

// Sums over rows of value(place, column), in float64: each block 32 columns of a stretch of rows, a row of `partial`
// each. Blocks have 8 groups of 32 threads.
template <typename Value> __device__ void sum_columns(Value value, double* partial, Index rows, Index stretch, Index c) {
    __shared__ double sums[8][33];
    const int lane = threadIdx.x % 32, group = threadIdx.x / 32;
    const Index column = blockIdx.x * (Index)32 + lane, first = blockIdx.y * stretch;
    const Index last = min(first + stretch, rows);
    double sum = 0;
    if (column < c)
        for (Index row = first + group; row < last; row += 8) sum += value(row * c + column, column);
    __syncthreads();  // the sums of the previous call have been read
    sums[group][lane] = sum;
    __syncthreads();
    if (group == 0 && column < c) {
        for (int other = 1; other < 8; ++other) sum += sums[other][lane];
        partial[blockIdx.y * c + column] = sum;
    }
}

// Several rows may be joined to one; its columns are then of the channels 0, 1, ..., 0, 1, ...

KERNEL sums_of(const STORED* x, double* partial, Index rows, Index stretch, Index c) {
    sum_columns([=](Index i, Index) { return (double)x[i]; }, partial, rows, stretch, c);
}

KERNEL sums_of_products(const STORED* x, const STORED* y, double* partial, Index rows, Index stretch, Index c) {
    sum_columns([=](Index i, Index) { return (double)x[i] * y[i]; }, partial, rows, stretch, c);
}

KERNEL sums_of_squares(
    const STORED* x, const double* mean, Index channels, double* partial, Index rows, Index stretch, Index c
) {
    sum_columns(
        [=](Index i, Index column) {
            const double from_mean = x[i] - mean[column % channels];
            return from_mean * from_mean;
        },
        partial, rows, stretch, c);
}

// Of dy, and of dy·(x - mean)/√(variance + epsilon).
KERNEL sums_of_gradients(
    const STORED* x, const STORED* dy, const double* mean, const double* variance, double epsilon, Index channels,
    double* partial, double* partial_along, Index rows, Index stretch, Index c
) {
    sum_columns([=](Index i, Index) { return (double)dy[i]; }, partial, rows, stretch, c);
    const Index own = (blockIdx.x * (Index)32 + threadIdx.x % 32) % channels;
    const double middle = mean[own], inverse = 1 / sqrt(variance[own] + epsilon);
    sum_columns([=](Index i, Index) { return dy[i] * (x[i] - middle) * inverse; }, partial_along, rows, stretch, c);
}

// Sums of the `count` rows of each matrix of `partial` times `factor`, as float64, REAL or both; one block a column.
KERNEL add_partial(const double* partial, double* total, REAL* rounded, double factor, Index count, Index c) {
    const double* column = partial + blockIdx.x / c * count * c + blockIdx.x % c;
    double sum = 0;
    FOR_COLUMN(row, count) sum += column[row * c];
    sum = block_sum(sum) * factor;
    if (threadIdx.x) return;
    if (total) total[blockIdx.x] = sum;
    if (rounded) rounded[blockIdx.x] = sum;
}

// The sum of the `count` rows of a column of `partial`, in the order of add_partial, the same for all threads of a block.
__device__ inline double block_sum_of_column(const double* partial, Index column, Index count, Index c) {
    double sum = 0;
    FOR_COLUMN(row, count) sum += partial[row * c + column];
    return block_sum(sum);
}

// One block a channel: from the partial sums of squares about the mean, the variance, factor and shift of batch
// normalisation, and the moving averages. What each formula rounds is as in the kernels below, which compute one each.
KERNEL batch_norm_training(
    const double* partial, const double* mean, double* variance, const REAL* scale, const REAL* bias,
    const REAL* running_mean, const REAL* running_variance, REAL* factor, REAL* shift, REAL* moved_mean,
    REAL* moved_variance, const double* share_of_step, double share, double inverse_count, double unbias,
    double epsilon, Index count, Index c
) {
    const Index i = blockIdx.x;
    const double spread = block_sum_of_column(partial, i, count, c) * inverse_count;
    if (threadIdx.x) return;
    if (share_of_step) share = *share_of_step;
    variance[i] = spread;
    const double own = scale[i] / sqrt(spread + epsilon);
    factor[i] = own;
    shift[i] = bias[i] - mean[i] * own;
    moved_mean[i] = (1 - share) * running_mean[i] + share * (mean[i] * 1.0);
    moved_variance[i] = (1 - share) * running_variance[i] + share * (spread * unbias);
}

// One block a channel: the gradients of scale and bias, and the constants of batch_norm_grad, from the partial sums of
// dy and of dy·(x - mean)/√(variance + epsilon).
KERNEL batch_norm_training_grad(
    const double* partial, const double* partial_along, const REAL* scale, const double* mean, const double* variance,
    REAL* dscale, REAL* dbias, REAL* factor, REAL* slope, REAL* shift, double size, double epsilon, Index count, Index c
) {
    const Index i = blockIdx.x;
    const double sum = block_sum_of_column(partial, i, count, c), along = block_sum_of_column(partial_along, i, count, c);
    if (threadIdx.x) return;
    dbias[i] = sum;
    dscale[i] = along;
    const double inverse = 1 / sqrt(variance[i] + epsilon), own = -inverse * along / size;
    factor[i] = scale[i] * inverse;
    slope[i] = own;
    shift[i] = -sum / size - own * mean[i];
}

// Across channels: norm = k + scale·Σ x² over c ± half, y = x·norm^-beta.
KERNEL lrn(const STORED* x, STORED* y, REAL* norm, Index half, double scale, double beta, double k, Index c, Index n) {
    FOR_EACH(i, n) {
        const Index channel = i % c, start = i - channel;
        REAL sum = 0;
        for (Index j = max(channel - half, (Index)0); j <= min(channel + half, c - 1); ++j)
            sum += x[start + j] * x[start + j];
        const REAL value = (REAL)k + (REAL)scale * sum;
        if (norm) norm[i] = value;
        y[i] = x[i] * pow(value, -(REAL)beta);
    }
}

// The share of each channel in the gradients of its neighbours, dy·x·norm^(-beta - 1), and in its own, dy·norm^-beta.
KERNEL lrn_shares(const STORED* x, const REAL* norm, const STORED* dy, REAL* share, STORED* dx, double beta, Index n) {
    FOR_EACH(i, n) {
        const REAL own = dy[i] * pow(norm[i], -(REAL)beta);
        dx[i] = own;
        share[i] = own * x[i] / norm[i];
    }
}

KERNEL lrn_grad(const STORED* x, const REAL* share, STORED* dx, Index half, double factor, Index c, Index n) {
    FOR_EACH(i, n) {
        const Index channel = i % c, start = i - channel;
        REAL sum = 0;
        for (Index j = max(channel - half, (Index)0); j <= min(channel + half, c - 1); ++j) sum += share[start + j];
        dx[i] = dx[i] - (REAL)factor * x[i] * sum;
    }
}

// For n channels: factor and shift of batch normalisation, and the constants of its gradient.
KERNEL batch_norm_affine(
    const REAL* scale, const REAL* bias, const double* mean, const double* variance, REAL* factor, REAL* shift,
    double epsilon, Index n
) {
    FOR_EACH(i, n) {
        const double own = scale[i] / sqrt(variance[i] + epsilon);
        factor[i] = own;
        shift[i] = bias[i] - mean[i] * own;
    }
}

KERNEL batch_norm_slopes(
    const REAL* scale, const double* mean, const double* variance, const double* sum, const double* along, REAL* factor,
    REAL* slope, REAL* shift, double size, double epsilon, Index n
) {
    FOR_EACH(i, n) {
        const double inverse = 1 / sqrt(variance[i] + epsilon), own = -inverse * along[i] / size;
        factor[i] = scale[i] * inverse;
        slope[i] = own;
        shift[i] = -sum[i] / size - own * mean[i];
    }
}

// The share is that of the step's block if there is one, else the number.
KERNEL moving_average(
    const REAL* running, const double* now, REAL* moved, const double* share_of_step, double share, double factor, Index n
) {
    if (share_of_step) share = *share_of_step;
    FOR_EACH(i, n) moved[i] = (1 - share) * running[i] + share * (now[i] * factor);
}

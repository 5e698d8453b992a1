// Linear-chain conditional random fields: one block for each sequence of x (B, T, K), one step after the other.
//
// Each thread computes the tags j, j + threads, ...; `shared` holds two numbers for each tag.

extern __shared__ double memory[];

__device__ inline Index length_of(const long long* tags, Index steps) {
    Index length = 0;
    for (Index t = 0; t < steps; ++t) length += tags[t] >= 0;
    return length;
}

// log Σ exp(before[i] + weights[i·step]) over i, without overflow.
__device__ inline REAL log_sum(const REAL* before, const REAL* weights, Index step, Index k) {
    REAL most = before[0] + (weights ? weights[0] : (REAL)0), sum = 0;
    for (Index i = 1; i < k; ++i) most = max(most, before[i] + (weights ? weights[i * step] : (REAL)0));
    for (Index i = 0; i < k; ++i) sum += exp(before[i] + (weights ? weights[i * step] : (REAL)0) - most);
    return log(sum) + most;
}

// The forward algorithm: forward[t, j] is the log of the sum over all tags before t. loss = log Z - score of the tags.
KERNEL crf(
    const REAL* x, const long long* tags, const REAL* transitions, const REAL* start, REAL* forward, REAL* log_z,
    REAL* loss, Index steps, Index k
) {
    REAL* before = (REAL*)memory;
    x += blockIdx.x * steps * k;
    forward += blockIdx.x * steps * k;
    tags += blockIdx.x * steps;
    const Index length = length_of(tags, steps);
    for (Index t = 0; t < length; ++t) {
        FOR_COLUMN(j, k)
            forward[t * k + j] = x[t * k + j] + (t ? log_sum(before, transitions + j, k, k) : start[j]);
        __syncthreads();  // all threads have read the previous step
        FOR_COLUMN(j, k) before[j] = forward[t * k + j];
        __syncthreads();
    }
    if (threadIdx.x) return;
    REAL score = start[tags[0]] + x[tags[0]];
    for (Index t = 1; t < length; ++t) score += x[t * k + tags[t]] + transitions[tags[t - 1] * k + tags[t]];
    log_z[blockIdx.x] = log_sum(before, 0, 0, k);
    loss[blockIdx.x] = log_z[blockIdx.x] - score;
}

// dx[t] = P(tag at t | x) minus 1 at the tag; counts (B, K, K) are the expected transitions minus those of the tags.
KERNEL crf_grad(
    const REAL* x, const long long* tags, const REAL* transitions, const REAL* forward, const REAL* log_z, REAL* dx,
    REAL* counts, Index steps, Index k
) {
    REAL *p = (REAL*)memory, *rest = p + k;  // P(tag at t), and forward minus x
    x += blockIdx.x * steps * k;
    forward += blockIdx.x * steps * k;
    dx += blockIdx.x * steps * k;
    tags += blockIdx.x * steps;
    counts += blockIdx.x * k * k;
    const Index length = length_of(tags, steps);
    FOR_COLUMN(i, k * k) counts[i] = 0;
    for (Index i = length * k + threadIdx.x; i < steps * k; i += blockDim.x) dx[i] = 0;
    FOR_COLUMN(j, k) p[j] = exp(forward[(length - 1) * k + j] - log_z[blockIdx.x]);
    for (Index t = length - 1; t >= 0; --t) {
        FOR_COLUMN(j, k) {
            dx[t * k + j] = p[j] - (tags[t] == j ? (REAL)1 : (REAL)0);
            rest[j] = forward[t * k + j] - x[t * k + j];
        }
        __syncthreads();
        if (t == 0) break;
        const REAL* before = forward + (t - 1) * k;
        FOR_COLUMN(i, k) {
            REAL sum = 0;
            for (Index j = 0; j < k; ++j) {
                const REAL pair = exp(before[i] + transitions[i * k + j] - rest[j]) * p[j];
                counts[i * k + j] += pair - (tags[t - 1] == i && tags[t] == j ? (REAL)1 : (REAL)0);
                sum += pair;
            }
            dx[(t - 1) * k + i] = sum;  // stored here until all threads have read p
        }
        __syncthreads();
        FOR_COLUMN(i, k) p[i] = dx[(t - 1) * k + i];
        __syncthreads();
    }
}

// Viterbi's algorithm: best_before[t, j] is the best tag before j at t; ties go to the lower tag.
KERNEL crf_decode(
    const REAL* x, const long long* lengths, const REAL* transitions, const REAL* start, int* best_before, long long* tags,
    Index steps, Index k
) {
    REAL *best = (REAL*)memory, *next = best + k;
    x += blockIdx.x * steps * k;
    best_before += blockIdx.x * steps * k;
    tags += blockIdx.x * steps;
    const Index length = min((Index)lengths[blockIdx.x], steps);
    for (Index t = length + threadIdx.x; t < steps; t += blockDim.x) tags[t] = -1;
    if (length <= 0) return;
    FOR_COLUMN(j, k) best[j] = start[j] + x[j];
    __syncthreads();
    for (Index t = 1; t < length; ++t) {
        FOR_COLUMN(j, k) {
            Index from = 0;
            REAL most = best[0] + transitions[j];
            for (Index i = 1; i < k; ++i) {
                const REAL score = best[i] + transitions[i * k + j];
                if (score > most) most = score, from = i;
            }
            best_before[t * k + j] = (int)from;
            next[j] = most + x[t * k + j];
        }
        __syncthreads();
        FOR_COLUMN(j, k) best[j] = next[j];
        __syncthreads();
    }
    if (threadIdx.x) return;
    Index found = 0;
    for (Index j = 1; j < k; ++j) if (best[j] > best[found]) found = j;
    for (Index t = length - 1; t >= 0; --t) {
        tags[t] = found;
        if (t) found = best_before[t * k + found];
    }
}

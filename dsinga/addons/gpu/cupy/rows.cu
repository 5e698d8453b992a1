// Kernels on the rows of a matrix: one block a row, n numbers long.

KERNEL softmax(const REAL* x, REAL* y, Index n) {
    x += blockIdx.x * n;
    y += blockIdx.x * n;
    REAL most = x[0], sum = 0;
    FOR_COLUMN(j, n) most = max(most, x[j]);
    most = block_max(most);
    FOR_COLUMN(j, n) sum += exp(x[j] - most);
    sum = block_sum(sum);
    FOR_COLUMN(j, n) y[j] = exp(x[j] - most) / sum;
}

// Softmax over the first columns of a row, as many as `visible` says for a batch and a query; 0 for the others. The rows
// are (batch, heads, queries).
KERNEL visible_softmax(
    const REAL* x, const long long* visible, REAL* y, Index heads, Index queries, Index n
) {
    x += blockIdx.x * n;
    y += blockIdx.x * n;
    const Index row = blockIdx.x / (heads * queries) * queries + blockIdx.x % queries;
    const Index count = min(visible[row], n);
    REAL most = x[0], sum = 0;
    FOR_COLUMN(j, count) most = max(most, x[j]);
    most = block_max(most);
    FOR_COLUMN(j, count) sum += exp(x[j] - most);
    sum = block_sum(sum);
    FOR_COLUMN(j, n) y[j] = j < count ? exp(x[j] - most) / sum : (REAL)0;
}

KERNEL softmax_grad(const REAL* y, const REAL* dy, REAL* dx, Index n) {
    y += blockIdx.x * n;
    dy += blockIdx.x * n;
    dx += blockIdx.x * n;
    REAL sum = 0;
    FOR_COLUMN(j, n) sum += dy[j] * y[j];
    sum = block_sum(sum);
    FOR_COLUMN(j, n) dx[j] = y[j] * (dy[j] - sum);
}

// The loss of each row, -log max(p[label], tiny), unless it is null, and whether the label is among the topk highest; of
// equal scores the lower index is higher. NaN stays NaN in a loss, and is no hit. Both are NaN for a label that is none of
// the n classes: the labels of a recorded pass are not checked in host memory.
KERNEL label_loss(const REAL* p, const long long* labels, double* loss, double* hit, double tiny, Index topk, Index n) {
    p += blockIdx.x * n;
    const Index label = labels[blockIdx.x];
    const bool is_class = label >= 0 && label < n;
    const REAL own = is_class ? p[label] : (REAL)__uint_as_float(0x7fffffffu);
    int beaten = 0;
    FOR_COLUMN(j, n) beaten += p[j] < own || (p[j] == own && j > label);
    beaten = block_sum(beaten);
    if (threadIdx.x == 0) {
        if (loss) loss[blockIdx.x] = -log(own < (REAL)tiny ? tiny : (double)own);
        hit[blockIdx.x] = is_class ? (double)(beaten >= n - topk) : (double)own;
    }
}

// (p - at_label at the label - elsewhere at all)·factor.
KERNEL label_loss_grad(
    const REAL* p, const long long* labels, REAL* dx, double factor, double at_label, double elsewhere, Index n,
    Index total
) {
    FOR_EACH(i, total)
        dx[i] = (REAL)factor * (p[i] - (labels[i / n] == i % n ? (REAL)at_label : (REAL)0) - (REAL)elsewhere);
}

// y = scale·(x - mean)/√(var + epsilon) + shift; also stores the normalised rows and 1/√..., unless these are null.
KERNEL layer_norm(
    const REAL* x, const REAL* scale, const REAL* shift, REAL* y, REAL* normal, REAL* inverse, double epsilon, Index n
) {
    x += blockIdx.x * n;
    y += blockIdx.x * n;
    REAL sum = 0, squares = 0;
    FOR_COLUMN(j, n) sum += x[j];
    const REAL mean = block_sum(sum) / n;
    FOR_COLUMN(j, n) squares += (x[j] - mean) * (x[j] - mean);
    const REAL factor = 1 / sqrt(block_sum(squares) / n + (REAL)epsilon);
    FOR_COLUMN(j, n) {
        const REAL value = (x[j] - mean) * factor;
        if (normal) normal[blockIdx.x * n + j] = value;
        y[j] = value * scale[j] + shift[j];
    }
    if (inverse && threadIdx.x == 0) inverse[blockIdx.x] = factor;
}

KERNEL layer_norm_grad(
    const REAL* normal, const REAL* inverse, const REAL* dy, const REAL* scale, REAL* dx, Index n
) {
    normal += blockIdx.x * n;
    dy += blockIdx.x * n;
    dx += blockIdx.x * n;
    REAL sum = 0, along = 0;
    FOR_COLUMN(j, n) {
        sum += dy[j] * scale[j];
        along += dy[j] * scale[j] * normal[j];
    }
    sum = block_sum(sum) / n;
    along = block_sum(along) / n;
    const REAL factor = inverse[blockIdx.x];
    FOR_COLUMN(j, n) dx[j] = (dy[j] * scale[j] - sum - normal[j] * along) * factor;
}

// y = scale·x/√(mean of x² + epsilon); also stores 1/√..., unless it is null.
KERNEL rms_norm(const REAL* x, const REAL* scale, REAL* y, REAL* inverse, double epsilon, Index n) {
    x += blockIdx.x * n;
    y += blockIdx.x * n;
    REAL squares = 0;
    FOR_COLUMN(j, n) squares += x[j] * x[j];
    const REAL factor = 1 / sqrt(block_sum(squares) / n + (REAL)epsilon);
    FOR_COLUMN(j, n) y[j] = x[j] * factor * scale[j];
    if (inverse && threadIdx.x == 0) inverse[blockIdx.x] = factor;
}

// Also stores the normalised rows, x/√....
KERNEL rms_norm_grad(
    const REAL* x, const REAL* inverse, const REAL* dy, const REAL* scale, REAL* dx, REAL* normal, Index n
) {
    x += blockIdx.x * n;
    dy += blockIdx.x * n;
    dx += blockIdx.x * n;
    normal += blockIdx.x * n;
    const REAL factor = inverse[blockIdx.x];
    REAL along = 0;
    FOR_COLUMN(j, n) along += dy[j] * scale[j] * x[j];
    along = block_sum(along) * factor / n;
    FOR_COLUMN(j, n) {
        normal[j] = x[j] * factor;
        dx[j] = (dy[j] * scale[j] - normal[j] * along) * factor;
    }
}

// Functions of n numbers, whatever their layout, and of the rows of a matrix with a vector.

KERNEL relu(const STORED* x, STORED* y, double slope, Index n) {
    FOR_EACH(i, n) y[i] = x[i] < 0 ? (REAL)slope * x[i] : x[i];  // NaN stays NaN
}

KERNEL relu_grad(const STORED* y, const STORED* dy, STORED* dx, double slope, Index n) {
    FOR_EACH(i, n) dx[i] = y[i] > 0 ? dy[i] : (REAL)slope * dy[i];
}

KERNEL sigmoid(const STORED* x, STORED* y, Index n) {
    FOR_EACH(i, n) y[i] = logistic(x[i]);
}

KERNEL sigmoid_grad(const STORED* y, const STORED* dy, STORED* dx, Index n) {
    FOR_EACH(i, n) dx[i] = dy[i] * y[i] * (1 - y[i]);
}

KERNEL tanh_of(const STORED* x, STORED* y, double outer, double inner, Index n) {
    FOR_EACH(i, n) y[i] = (REAL)outer * tanh((REAL)inner * x[i]);
}

KERNEL tanh_grad(const STORED* y, const STORED* dy, STORED* dx, double outer, double inner, Index n) {
    const REAL a = -inner / outer, b = inner * outer;
    FOR_EACH(i, n) dx[i] = dy[i] * (a * y[i] * y[i] + b);
}

__device__ inline REAL normal_distribution(REAL x) { return (REAL)0.5 * (1 + erf(x * (REAL)0.7071067811865476)); }

KERNEL gelu(const STORED* x, STORED* y, Index n) {
    FOR_EACH(i, n) y[i] = x[i] * normal_distribution(x[i]);
}

KERNEL gelu_grad(const STORED* x, const STORED* dy, STORED* dx, Index n) {
    FOR_EACH(i, n) {
        const REAL density = (REAL)0.3989422804014327 * exp((REAL)-0.5 * x[i] * x[i]);
        dx[i] = dy[i] * (normal_distribution(x[i]) + x[i] * density);
    }
}

KERNEL silu(const STORED* x, STORED* y, Index n) {
    FOR_EACH(i, n) y[i] = x[i] / (1 + exp(-x[i]));
}

KERNEL silu_grad(const STORED* x, const STORED* dy, STORED* dx, Index n) {
    FOR_EACH(i, n) {
        const REAL sigmoid = 1 / (1 + exp(-x[i]));
        dx[i] = dy[i] * sigmoid * (1 + x[i] * (1 - sigmoid));
    }
}

KERNEL multiply(const STORED* x, const STORED* y, STORED* z, Index n) {
    FOR_EACH(i, n) z[i] = x[i] * y[i];
}

KERNEL add(const STORED* x, const STORED* y, STORED* z, Index n) {
    FOR_EACH(i, n) z[i] = x[i] + y[i];
}

// Rows of c numbers: y = x·scale + shift, scale and shift being rows.
KERNEL affine(const STORED* x, const REAL* scale, const REAL* shift, STORED* y, Index c, Index n) {
    FOR_EACH(i, n) y[i] = x[i] * scale[i % c] + shift[i % c];
}

// As affine, plus z if there is one, and 0 where that is below 0; NaN stays NaN.
KERNEL rectified_affine(
    const STORED* x, const STORED* z, const REAL* scale, const REAL* shift, STORED* y, Index c, Index n
) {
    FOR_EACH(i, n) {
        REAL value = x[i] * scale[i % c] + shift[i % c];
        if (z) value += z[i];
        y[i] = value < 0 ? (REAL)0 : value;
    }
}

// Rows of c numbers: dx = factor·(dy + slope·x + shift), factor, slope and shift being rows.
KERNEL batch_norm_grad(
    const STORED* x, const STORED* dy, const REAL* factor, const REAL* slope, const REAL* shift, STORED* dx, Index c, Index n
) {
    FOR_EACH(i, n) dx[i] = factor[i % c] * (dy[i] + slope[i % c] * x[i] + shift[i % c]);
}

// Set every row of y, c numbers long, to b, or add b to it.
KERNEL fill_rows(const REAL* b, REAL* y, Index c, Index n) {
    FOR_EACH(i, n) y[i] = b[i % c];
}

KERNEL add_rows(const REAL* b, STORED* y, Index c, Index n) {
    FOR_EACH(i, n) y[i] = y[i] + b[i % c];
}

KERNEL to_bfloat16(const float* x, unsigned short* y, Index n) {
    FOR_EACH(i, n) y[i] = round_to_bfloat16(x[i]);
}

KERNEL from_bfloat16(const unsigned short* x, float* y, Index n) {
    FOR_EACH(i, n) y[i] = from_bfloat16_bits(x[i]);
}

// Filters (F, C, k) as bfloat16 (F, k, C), and float32 (F, k, C) as (F, C, k).
KERNEL filters_to_bfloat16(const float* w, unsigned short* rows, Index c, Index k, Index n) {
    FOR_EACH(i, n) rows[i] = round_to_bfloat16(w[(i / (k * c) * c + i % c) * k + i / c % k]);
}

KERNEL filters_from_rows(const STORED* rows, float* w, Index c, Index k, Index n) {
    FOR_EACH(i, n) w[i] = rows[(i / (k * c) * k + i % k) * c + i / k % c];
}

// The part of cuBLAS that dsinga calls, on a CPU, with the prototypes of cublas_v2.h. Matrices are column-major.
//
// As cuBLAS does, it refuses sizes that do not fit, and forgets the workspace when a stream is set. Unlike cuBLAS, it
// refuses to multiply without a workspace of the caller's.

#include <cstddef>
#include <cstdint>
#include <cstring>

enum { OK = 0, INVALID_VALUE = 7, INTERNAL_ERROR = 14 };
enum { R_32F = 0, R_64F = 1, R_16BF = 14 };
enum { COMPUTE_32F = 68, COMPUTE_64F = 70, COMPUTE_32F_FAST_TF32 = 77 };

struct Handle {
    void *stream, *workspace;
};

static double read(const void* matrix, int type, long long at) {
    if (type == R_64F) return ((const double*)matrix)[at];
    if (type == R_32F) return ((const float*)matrix)[at];
    const uint32_t bits = (uint32_t)((const uint16_t*)matrix)[at] << 16;
    float value;
    memcpy(&value, &bits, 4);
    return value;
}

// float as bfloat16, to the nearest, ties to even.
static uint16_t rounded(float x) {
    uint32_t bits;
    memcpy(&bits, &x, 4);
    if ((bits & 0x7fffffffu) > 0x7f800000u) return 0x7fff;
    return (uint16_t)((bits + 0x7fffu + (bits >> 16 & 1)) >> 16);
}

static void write(void* matrix, int type, long long at, double value) {
    if (type == R_64F)
        ((double*)matrix)[at] = value;
    else if (type == R_32F)
        ((float*)matrix)[at] = (float)value;
    else
        ((uint16_t*)matrix)[at] = rounded((float)value);
}

extern "C" int cublasCreate_v2(Handle** handle) {
    *handle = new Handle();
    return OK;
}

extern "C" int cublasDestroy_v2(Handle* handle) {
    delete handle;
    return OK;
}

extern "C" int cublasSetStream_v2(Handle* handle, void* stream) {
    *handle = {stream, nullptr};
    return OK;
}

extern "C" int cublasSetWorkspace_v2(Handle* handle, void* workspace, size_t size) {
    handle->workspace = size ? workspace : nullptr;
    return OK;
}

extern "C" int cublasGemmStridedBatchedEx(
    Handle* handle, int transa, int transb, int m, int n, int k, const void* alpha, const void* a, int atype, int lda,
    long long astride, const void* b, int btype, int ldb, long long bstride, const void* beta, void* c, int ctype,
    int ldc, long long cstride, int count, int compute, int algorithm
) {
    if (!handle->workspace) return INTERNAL_ERROR;
    if (lda < (transa ? k : m) || ldb < (transb ? n : k) || ldc < m || m < 1 || n < 1 || k < 1) return INVALID_VALUE;
    const bool wide = compute == COMPUTE_64F;
    if (wide != (ctype == R_64F) || wide != (atype == R_64F) || atype != btype || algorithm != -1) return INVALID_VALUE;
    if (!wide && compute != COMPUTE_32F && compute != COMPUTE_32F_FAST_TF32) return INVALID_VALUE;
    if (ctype == R_16BF && atype != R_16BF) return INVALID_VALUE;
    const int scaletype = wide ? R_64F : R_32F;
    const double scale = read(alpha, scaletype, 0), keep = read(beta, scaletype, 0);
    for (long long number = 0; number < count; ++number)
        for (int column = 0; column < n; ++column)
            for (int row = 0; row < m; ++row) {
                double sum = 0;
                for (int i = 0; i < k; ++i) {
                    const long long left = transa ? i + (long long)row * lda : row + (long long)i * lda;
                    const long long right = transb ? column + (long long)i * ldb : i + (long long)column * ldb;
                    sum += read(a, atype, number * astride + left) * read(b, btype, number * bstride + right);
                }
                const long long at = number * cstride + row + (long long)column * ldc;
                sum = scale * sum + (keep != 0 ? keep * read(c, ctype, at) : 0);
                write(c, ctype, at, sum);
            }
    return OK;
}

extern "C" int cublasGemmEx(
    Handle* handle, int transa, int transb, int m, int n, int k, const void* alpha, const void* a, int atype, int lda,
    const void* b, int btype, int ldb, const void* beta, void* c, int ctype, int ldc, int compute, int algorithm
) {
    return cublasGemmStridedBatchedEx(
        handle, transa, transb, m, n, k, alpha, a, atype, lda, 0, b, btype, ldb, 0, beta, c, ctype, ldc, 0, 1, compute,
        algorithm
    );
}

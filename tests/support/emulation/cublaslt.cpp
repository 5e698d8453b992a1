// The part of cuBLASLt that dsinga calls, on a CPU, with the prototypes of cublasLt.h. Matrices are column-major.
//
// As cuBLASLt does, it takes matrices to be aligned to 256 bytes unless a preference says less, and lets the heuristic
// see how a bias is aligned. Unlike it, it refuses an algorithm that was chosen for another problem, memory that is
// aligned less than the heuristic was told, and a product whose inner size is 13, for which it has no algorithm.

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <initializer_list>

enum { OK = 0, INVALID_VALUE = 7, NOT_SUPPORTED = 15 };
enum { R_32F = 0, R_16BF = 14, COMPUTE_32F = 68, COMPUTE_32F_FAST_TF32 = 77 };
enum { TRANSA = 3, TRANSB = 4, EPILOGUE = 7, BIAS_POINTER = 8 };
enum { EPILOGUE_BIAS = 4, EPILOGUE_RELU_BIAS = 6 };
enum { MAX_WORKSPACE = 1, MIN_ALIGNMENT_A = 5, MIN_ALIGNMENT_D = 8 };
enum { NEEDED = 1024 };

struct Descriptor {
    int compute, scale, transa, transb, epilogue;
    const void* bias;
};
struct Layout {
    int type;
    uint64_t rows, columns;
    int64_t step;
};
struct Preference {
    uint64_t workspace;
    uint32_t alignment[4];
};
struct Result {
    uint64_t algorithm[8];
    size_t workspace;
    int state;
    float waves;
    int reserved[4];
};

extern "C" int cublasLtCreate(void** handle) {
    *handle = new int(0);
    return OK;
}

extern "C" int cublasLtMatmulDescCreate(Descriptor** made, int compute, int scale) {
    if ((compute != COMPUTE_32F && compute != COMPUTE_32F_FAST_TF32) || scale != R_32F) return INVALID_VALUE;
    *made = new Descriptor{compute, scale, 0, 0, 1, nullptr};
    return OK;
}

extern "C" int cublasLtMatmulDescSetAttribute(Descriptor* descriptor, int attribute, const void* value, size_t size) {
    if (size != (attribute == BIAS_POINTER ? 8 : 4)) return INVALID_VALUE;
    if (attribute == BIAS_POINTER) {
        memcpy(&descriptor->bias, value, 8);
        return OK;
    }
    int* place = attribute == TRANSA ? &descriptor->transa : attribute == TRANSB ? &descriptor->transb : &descriptor->epilogue;
    if (attribute != TRANSA && attribute != TRANSB && attribute != EPILOGUE) return INVALID_VALUE;
    memcpy(place, value, 4);
    return OK;
}

extern "C" int cublasLtMatrixLayoutCreate(Layout** made, int type, uint64_t rows, uint64_t columns, int64_t step) {
    if (step < (int64_t)rows || !rows || !columns) return INVALID_VALUE;
    *made = new Layout{type, rows, columns, step};
    return OK;
}

extern "C" int cublasLtMatmulPreferenceCreate(Preference** made) {
    *made = new Preference{0, {256, 256, 256, 256}};
    return OK;
}

extern "C" int cublasLtMatmulPreferenceSetAttribute(Preference* preference, int attribute, const void* value, size_t size) {
    if (attribute == MAX_WORKSPACE && size == 8)
        memcpy(&preference->workspace, value, 8);
    else if (attribute >= MIN_ALIGNMENT_A && attribute <= MIN_ALIGNMENT_D && size == 4)
        memcpy(&preference->alignment[attribute - MIN_ALIGNMENT_A], value, 4);
    else
        return INVALID_VALUE;
    return OK;
}

static uint64_t digest(const Descriptor* d, const Layout* a, const Layout* b, const Layout* c) {
    uint64_t result = d->compute * 31 + d->epilogue * 7 + d->transa * 3 + d->transb;
    for (const Layout* layout : {a, b, c})
        result = result * 1000003 + layout->rows * 10007 + layout->columns * 101 + layout->step * 11 + layout->type;
    return result;
}

static bool fits(const Descriptor* d, const Layout* a, const Layout* b, const Layout* c) {
    const uint64_t m = c->rows, n = c->columns, k = d->transa ? a->rows : a->columns;
    if ((d->transa ? a->columns : a->rows) != m || (d->transb ? b->rows : b->columns) != n) return false;
    if ((d->transb ? b->columns : b->rows) != k || a->type != b->type || c->type != R_32F) return false;
    if (a->type != (d->compute == COMPUTE_32F ? R_16BF : R_32F)) return false;
    return (d->epilogue == EPILOGUE_BIAS || d->epilogue == EPILOGUE_RELU_BIAS) && d->bias;
}

extern "C" int cublasLtMatmulAlgoGetHeuristic(
    void* handle, Descriptor* d, Layout* a, Layout* b, Layout* c, Layout* out, Preference* preference, int requested,
    Result* results, int* count
) {
    if (!handle || requested < 1 || c != out || !fits(d, a, b, c)) return INVALID_VALUE;
    *count = 0;
    if ((d->transa ? a->rows : a->columns) == 13 || preference->workspace < NEEDED) return NOT_SUPPORTED;
    uint64_t alignment = (uint64_t)d->bias & -(uint64_t)d->bias;
    for (uint32_t least : preference->alignment)
        if (least < alignment) alignment = least;
    results[0] = Result{{digest(d, a, b, c), alignment}, NEEDED, OK, 1.0f, {}};
    *count = 1;
    return OK;
}

static double read(const void* matrix, int type, int64_t at) {
    if (type == R_32F) return ((const float*)matrix)[at];
    const uint32_t bits = (uint32_t)((const uint16_t*)matrix)[at] << 16;
    float value;
    memcpy(&value, &bits, 4);
    return value;
}

extern "C" int cublasLtMatmul(
    void* handle, Descriptor* d, const float* alpha, const void* a, Layout* alayout, const void* b, Layout* blayout,
    const float* beta, const void* c, Layout* clayout, float* out, Layout* outlayout, const uint64_t* algorithm,
    void* workspace, size_t size, void* stream
) {
    if (!handle || c != out || clayout != outlayout || !fits(d, alayout, blayout, clayout)) return INVALID_VALUE;
    if (algorithm[0] != digest(d, alayout, blayout, clayout) || !workspace || size < NEEDED) return INVALID_VALUE;
    for (const void* address : {a, b, (const void*)out, d->bias})
        if ((uint64_t)address % algorithm[1]) return INVALID_VALUE;
    if (*alpha != 1 || *beta != 0) return INVALID_VALUE;
    const int64_t m = clayout->rows, n = clayout->columns, k = d->transa ? alayout->rows : alayout->columns;
    const float* bias = (const float*)d->bias;
    for (int64_t column = 0; column < n; ++column)
        for (int64_t row = 0; row < m; ++row) {
            double sum = 0;
            for (int64_t i = 0; i < k; ++i)
                sum += read(a, alayout->type, d->transa ? i + row * alayout->step : row + i * alayout->step) *
                       read(b, blayout->type, d->transb ? column + i * blayout->step : i + column * blayout->step);
            const float value = (float)(sum + bias[row]);
            out[row + column * outlayout->step] = d->epilogue == EPILOGUE_RELU_BIAS && value <= 0 ? 0 : value;
        }
    return OK;
}

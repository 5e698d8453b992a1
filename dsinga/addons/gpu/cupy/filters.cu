// Gradients of 3 x 3 filters at stride 1 and padding 1, directly from channels-last images, without copies. Sums have a
// fixed order, where cuDNN's fast engines add by atomic operations.
//
// A block has the filters of 16 channels and 16 outputs, a thread those of one pair, for a stretch of bands: `height`
// rows of an image each. A band goes through shared memory with a border of zeros. Each block writes a row of `partial`,
// which has the numbers of all filters (F, C, 3, 3).

enum { PAIRS = 16 };  // channels, and outputs, of a block

KERNEL filter_gradients(
    const REAL* x, const REAL* dy, REAL* partial, Index h, Index w, Index c, Index f, Index height, Index bands,
    Index stretch
) {
    extern __shared__ double memory[];
    const int width = (int)w, rows = (int)height, thread = threadIdx.x, pair = PAIRS * PAIRS;
    REAL *xs = (REAL*)memory, *ds = xs + (rows + 2) * (width + 2) * PAIRS;
    const int tiles = (int)(c / PAIRS), own = thread % PAIRS, output = thread / PAIRS;
    const Index first_channel = blockIdx.x % tiles * PAIRS, first_output = blockIdx.x / tiles * PAIRS;
    const Index in_image = (h + height - 1) / height, last = min((blockIdx.y + 1) * stretch, bands);
    REAL sums[9] = {0, 0, 0, 0, 0, 0, 0, 0, 0};
    for (Index band = blockIdx.y * stretch; band < last; ++band) {
        const Index image = band / in_image;
        const int top = (int)(band - image * in_image) * rows;
        __syncthreads();  // the band before has been read
        for (int i = thread; i < (rows + 2) * (width + 2) * PAIRS; i += pair) {
            const int pixel = i / PAIRS, across = pixel / (width + 2);
            const int row = top + across - 1, column = pixel - across * (width + 2) - 1;
            const bool inside = row >= 0 && row < h && column >= 0 && column < width;
            xs[i] = inside ? x[((image * h + row) * w + column) * c + first_channel + i % PAIRS] : (REAL)0;
        }
        for (int i = thread; i < rows * width * PAIRS; i += pair) {
            const int pixel = i / PAIRS, row = top + pixel / width;
            const Index at = (image * h + top) * w + pixel;
            ds[i] = row < h ? dy[at * f + first_output + i % PAIRS] : (REAL)0;
        }
        __syncthreads();
        for (int row = 0; row < rows; ++row) {
            const REAL* above = xs + row * (width + 2) * PAIRS + own;
            const REAL* gradients = ds + row * width * PAIRS + output;
            const int down = (width + 2) * PAIRS;
            REAL left[3], middle[3];
            for (int a = 0; a < 3; ++a) {
                left[a] = above[a * down];
                middle[a] = above[a * down + PAIRS];
            }
#pragma unroll 4
            for (int column = 0; column < width; ++column) {
                const REAL gradient = gradients[column * PAIRS];
#pragma unroll
                for (int a = 0; a < 3; ++a) {
                    const REAL right = above[a * down + (column + 2) * PAIRS];
                    sums[3 * a] += gradient * left[a];
                    sums[3 * a + 1] += gradient * middle[a];
                    sums[3 * a + 2] += gradient * right;
                    left[a] = middle[a];
                    middle[a] = right;
                }
            }
        }
    }
    REAL* result = partial + ((blockIdx.y * f + first_output + output) * c + first_channel + own) * 9;
    for (int k = 0; k < 9; ++k) result[k] = sums[k];
}

// The sum of the `count` rows of each of n columns.
KERNEL add_rows_of(const double* partial, REAL* total, Index count, Index n) {
    FOR_EACH(i, n) {
        double sum = 0;
        for (Index row = 0; row < count; ++row) sum += partial[row * n + i];
        total[i] = sum;
    }
}

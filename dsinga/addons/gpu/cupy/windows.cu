// Windows over images (B, H, W, C): pooling, and the columns that make a convolution one matrix product.

#define WINDOWS \
    Index h, Index w, Index c, Index oh, Index ow, Index kh, Index kw, Index sh, Index sw, Index ph, Index pw, Index n

// The image of number i in images of this height and width, and the row, column and channel of the number in it. Numbers
// in an image are counted in 32 bits, whose divisions take a third of the time of those in 64.
#define PLACE(height, width)                                                                          \
    const Index image = i / ((height) * (width) * c);                                                 \
    const int rest = (int)(i - image * ((height) * (width) * c)), channels = (int)c, across = (int)(width); \
    const int pixel = rest / channels, channel = rest - pixel * channels;                             \
    const int row = pixel / across, column = pixel - row * across;

// The windows that contain the place `at` along one axis: they begin at -pad + window·stride and are `size` long.
__device__ inline int first_window(int at, int size, int stride, int pad) {
    return at + pad < size ? 0 : (at + pad - size) / stride + 1;
}
__device__ inline int last_window(int at, int stride, int pad, int count) { return min((at + pad) / stride, count - 1); }

// Loop over the windows (a, b) that contain the pixel (row, column).
#define FOR_WINDOWS(a, b)                                                                                             \
    const int last_a = last_window(row, (int)sh, (int)ph, (int)oh), last_b = last_window(column, (int)sw, (int)pw, (int)ow); \
    const int first_b = first_window(column, (int)kw, (int)sw, (int)pw);                                              \
    for (int a = first_window(row, (int)kh, (int)sh, (int)ph); a <= last_a; ++a)                                      \
        for (int b = first_b; b <= last_b; ++b)

// The first maximum of each window, row by row, and its position in the window; NaN counts as the largest.
KERNEL max_pool(const STORED* x, STORED* y, unsigned short* winner, WINDOWS) {
    FOR_EACH(i, n) {
        PLACE(oh, ow);
        const int top = row * (int)sh - (int)ph, left = column * (int)sw - (int)pw;
        const int last_a = min((int)kh, (int)h - top), last_b = min((int)kw, (int)w - left);
        const STORED* start = x + ((image * h + top) * w + left) * c + channel;
        REAL best = 0;
        int place = -1;
        for (int a = max(-top, 0); a < last_a; ++a)
            for (int b = max(-left, 0); b < last_b; ++b) {
                const REAL value = start[(a * w + b) * c];
                if (place < 0 || value > best || (value != value && best == best)) {
                    best = value;
                    place = a * (int)kw + b;
                }
            }
        y[i] = best;
        if (winner) winner[i] = (unsigned short)place;
    }
}

// Each pixel adds the gradients of the windows whose maximum it is, in their order.
KERNEL max_pool_grad(const unsigned short* winner, const STORED* dy, STORED* dx, WINDOWS) {
    FOR_EACH(i, n) {
        PLACE(h, w);
        const Index start = image * oh * ow * c + channel;
        REAL sum = 0;
        FOR_WINDOWS(a, b) {
            const Index window = start + (a * ow + b) * c;
            const int place = (row - (a * (int)sh - (int)ph)) * (int)kw + column - (b * (int)sw - (int)pw);
            if (winner[window] == place) sum += dy[window];
        }
        dx[i] = sum;
    }
}

KERNEL avg_pool(const STORED* x, STORED* y, WINDOWS) {
    const REAL share = (REAL)1 / (REAL)(kh * kw);
    FOR_EACH(i, n) {
        PLACE(oh, ow);
        const int top = row * (int)sh - (int)ph, left = column * (int)sw - (int)pw;
        const int last_a = min((int)kh, (int)h - top), last_b = min((int)kw, (int)w - left);
        const STORED* start = x + ((image * h + top) * w + left) * c + channel;
        REAL sum = 0;
        for (int a = max(-top, 0); a < last_a; ++a)
            for (int b = max(-left, 0); b < last_b; ++b) sum += start[(a * w + b) * c];
        y[i] = sum * share;
    }
}

KERNEL avg_pool_grad(const STORED* dy, STORED* dx, WINDOWS) {
    const REAL share = (REAL)1 / (REAL)(kh * kw);
    FOR_EACH(i, n) {
        PLACE(h, w);
        const STORED* start = dy + image * oh * ow * c + channel;
        REAL sum = 0;
        FOR_WINDOWS(a, b) sum += start[(a * ow + b) * c];
        dx[i] = sum * share;
    }
}

// im2col: a row for each window, its kh·kw·C numbers in the order of a filter (kh, kw, C); padding is 0.
KERNEL to_columns(const STORED* x, STORED* columns, WINDOWS) {
    FOR_EACH(i, n) {
        const Index window = i / (c * kh * kw);
        const int rest = (int)(i - window * (c * kh * kw)), tap = rest / (int)c, channel = rest - tap * (int)c;
        const int a = tap / (int)kw, b = tap - a * (int)kw;
        const Index image = window / (oh * ow);
        const int pixel = (int)(window - image * (oh * ow)), out = pixel / (int)ow;
        const int column = (pixel - out * (int)ow) * (int)sw - (int)pw + b, row = out * (int)sh - (int)ph + a;
        const bool inside = row >= 0 && row < h && column >= 0 && column < w;
        columns[i] = inside ? (REAL)x[((image * h + row) * w + column) * c + channel] : (REAL)0;
    }
}

// col2im: each pixel adds its numbers in the windows, in their order.
KERNEL from_columns(const REAL* columns, STORED* x, WINDOWS) {
    FOR_EACH(i, n) {
        PLACE(h, w);
        REAL sum = 0;
        FOR_WINDOWS(a, b) {
            const Index window = (image * oh + a) * ow + b;
            const int place = (row - (a * (int)sh - (int)ph)) * (int)kw + column - (b * (int)sw - (int)pw);
            sum += columns[(window * kh * kw + place) * c + channel];
        }
        x[i] = sum;
    }
}

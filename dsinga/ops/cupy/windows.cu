// Windows over images (B, H, W, C): pooling, and the columns that make a convolution one matrix product.

#define WINDOWS \
    Index h, Index w, Index c, Index oh, Index ow, Index kh, Index kw, Index sh, Index sw, Index ph, Index pw, Index n

// The indices of number i in images of this height and width: its channel, column, row and image.
#define PLACE(height, width) \
    const Index channel = i % c, column = i / c % (width), row = i / c / (width) % (height), image = i / c / (width) / (height)

// The windows that contain the place `at` along one axis: they begin at -pad + window·stride and are `size` long.
#define FIRST_WINDOW(at, size, stride, pad) ((at) + (pad) < (size) ? 0 : ((at) + (pad) - (size)) / (stride) + 1)
#define LAST_WINDOW(at, stride, pad, count) min(((at) + (pad)) / (stride), (count) - 1)

// The first maximum of each window, row by row, and its position in the window; NaN counts as the largest.
KERNEL max_pool(const REAL* x, REAL* y, unsigned short* winner, WINDOWS) {
    FOR_EACH(i, n) {
        PLACE(oh, ow);
        const Index top = row * sh - ph, left = column * sw - pw;
        REAL best = 0;
        int place = -1;
        for (Index a = max(-top, (Index)0); a < min(kh, h - top); ++a)
            for (Index b = max(-left, (Index)0); b < min(kw, w - left); ++b) {
                const REAL value = x[((image * h + top + a) * w + left + b) * c + channel];
                if (place < 0 || value > best || (value != value && best == best)) {
                    best = value;
                    place = (int)(a * kw + b);
                }
            }
        y[i] = best;
        if (winner) winner[i] = (unsigned short)place;
    }
}

// Each pixel adds the gradients of the windows whose maximum it is, in their order.
KERNEL max_pool_grad(const unsigned short* winner, const REAL* dy, REAL* dx, WINDOWS) {
    FOR_EACH(i, n) {
        PLACE(h, w);
        REAL sum = 0;
        for (Index a = FIRST_WINDOW(row, kh, sh, ph); a <= LAST_WINDOW(row, sh, ph, oh); ++a)
            for (Index b = FIRST_WINDOW(column, kw, sw, pw); b <= LAST_WINDOW(column, sw, pw, ow); ++b) {
                const Index window = ((image * oh + a) * ow + b) * c + channel;
                const Index place = (row - (a * sh - ph)) * kw + column - (b * sw - pw);
                if (winner[window] == place) sum += dy[window];
            }
        dx[i] = sum;
    }
}

KERNEL avg_pool(const REAL* x, REAL* y, WINDOWS) {
    const REAL share = (REAL)1 / (REAL)(kh * kw);
    FOR_EACH(i, n) {
        PLACE(oh, ow);
        const Index top = row * sh - ph, left = column * sw - pw;
        REAL sum = 0;
        for (Index a = max(-top, (Index)0); a < min(kh, h - top); ++a)
            for (Index b = max(-left, (Index)0); b < min(kw, w - left); ++b)
                sum += x[((image * h + top + a) * w + left + b) * c + channel];
        y[i] = sum * share;
    }
}

KERNEL avg_pool_grad(const REAL* dy, REAL* dx, WINDOWS) {
    const REAL share = (REAL)1 / (REAL)(kh * kw);
    FOR_EACH(i, n) {
        PLACE(h, w);
        REAL sum = 0;
        for (Index a = FIRST_WINDOW(row, kh, sh, ph); a <= LAST_WINDOW(row, sh, ph, oh); ++a)
            for (Index b = FIRST_WINDOW(column, kw, sw, pw); b <= LAST_WINDOW(column, sw, pw, ow); ++b)
                sum += dy[((image * oh + a) * ow + b) * c + channel];
        dx[i] = sum * share;
    }
}

// im2col: a row for each window, its kh·kw·C numbers in the order of a filter (kh, kw, C); padding is 0.
KERNEL to_columns(const REAL* x, REAL* columns, WINDOWS) {
    FOR_EACH(i, n) {
        const Index channel = i % c, b = i / c % kw, a = i / c / kw % kh, window = i / c / kw / kh;
        const Index column = window % ow * sw - pw + b, row = window / ow % oh * sh - ph + a, image = window / ow / oh;
        const bool inside = row >= 0 && row < h && column >= 0 && column < w;
        columns[i] = inside ? x[((image * h + row) * w + column) * c + channel] : (REAL)0;
    }
}

// col2im: each pixel adds its numbers in the windows, in their order.
KERNEL from_columns(const REAL* columns, REAL* x, WINDOWS) {
    FOR_EACH(i, n) {
        PLACE(h, w);
        REAL sum = 0;
        for (Index a = FIRST_WINDOW(row, kh, sh, ph); a <= LAST_WINDOW(row, sh, ph, oh); ++a)
            for (Index b = FIRST_WINDOW(column, kw, sw, pw); b <= LAST_WINDOW(column, sw, pw, ow); ++b) {
                const Index window = (image * oh + a) * ow + b;
                const Index place = (row - (a * sh - ph)) * kw + column - (b * sw - pw);
                sum += columns[(window * kh * kw + place) * c + channel];
            }
        x[i] = sum;
    }
}

// Records of any type as float32 images: (x - mean)·factor, laid out channels-last.
//
// x, mean and factor have a stride for each of image, channel, row and column. Strides of mean and factor may be 0; mean
// and factor may be null.

#define STEPS(name) Index name##_c, Index name##_h, Index name##_w

template <typename T> __device__ void to_images(
    const T* x, const float* mean, const float* factor, float* y, double scale,
    Index x_b, STEPS(x), STEPS(mean), STEPS(factor), Index c, Index h, Index w, Index n
) {
    FOR_EACH(i, n) {
        const Index channel = i % c, column = i / c % w, row = i / c / w % h, image = i / c / w / h;
        float value = x[image * x_b + channel * x_c + row * x_h + column * x_w];
        if (mean) value -= mean[channel * mean_c + row * mean_h + column * mean_w];
        y[i] = value * (factor ? factor[channel * factor_c + row * factor_h + column * factor_w] : (float)scale);
    }
}

#define IMAGES(name, T)                                                                                    \
    KERNEL name(                                                                                           \
        const T* x, const float* mean, const float* factor, float* y, double scale,                        \
        Index x_b, STEPS(x), STEPS(mean), STEPS(factor), Index c, Index h, Index w, Index n                \
    ) {                                                                                                    \
        to_images(x, mean, factor, y, scale, x_b, x_c, x_h, x_w, mean_c, mean_h, mean_w, factor_c, factor_h, \
                  factor_w, c, h, w, n);                                                                   \
    }

IMAGES(images_uint8, unsigned char)
IMAGES(images_int8, signed char)
IMAGES(images_uint16, unsigned short)
IMAGES(images_int16, short)
IMAGES(images_uint32, unsigned int)
IMAGES(images_int32, int)
IMAGES(images_uint64, unsigned long long)
IMAGES(images_int64, long long)
IMAGES(images_float32, float)
IMAGES(images_float64, double)

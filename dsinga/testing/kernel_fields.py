"""The kernel contract for fields: transposed convolution, and normalisation by row and channel."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import strategies as st

from dsinga.testing import kernel_formulas as formulas
from dsinga.testing.kernel_backend import KernelBackend
from dsinga.testing.kernel_cases import BATCHES, CHANNELS, LAYOUTS, LayoutChecks, given, normal, windowed
from dsinga.testing.kernel_formulas import assert_close, assert_gradient

SIZES = st.sampled_from([(), (3,), (3, 4), (12, 16), (2, 3, 4)])  # of the axes after the channels


class FieldKernels(LayoutChecks):
    """Checks of kernels on fields (B, C, ...)."""

    @given(case=windowed(), filters=CHANNELS, bias=st.booleans())
    def test_transposed_convolution(
        self, backend: KernelBackend, case: dict[str, Any], filters: int, bias: bool
    ) -> None:
        """It is the gradient of a convolution's images, plus the bias."""
        channels, size, (kernel, stride, pad) = case["shape"][1], case["shape"][2:], case["window"]
        w = normal(case["seed"], filters, channels, *kernel)
        image = normal(case["seed"], *case["shape"])
        x = normal(case["seed"] + 1, *formulas.convolution(image, w, None, stride, pad).shape)
        arguments = backend.place(x, case["layout"]), w
        y = backend.run("transposed_convolution", *arguments, None, stride, pad, size)
        self.assert_image(y)
        assert_gradient(
            lambda image: (formulas.convolution(image, w, None, stride, pad) * x).sum(), image, y, backend.dtype
        )
        if bias:
            b = normal(case["seed"], channels)
            shifted = backend.run("transposed_convolution", *arguments, b, stride, pad, size)
            self.assert_image(shifted)
            assert_close(shifted, y.astype(np.float64) + b.reshape(-1, *[1] * len(size)), backend.dtype)

    @given(batch=BATCHES, channels=CHANNELS, size=SIZES, layout=LAYOUTS, offset=st.sampled_from([0.0, 100.0]))
    def test_row_kernels(
        self, backend: KernelBackend, batch: int, channels: int, size: tuple[int, ...], layout: str, offset: float
    ) -> None:
        shape, axes = (batch, channels, *size), tuple(range(2, 2 + len(size)))
        points = (slice(None), slice(None), *[None] * len(size))
        x, dy = normal(1, *shape) + offset, normal(2, *shape)
        constants = [normal(seed, batch, channels) for seed in (3, 4, 5)]
        placed = backend.place(x, layout if len(size) in (2, 3) else "rows"), backend.place(dy, "rows")
        exact_x, exact_dy = (backend.host(array).astype(np.float64) for array in placed)
        rounding = 2e-6 if backend.dtype == np.float32 else 1e-12
        mean, variance = backend.run("row_moments", placed[0])
        assert mean.dtype == variance.dtype == np.float64
        exact_mean = exact_x.mean(axis=axes)
        np.testing.assert_allclose(mean, exact_mean, rtol=rounding, atol=rounding)
        np.testing.assert_allclose(variance, exact_x.var(axis=axes), rtol=10 * rounding, atol=10 * rounding)
        on_device = backend.ops.asarray
        sums = backend.host(backend.ops.row_sums(*placed, on_device(exact_mean)))
        exact_sums = exact_dy.sum(axis=axes), (exact_dy * (exact_x - exact_mean[points])).sum(axis=axes)
        for array, expected in zip(sums, exact_sums, strict=True):
            assert array.dtype == np.float64
            np.testing.assert_allclose(array, expected, rtol=0, atol=100 * rounding)
        factor, slope, shift = map(on_device, constants)
        y = backend.host(backend.ops.row_affine(placed[0], factor, slope))
        exact_factor, exact_slope, exact_shift = (constant[points] for constant in constants)
        assert y.dtype == backend.dtype
        assert_close(y, exact_x * exact_factor + exact_slope, backend.dtype, scale=5 * (1 + offset))
        dx = backend.host(backend.ops.row_affine_grad(*placed, factor, slope, shift))
        expected = exact_dy * exact_factor + exact_x * exact_slope + exact_shift
        assert_close(dx, expected, backend.dtype, scale=5 * (1 + offset))

    def test_empty_images_have_the_layout_of_the_backend(self, backend: KernelBackend) -> None:
        image, matrix = backend.ops.empty((2, 3, 4, 5), backend.dtype), backend.ops.empty((2, 3), backend.dtype)
        assert (image.shape, matrix.shape, image.dtype) == ((2, 3, 4, 5), (2, 3), backend.dtype)
        self.assert_image(image)

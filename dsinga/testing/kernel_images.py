"""Kernel tests for images: inner products, convolution, pooling and normalisation."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import strategies as st

from dsinga.testing import kernel_formulas as formulas
from dsinga.testing.kernel_backend import (
    BATCHES,
    CHANNELS,
    LAYOUTS,
    MATRIX_LAYOUTS,
    KernelBackend,
    LayoutChecks,
    distinct,
    given,
    normal,
    windowed,
)
from dsinga.testing.kernel_formulas import assert_close, assert_gradient

ROUNDING: dict[Any, float] = {np.float32: 1e-6, np.float64: 1e-14}
EPSILON, SHARE, UNBIAS = 1e-5, 0.25, 1.5


class ImageKernels(LayoutChecks):
    """Tests of inner products, of kernels on images (B, C, H, W), and of normalisation."""

    @given(case=windowed(), filters=CHANNELS, bias=st.booleans(), need_dx=st.booleans(), need_db=st.booleans())
    def test_convolution(
        self, backend: KernelBackend, case: dict[str, Any], filters: int, bias: bool, need_dx: bool, need_db: bool
    ) -> None:
        kernel, stride, pad = case["window"]
        x, w = normal(case["seed"], *case["shape"]), normal(case["seed"], filters, case["shape"][1], *kernel)
        b = normal(case["seed"], filters) if bias else None
        x_placed = backend.place(x, case["layout"])
        y = backend.run("convolution", x_placed, w, b, stride, pad)
        expected = formulas.convolution(x, w, b, stride, pad)
        assert_close(y, expected, backend.dtype)
        self.assert_image(y)

        dy = normal(case["seed"] + 1, *y.shape)
        grads = backend.run(
            "convolution_grad", x_placed, w, backend.place(dy, case["layout"]), stride, pad, need_dx, need_db
        )
        assert [grad is not None for grad in grads] == [need_dx, True, need_db]
        if need_dx:
            assert_gradient(
                lambda x: (formulas.convolution(x, w, b, stride, pad) * dy).sum(), x, grads[0], backend.dtype
            )
            self.assert_image(grads[0])
        assert_gradient(lambda w: (formulas.convolution(x, w, b, stride, pad) * dy).sum(), w, grads[1], backend.dtype)
        if need_db:
            assert_close(grads[2], dy.sum(axis=(0, *range(2, dy.ndim))), backend.dtype, scale=np.abs(dy).sum())

    @given(case=windowed())
    def test_max_pool(self, backend: KernelBackend, case: dict[str, Any]) -> None:
        x, window = distinct(case["seed"], *case["shape"]), case["window"]
        x_placed = backend.place(x, case["layout"])
        y, workspace = backend.run("max_pool", x_placed, *window, True)
        assert_close(y, formulas.max_pool(x, *window), backend.dtype)
        self.assert_image(y)
        peaks, no_workspace = backend.run("max_pool", x_placed, *window, False)
        np.testing.assert_array_equal(peaks, y)
        assert no_workspace is None

        dy = normal(case["seed"], *y.shape)
        dx = backend.run("max_pool_grad", x_placed, workspace, backend.place(dy, case["layout"]), *window)
        assert_gradient(lambda x: (formulas.max_pool(x, *window) * dy).sum(), x, dx, backend.dtype)
        self.assert_image(dx)

    def test_the_first_of_equal_maxima_gets_the_gradient(self, backend: KernelBackend) -> None:
        x = backend.place(np.zeros((1, 16, 5, 5)), "channels last")
        window = (3, 3), (2, 2), (1, 1)
        y, workspace = backend.run("max_pool", x, *window, True)
        dx = backend.run("max_pool_grad", x, workspace, np.ones(y.shape), *window)
        # Windows start at -1, 1, 3: the first pixel inside each is 0, 1, 3.
        expected = np.zeros((5, 5))
        expected[np.ix_([0, 1, 3], [0, 1, 3])] = 1
        np.testing.assert_array_equal(dx, np.broadcast_to(expected, dx.shape))

    @given(case=windowed())
    def test_avg_pool(self, backend: KernelBackend, case: dict[str, Any]) -> None:
        x, window = normal(case["seed"], *case["shape"]), case["window"]
        x_placed = backend.place(x, case["layout"])
        y = backend.run("avg_pool", x_placed, *window)
        assert_close(y, formulas.avg_pool(x, *window), backend.dtype)
        self.assert_image(y)

        dy = normal(case["seed"] + 1, *y.shape)
        dx = backend.run("avg_pool_grad", x_placed, backend.place(dy, case["layout"]), *window)
        assert_gradient(lambda x: (formulas.avg_pool(x, *window) * dy).sum(), x, dx, backend.dtype)
        self.assert_image(dx)

    @given(
        batch=BATCHES,
        channels=CHANNELS,
        size=st.integers(1, 9),
        alpha=st.sampled_from([5e-5, 0.1, 1.0]),
        beta=st.sampled_from([0.75, 0.5, 1.0]),
        k=st.sampled_from([1.0, 2.0]),
        layout=LAYOUTS,
        train=st.booleans(),
    )
    def test_lrn(
        self,
        backend: KernelBackend,
        batch: int,
        channels: int,
        size: int,
        alpha: float,
        beta: float,
        k: float,
        layout: str,
        train: bool,
    ) -> None:
        x, constants = normal(size, batch, channels, 3, 2), (size, alpha, beta, k)
        x_placed = backend.place(x, layout)
        y, workspace = backend.run("lrn", x_placed, *constants, train)
        assert_close(y, formulas.lrn(x, *constants), backend.dtype)
        self.assert_image(y)
        if not train:
            return
        dy = normal(size + 1, *y.shape)
        dx = backend.run("lrn_grad", x_placed, workspace, backend.place(dy, layout), *constants)
        assert_gradient(lambda x: (formulas.lrn(x, *constants) * dy).sum(), x, dx, backend.dtype)
        self.assert_image(dx)

    @given(rows=BATCHES, columns=st.integers(2, 40), layout=st.sampled_from(["rows", "gaps"]), train=st.booleans())
    def test_layer_norm(self, backend: KernelBackend, rows: int, columns: int, layout: str, train: bool) -> None:
        x, scale, shift = normal(1, rows, columns), normal(2, columns), normal(3, columns)
        x_placed = backend.place(x, layout)
        y, workspace = backend.run("layer_norm", x_placed, scale, shift, 0.1, train)
        assert_close(y, formulas.layer_norm(x, scale, shift, 0.1), backend.dtype)
        if not train:
            assert workspace is None
            return
        dy = normal(4, rows, columns)
        grads = backend.run("layer_norm_grad", x_placed, workspace, backend.place(dy, layout), scale, 0.1)
        for index, (at, grad) in enumerate(zip((x, scale, shift), grads, strict=True)):

            def loss(moved: np.ndarray, index: int = index) -> float:
                arguments = [x, scale, shift]
                arguments[index] = moved
                return (formulas.layer_norm(arguments[0], arguments[1], arguments[2], 0.1) * dy).sum()

            assert_gradient(loss, at, grad, backend.dtype)

    @given(rows=BATCHES, columns=st.integers(1, 40), layout=st.sampled_from(["rows", "gaps"]), train=st.booleans())
    def test_rms_norm(self, backend: KernelBackend, rows: int, columns: int, layout: str, train: bool) -> None:
        x, scale, dy = normal(1, rows, columns), normal(2, columns), normal(3, rows, columns)
        x_placed = backend.place(x, layout)
        y, workspace = backend.run("rms_norm", x_placed, scale, 0.1, train)
        assert_close(y, formulas.rms_norm(x, scale, 0.1), backend.dtype)
        if not train:
            assert workspace is None
            return
        dx, dscale = backend.run("rms_norm_grad", x_placed, workspace, backend.place(dy, layout), scale)
        assert_gradient(lambda moved: (formulas.rms_norm(moved, scale, 0.1) * dy).sum(), x, dx, backend.dtype)
        assert_gradient(lambda moved: (formulas.rms_norm(x, moved, 0.1) * dy).sum(), scale, dscale, backend.dtype)

    @given(
        batch=BATCHES,
        inputs=st.integers(1, 70),
        outputs=st.integers(1, 40),
        bias=st.booleans(),
        transpose=st.booleans(),
        needs=st.tuples(st.booleans(), st.booleans()),
        layout=MATRIX_LAYOUTS,
    )
    def test_inner_product(
        self,
        backend: KernelBackend,
        batch: int,
        inputs: int,
        outputs: int,
        bias: bool,
        transpose: bool,
        needs: tuple[bool, bool],
        layout: str,
    ) -> None:
        x, w = normal(1, batch, inputs), normal(2, *((inputs, outputs) if transpose else (outputs, inputs)))
        b = normal(3, outputs) if bias else None
        x_placed, w_placed = backend.place(x, layout), backend.place(w, layout)
        y = backend.run("inner_product", x_placed, w_placed, b, transpose)
        matrix = w if transpose else w.T
        assert_close(y, np.einsum("bi,io->bo", x, matrix) + (0 if b is None else b), backend.dtype)

        dy = normal(4, batch, outputs)
        need_dx, need_db = needs
        dx, dw, db = backend.run(
            "inner_product_grad", x_placed, w_placed, backend.place(dy, layout), transpose, need_dx, need_db
        )
        assert (dx is not None, db is not None) == needs
        expected = np.einsum("bi,bo->io", x, dy)
        assert_close(dw, expected if transpose else expected.T, backend.dtype)
        if need_dx:
            assert_close(dx, np.einsum("bo,io->bi", dy, matrix), backend.dtype)
        if need_db:
            assert_close(db, dy.sum(axis=0), backend.dtype, scale=np.abs(dy).sum())

    @given(batch=BATCHES, channels=CHANNELS, image=st.booleans(), layout=LAYOUTS)
    def test_channel_kernels(self, backend: KernelBackend, batch: int, channels: int, image: bool, layout: str) -> None:
        shape = (batch, channels, 3, 4) if image else (batch, channels)
        along = (slice(None), None, None) if image else ()
        axes = (0, 2, 3) if image else (0,)
        x, y = normal(1, *shape), normal(2, *shape)
        scale, shift = normal(3, channels), normal(4, channels)
        x_placed, y_placed = backend.place(x, layout), backend.place(y, "rows")
        exact_x, exact_y = (backend.host(array).astype(np.float64) for array in (x_placed, y_placed))
        assert_close(backend.run("channel_sums", x_placed), exact_x.sum(axis=axes), np.float64)
        assert_close(backend.run("channel_sums", x_placed, y_placed), (exact_x * exact_y).sum(axis=axes), np.float64)
        mean, variance = backend.run("channel_moments", x_placed)
        count = max(batch * (12 if image else 1), 1)
        exact_mean = exact_x.sum(axis=axes) / count
        exact_variance = np.square(exact_x - exact_mean[along]).sum(axis=axes) / count
        assert mean.dtype == variance.dtype == np.float64
        np.testing.assert_allclose(mean, exact_mean, rtol=0, atol=ROUNDING[backend.dtype])
        np.testing.assert_allclose(variance, exact_variance, rtol=0, atol=ROUNDING[backend.dtype])
        sums = backend.host(backend.ops.batch_norm_sums(x_placed, y_placed, exact_mean, exact_variance, 1e-5))
        standard = (exact_x - exact_mean[along]) / np.sqrt(exact_variance + 1e-5)[along]
        exact_sums = exact_y.sum(axis=axes), (exact_y * standard).sum(axis=axes)
        for array, expected in zip(sums, exact_sums, strict=True):
            assert array.dtype == np.float64
            np.testing.assert_allclose(array, expected, rtol=0, atol=100 * ROUNDING[backend.dtype])
        grad = backend.run("batch_norm_grad", x_placed, y_placed, scale, shift, exact_mean)
        assert_close(grad, scale[along] * (y + shift[along] * x + exact_mean[along]), backend.dtype)
        inverse, ops = 1 / np.sqrt(exact_variance + 1e-5), backend.ops
        scale_placed, shift_placed = backend.asarray(scale), backend.asarray(shift)
        exact_placed = ops.asarray(exact_mean), ops.asarray(exact_variance)
        sums_placed = [ops.asarray(array) for array in sums]
        slope = -inverse * sums[1] / count
        slopes = backend.host(ops.batch_norm_slopes(scale_placed, *exact_placed, sums_placed, count, 1e-5))
        exact_slopes = scale * inverse, slope, -sums[0] / count - slope * exact_mean
        for array, expected in zip(slopes, exact_slopes, strict=True):
            assert_close(array.astype(backend.dtype), expected, backend.dtype)
        affine = backend.host(ops.batch_norm_affine(scale_placed, shift_placed, *exact_placed, 1e-5))
        exact_affine = scale * inverse, shift - exact_mean * scale * inverse
        for array, expected in zip(affine, exact_affine, strict=True):
            assert_close(array.astype(backend.dtype), expected, backend.dtype)
        average = backend.host(ops.moving_average(scale_placed, exact_placed[1], 0.25, 1.5))
        assert average.dtype == backend.dtype
        assert_close(average, 0.75 * scale + 0.375 * exact_variance, backend.dtype)
        affine = backend.run("channel_affine", x_placed, scale, shift)
        assert_close(affine, x * scale[along] + shift[along], backend.dtype)
        rectified = backend.run("rectified_affine", x_placed, scale, shift)
        assert_close(rectified, np.maximum(x * scale[along] + shift[along], 0), backend.dtype)
        rectified = backend.run("rectified_affine", x_placed, scale, shift, y_placed)
        assert_close(rectified, np.maximum(x * scale[along] + shift[along] + y, 0), backend.dtype)


class NormalisationKernels:
    """Tests of batch normalisation in training."""

    @given(batch=BATCHES, channels=CHANNELS, image=st.booleans(), layout=LAYOUTS)
    def test_batch_norm_of_a_whole_batch(
        self, backend: KernelBackend, batch: int, channels: int, image: bool, layout: str
    ) -> None:
        """Batch normalisation in one call gives the results of the separate kernels."""
        shape, ops = (batch, channels, 3, 4) if image else (batch, channels), backend.ops
        x, dy = backend.place(normal(1, *shape), layout), backend.place(normal(2, *shape), "rows")
        params = [backend.asarray(normal(3 + number, channels)) for number in range(4)]
        moments, affine, moved = ops.batch_norm_training(x, params, SHARE, UNBIAS, EPSILON)
        exact = ops.channel_moments(x)
        pairs = zip(params[2:], exact, (1.0, UNBIAS), strict=True)
        running = [ops.moving_average(before, new, SHARE, factor) for before, new, factor in pairs]
        by_steps = *exact, *ops.batch_norm_affine(params[0], params[1], *exact, EPSILON), *running
        compare(backend, (*moments, *affine, *moved), by_steps)
        size = max(batch * (12 if image else 1), 1)
        slopes, gradients = ops.batch_norm_training_grad(x, dy, params[0], exact, size, EPSILON)
        sums = ops.batch_norm_sums(x, dy, *exact, EPSILON)
        expected = *ops.batch_norm_slopes(params[0], *exact, sums, size, EPSILON), *sums[::-1]
        compare(backend, (*slopes, *gradients), expected)
        feature = backend.place(normal(7, *shape), layout)
        masked, rectified = ops.rectified_batch_norm_sums(x, feature, dy, *exact, EPSILON)
        compare(backend, (masked,), (ops.relu_grad(feature, dy),))
        if rectified:
            compare(backend, rectified, ops.batch_norm_sums(x, masked, *exact, EPSILON))
        assert all(array.dtype == backend.dtype for array in gradients)


def compare(backend: KernelBackend, results: tuple[Any, ...], expected: tuple[Any, ...]) -> None:
    """Assert that arrays are equal, except for rounding."""
    for result, exact in zip(backend.host(results), backend.host(expected), strict=True):
        assert_close(result.astype(backend.dtype), exact, backend.dtype)

"""Kernel tests for fields: transposed and grouped convolution, and normalisation by row and channel."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import strategies as st

from dsinga.testing import kernel_formulas as formulas
from dsinga.testing.kernel_backend import (
    BATCHES,
    CHANNELS,
    LAYOUTS,
    KernelBackend,
    LayoutChecks,
    given,
    normal,
    windowed,
)
from dsinga.testing.kernel_formulas import assert_close, assert_gradient

SIZES = st.sampled_from([(), (3,), (3, 4), (12, 16), (2, 3, 4)])  # sizes of the axes after the channels


class FieldKernels(LayoutChecks):
    """Tests of kernels on fields (B, C, ...)."""

    @given(case=windowed(), filters=CHANNELS, bias=st.booleans())
    def test_transposed_convolution(
        self, backend: KernelBackend, case: dict[str, Any], filters: int, bias: bool
    ) -> None:
        """A transposed convolution equals the gradient for a convolution's images, plus the bias."""
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

    @given(
        case=windowed(),
        groups=st.sampled_from([1, 2, 3, 8]),
        per_group=st.sampled_from([(1, 1), (1, 2), (2, 1), (3, 8)]),
        dilation=st.tuples(*[st.integers(1, 3)] * 3),
        needs=st.tuples(st.booleans(), st.booleans(), st.booleans()),
    )
    def test_grouped_convolution(
        self,
        backend: KernelBackend,
        case: dict[str, Any],
        groups: int,
        per_group: tuple[int, int],
        dilation: tuple[int, ...],
        needs: tuple[bool, bool, bool],
    ) -> None:
        """Each group is a separate convolution; dilation fills the filters' gaps with zeros."""
        (batch, _, *size), (kernel, stride, pad), seed = case["shape"], case["window"], case["seed"]
        dilation = dilation[: len(size)]
        spans = [(length - 1) * gap + 1 for length, gap in zip(kernel, dilation, strict=True)]
        size = [max(length, span - 2 * more) for length, span, more in zip(size, spans, pad, strict=True)]
        (channels, filters), (has_bias, need_dx, need_db) = per_group, needs
        x, w = normal(seed, batch, groups * channels, *size), normal(seed, groups * filters, channels, *kernel)
        b = normal(seed, groups * filters) if has_bias else None

        taps = (slice(None), slice(None), *(slice(None, None, gap) for gap in dilation))

        def exact(x: np.ndarray, w: np.ndarray) -> np.ndarray:
            spread = np.zeros((*w.shape[:2], *spans))
            spread[taps] = w
            parts = zip(np.split(x, groups, 1), np.split(spread, groups), strict=True)
            y = np.concatenate([formulas.convolution(*part, None, stride, pad) for part in parts], 1)
            return y if b is None else y + b.reshape(-1, *[1] * len(size))

        spacing, x_placed = (stride, pad, dilation, groups), backend.place(x, case["layout"])
        y = backend.run("grouped_convolution", x_placed, w, b, *spacing)
        assert_close(y, exact(x, w), backend.dtype)
        self.assert_image(y)
        dy = normal(seed + 1, *y.shape)
        placed = x_placed, w, backend.place(dy, case["layout"])
        grads = backend.run("grouped_convolution_grad", *placed, *spacing, need_dx, need_db)
        assert [grad is not None for grad in grads] == [need_dx, True, need_db]
        if need_dx:
            assert_gradient(lambda x: (exact(x, w) * dy).sum(), x, grads[0], backend.dtype)
            self.assert_image(grads[0])
        assert_gradient(lambda w: (exact(x, w) * dy).sum(), w, grads[1], backend.dtype)
        if need_db:
            assert_close(grads[2], dy.sum(axis=(0, *range(2, dy.ndim))), backend.dtype, scale=np.abs(dy).sum())

    @given(
        shape=st.tuples(BATCHES, st.sampled_from([1, 2, 5, 17]), SIZES),
        layout=LAYOUTS,
        weighted=st.booleans(),
        coarse=st.booleans(),
    )
    def test_softmax_of_points(
        self, backend: KernelBackend, shape: tuple[int, int, tuple[int, ...]], layout: str, weighted: bool, coarse: bool
    ) -> None:
        """The softmax of points equals the formula; among tied scores the first class counts."""
        batch, classes, size = shape
        points, x = math.prod(size), normal(1, batch, classes, *size)
        x = np.rint(x) if coarse else 3 * x
        labels = np.random.default_rng(2).integers(0, classes, (batch, points))
        weights = np.abs(normal(3, batch, points)) if weighted else None
        placed = backend.place(x, layout if len(size) in (2, 3) else "rows")
        scores = np.moveaxis(x, 1, -1).reshape(batch * points, classes)
        expected, of_rows = formulas.softmax(scores), labels.ravel()
        p, loss, hits = backend.run("point_softmax_loss", placed, labels, weights)
        assert_close(_by_point(p), expected, backend.dtype)
        assert_close(_by_point(backend.run("point_softmax", placed)), expected, backend.dtype)
        counts, read = np.ones(batch * points) if weights is None else weights.ravel(), backend.ops.read([loss, hits])
        losses = -np.log(expected[range(batch * points), of_rows])
        assert read[0] == pytest.approx((losses * counts).sum(), rel=1e-4, abs=1e-5)
        highest = scores.argmax(axis=1)
        assert read[1] == pytest.approx(((highest == of_rows) * counts).sum(), rel=1e-6)
        chosen = backend.run("highest_channel", x.reshape(batch, classes, points))
        np.testing.assert_array_equal(chosen.ravel(), highest)
        dx = backend.run("point_softmax_loss_grad", p, labels, weights, 0.25)
        assert_close(_by_point(dx), 0.25 * (expected - np.eye(classes)[of_rows]) * counts[:, None], backend.dtype)

    def test_points_with_nan_are_no_hits(self, backend: KernelBackend) -> None:
        x = np.array([[[np.nan, 0.0], [2.0, 1.0]]])
        _, loss, hits = backend.run("point_softmax_loss", x, np.array([[0, 1]]))
        assert np.isnan(backend.ops.read([loss])[0])
        assert backend.ops.read([hits]) == [1]

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


def _by_point(x: np.ndarray) -> np.ndarray:
    return np.moveaxis(x, 1, -1).reshape(math.prod((len(x), *x.shape[2:])), x.shape[1])

"""What every backend must do: each kernel against its formula, on odd shapes, layouts and empty batches."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsinga.ops.layout import output_sizes
from tests.support import ops_oracles as oracle
from tests.support.ops_oracles import assert_close, assert_gradient

LAYOUTS = st.sampled_from(["channels last", "rows", "gaps", "reversed"])
BATCHES = st.integers(0, 5)
CHANNELS = st.sampled_from([1, 2, 3, 5, 8, 16, 17, 20, 32])
SEEDS = st.integers(0, 2**32 - 1)
ROUNDING = {np.float32: 1e-6, np.float64: 1e-14}


def normal(seed: int, *shape: int) -> np.ndarray:
    return np.random.default_rng([seed, *shape]).standard_normal(shape)


def distinct(seed: int, *shape: int) -> np.ndarray:
    """Values at least 0.01 apart: no maximum changes hands within a step of a numerical gradient."""
    size = int(np.prod(shape))
    return (np.random.default_rng([seed, *shape]).permutation(size) * 0.01 - size * 0.005 + 0.003).reshape(shape)


@st.composite
def windowed(draw: st.DrawFn) -> dict[str, Any]:
    """An image and windows that fit it: any kernel, stride, and a pad smaller than the kernel."""
    batch, channels = draw(BATCHES), draw(CHANNELS)
    height, width = draw(st.integers(1, 9)), draw(st.integers(1, 9))
    kernel, pad = [], []
    for size in (height, width):
        kernel.append(draw(st.integers(1, min(5, size + 2))))
        least = max(0, -(-(kernel[-1] - size) // 2))
        pad.append(draw(st.integers(least, max(least, kernel[-1] - 1))))
    stride = draw(st.tuples(st.integers(1, 3), st.integers(1, 3)))
    return {
        "shape": (batch, channels, height, width),
        "window": (tuple(kernel), stride, tuple(pad)),
        "layout": draw(LAYOUTS),
        "seed": draw(SEEDS),
    }


class TestKernels:
    @given(case=windowed(), filters=CHANNELS, bias=st.booleans(), need_dx=st.booleans(), need_db=st.booleans())
    def test_convolution(self, backend, case, filters, bias, need_dx, need_db):
        kernel, stride, pad = case["window"]
        x, w = normal(case["seed"], *case["shape"]), normal(case["seed"], filters, case["shape"][1], *kernel)
        b = normal(case["seed"], filters) if bias else None
        x_placed = backend.place(x, case["layout"])
        y = backend.run("convolution", x_placed, w, b, stride, pad)
        expected = oracle.convolution(x, w, b, stride, pad)
        assert_close(y, expected, backend.dtype)
        assert_image(y)

        dy = normal(case["seed"] + 1, *y.shape)
        grads = backend.run(
            "convolution_grad", x_placed, w, backend.place(dy, case["layout"]), stride, pad, need_dx, need_db
        )
        assert [grad is not None for grad in grads] == [need_dx, True, need_db]
        if need_dx:
            assert_gradient(lambda x: (oracle.convolution(x, w, b, stride, pad) * dy).sum(), x, grads[0], backend.dtype)
            assert_image(grads[0])
        assert_gradient(lambda w: (oracle.convolution(x, w, b, stride, pad) * dy).sum(), w, grads[1], backend.dtype)
        if need_db:
            assert_close(grads[2], dy.sum(axis=(0, 2, 3)), backend.dtype, scale=np.abs(dy).sum())

    @given(case=windowed())
    def test_max_pool(self, backend, case):
        x, window = distinct(case["seed"], *case["shape"]), case["window"]
        x_placed = backend.place(x, case["layout"])
        y, workspace = backend.run("max_pool", x_placed, *window, True)
        assert_close(y, oracle.max_pool(x, *window), backend.dtype)
        assert_image(y)
        same, nothing = backend.run("max_pool", x_placed, *window, False)
        np.testing.assert_array_equal(same, y)
        assert nothing is None

        dy = normal(case["seed"], *y.shape)
        dx = backend.run("max_pool_grad", x_placed, workspace, backend.place(dy, case["layout"]), *window)
        assert_gradient(lambda x: (oracle.max_pool(x, *window) * dy).sum(), x, dx, backend.dtype)
        assert_image(dx)

    def test_the_first_of_equal_maxima_gets_the_gradient(self, backend):
        x = backend.place(np.zeros((1, 16, 5, 5)), "channels last")
        window = (3, 3), (2, 2), (1, 1)
        y, workspace = backend.run("max_pool", x, *window, True)
        dx = backend.run("max_pool_grad", x, workspace, np.ones(y.shape), *window)
        # Windows start at -1, 1, 3: the first pixel inside each is 0, 1, 3.
        expected = np.zeros((5, 5))
        expected[np.ix_([0, 1, 3], [0, 1, 3])] = 1
        np.testing.assert_array_equal(dx, np.broadcast_to(expected, dx.shape))

    @given(case=windowed())
    def test_avg_pool(self, backend, case):
        x, window = normal(case["seed"], *case["shape"]), case["window"]
        x_placed = backend.place(x, case["layout"])
        y = backend.run("avg_pool", x_placed, *window)
        assert_close(y, oracle.avg_pool(x, *window), backend.dtype)
        assert_image(y)

        dy = normal(case["seed"] + 1, *y.shape)
        dx = backend.run("avg_pool_grad", x_placed, backend.place(dy, case["layout"]), *window)
        assert_gradient(lambda x: (oracle.avg_pool(x, *window) * dy).sum(), x, dx, backend.dtype)
        assert_image(dx)

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
    def test_lrn(self, backend, batch, channels, size, alpha, beta, k, layout, train):
        x, constants = normal(size, batch, channels, 3, 2), (size, alpha, beta, k)
        x_placed = backend.place(x, layout)
        y, workspace = backend.run("lrn", x_placed, *constants, train)
        assert_close(y, oracle.lrn(x, *constants), backend.dtype)
        assert_image(y)
        if not train:
            return
        dy = normal(size + 1, *y.shape)
        dx = backend.run("lrn_grad", x_placed, workspace, backend.place(dy, layout), *constants)
        assert_gradient(lambda x: (oracle.lrn(x, *constants) * dy).sum(), x, dx, backend.dtype)
        assert_image(dx)

    @given(rows=BATCHES, columns=st.integers(2, 40), layout=st.sampled_from(["rows", "gaps"]), train=st.booleans())
    def test_layer_norm(self, backend, rows, columns, layout, train):
        x, scale, shift = normal(1, rows, columns), normal(2, columns), normal(3, columns)
        x_placed = backend.place(x, layout)
        y, workspace = backend.run("layer_norm", x_placed, scale, shift, 0.1, train)
        assert_close(y, oracle.layer_norm(x, scale, shift, 0.1), backend.dtype)
        if not train:
            assert workspace is None
            return
        dy = normal(4, rows, columns)
        grads = backend.run("layer_norm_grad", x_placed, workspace, backend.place(dy, layout), scale, 0.1)
        for index, (at, grad) in enumerate(zip((x, scale, shift), grads, strict=True)):

            def value(moved: np.ndarray, index: int = index) -> float:
                given = [x, scale, shift]
                given[index] = moved
                return (oracle.layer_norm(*given, 0.1) * dy).sum()

            assert_gradient(value, at, grad, backend.dtype)

    @given(
        batch=BATCHES,
        inputs=st.integers(1, 70),
        outputs=st.integers(1, 40),
        bias=st.booleans(),
        transpose=st.booleans(),
        needs=st.tuples(st.booleans(), st.booleans()),
        layout=st.sampled_from(["rows", "gaps", "reversed"]),
    )
    def test_inner_product(self, backend, batch, inputs, outputs, bias, transpose, needs, layout):
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
    def test_channel_kernels(self, backend, batch, channels, image, layout):
        shape = (batch, channels, 3, 4) if image else (batch, channels)
        along = (slice(None), None, None) if image else ()
        axes = (0, 2, 3) if image else (0,)
        x, y = normal(1, *shape), normal(2, *shape)
        scale, shift = normal(3, channels), normal(4, channels)
        x_placed, y_placed = backend.place(x, layout), backend.place(y, "rows")
        exact_x, exact_y = (backend.host(one).astype(np.float64) for one in (x_placed, y_placed))
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
        for found, expected in zip(sums, (exact_y.sum(axis=axes), (exact_y * standard).sum(axis=axes)), strict=True):
            assert found.dtype == np.float64
            np.testing.assert_allclose(found, expected, rtol=0, atol=100 * ROUNDING[backend.dtype])
        grad = backend.run("batch_norm_grad", x_placed, y_placed, scale, shift, exact_mean)
        assert_close(grad, scale[along] * (y + shift[along] * x + exact_mean[along]), backend.dtype)
        inverse, ops = 1 / np.sqrt(exact_variance + 1e-5), backend.ops
        own, other = backend.asarray(scale), backend.asarray(shift)
        doubles = [ops.asarray(one) for one in (exact_mean, exact_variance, *sums)]
        slope = -inverse * sums[1] / count
        slopes = backend.host(ops.batch_norm_slopes(own, *doubles[:2], doubles[2:], count, 1e-5))
        for found, wanted in zip(slopes, (scale * inverse, slope, -sums[0] / count - slope * exact_mean), strict=True):
            assert_close(found.astype(backend.dtype), wanted, backend.dtype)
        affine = backend.host(ops.batch_norm_affine(own, other, *doubles[:2], 1e-5))
        for found, wanted in zip(affine, (scale * inverse, shift - exact_mean * scale * inverse), strict=True):
            assert_close(found.astype(backend.dtype), wanted, backend.dtype)
        moved = backend.host(ops.moving_average(own, doubles[1], 0.25, 1.5))
        assert moved.dtype == backend.dtype
        assert_close(moved, 0.75 * scale + 0.375 * exact_variance, backend.dtype)
        affine = backend.run("channel_affine", x_placed, scale, shift)
        assert_close(affine, x * scale[along] + shift[along], backend.dtype)
        rectified = backend.run("rectified_affine", x_placed, scale, shift)
        assert_close(rectified, np.maximum(x * scale[along] + shift[along], 0), backend.dtype)
        rectified = backend.run("rectified_affine", x_placed, scale, shift, y_placed)
        assert_close(rectified, np.maximum(x * scale[along] + shift[along] + y, 0), backend.dtype)

    @given(
        shape=st.one_of(
            st.tuples(BATCHES, CHANNELS, st.integers(1, 5), st.integers(1, 5)), st.tuples(BATCHES, CHANNELS)
        ),
        layouts=st.tuples(LAYOUTS, LAYOUTS),
        slope=st.sampled_from([0.0, 0.1]),
    )
    def test_elementwise_kernels(self, backend, shape, layouts, slope):
        x = 3 * normal(1, *shape)
        x += 0.01 * np.sign(x)  # away from the corner of relu
        other = normal(2, *shape)
        first, second = backend.place(x, layouts[0]), backend.place(other, layouts[1])
        outer, inner = 1.7159047, 0.66666667
        for kernel, constants, formula in [
            ("relu", (slope,), lambda x: np.where(x > 0, x, slope * x)),
            ("sigmoid", (), lambda x: 1 / (1 + np.exp(-x))),
            ("tanh", (), np.tanh),
            ("tanh", (outer, inner), lambda x: outer * np.tanh(inner * x)),
        ]:
            y = backend.run(kernel, first, *constants)
            assert_close(y, formula(x), backend.dtype)
            assert_same_layout(y, first)
            dx = backend.run(f"{kernel}_grad", y, second, *constants)
            # The derivative from a float32 output is off by the rounding of 1 - y², at most 6e-8 of the largest dy.
            slopes = (formula(x + 1e-6) - formula(x - 1e-6)) / 2e-6
            np.testing.assert_allclose(dx, slopes * other, rtol=1e-4, atol=1e-5 if other.size else 0)
            assert dx.dtype == backend.dtype
            assert_same_layout(dx, first)
        for kernel, expected in [("add", x + other), ("multiply", x * other)]:
            result = backend.run(kernel, first, second)
            assert_close(result, expected, backend.dtype)
            assert_same_layout(result, first)

    def test_activations_do_not_overflow(self, backend):
        x = np.array([[-1e4, -100.0, 0.0, 100.0, 1e4]])
        np.testing.assert_allclose(backend.run("sigmoid", x), [[0, 0, 0.5, 1, 1]], atol=1e-30)
        np.testing.assert_allclose(backend.run("tanh", x), [[-1, -1, 0, 1, 1]])
        np.testing.assert_allclose(backend.run("softmax", x), [[0, 0, 0, 0, 1]], atol=1e-30)

    @given(rows=BATCHES, columns=st.integers(1, 40), layout=st.sampled_from(["rows", "gaps", "reversed"]))
    def test_softmax(self, backend, rows, columns, layout):
        x, dy = 5 * normal(1, rows, columns), normal(2, rows, columns)
        y = backend.run("softmax", backend.place(x, layout))
        assert_close(y, oracle.softmax(x), backend.dtype)
        dx = backend.run("softmax_grad", y, backend.place(dy, layout))
        assert_gradient(lambda x: (oracle.softmax(x) * dy).sum(), x, dx, backend.dtype)

    @given(seed=SEEDS)
    def test_bernoulli(self, backend, seed):
        rng = np.random.default_rng(seed)
        p = rng.random((4, 30)).astype(backend.dtype)
        uniform = rng.random((4, 30), dtype=np.float32)
        p[0, :3] = 0, 1, uniform[0, 2]
        sample = backend.host(backend.ops.bernoulli(p, uniform))
        assert sample.dtype == p.dtype
        np.testing.assert_array_equal(sample, np.where(uniform < p, 1, 0))

    @given(ratio=st.floats(0, 0.99), seed=SEEDS)
    def test_dropout_mask(self, backend, ratio, seed):
        uniform = np.random.default_rng(seed).random((4, 30), dtype=np.float32)
        uniform[0, 0] = ratio
        mask = backend.host(backend.ops.dropout_mask(uniform, ratio))
        assert mask.dtype == np.float32
        np.testing.assert_array_equal(mask, np.where(uniform >= np.float32(ratio), np.float32(1 / (1 - ratio)), 0))


class TestArrays:
    @given(
        shape=st.one_of(
            st.tuples(BATCHES, st.integers(1, 4), st.integers(1, 6), st.integers(1, 6)), st.tuples(BATCHES, CHANNELS)
        ),
        dtype=st.sampled_from([np.uint8, np.int16, np.float32, np.float64]),
        kinds=st.tuples(*[st.sampled_from(["none", "number", "channel", "record"])] * 2),
    )
    def test_images(self, backend, shape, dtype, kinds):
        rng = np.random.default_rng(7)
        records = rng.integers(0, 256, shape).astype(dtype)

        def statistic(kind: str, low: float) -> Any:
            full = shape[1:]
            sizes = {"number": (), "channel": (full[0], *(1,) * (len(full) - 1)), "record": full}
            return None if kind == "none" else rng.uniform(low, 100, sizes[kind])

        mean, std = statistic(kinds[0], 0), statistic(kinds[1], 1)
        for scale in (1.0, 1 / 128):
            result = backend.host(backend.ops.images(records, scale, mean, std))
            expected = (records - (0.0 if mean is None else mean)) / (1 if std is None else std) * scale
            assert_close(result, expected, np.float32)
            if len(shape) == 4:
                assert_image(result)
        assert not np.shares_memory(result, records)

    @given(shape=st.tuples(BATCHES, CHANNELS, st.integers(1, 5), st.integers(1, 5)), layout=LAYOUTS)
    def test_flatten_gives_the_logical_order(self, backend, shape, layout):
        x = normal(1, *shape)
        flat = backend.run("flatten", backend.place(x, layout))
        np.testing.assert_array_equal(flat, x.astype(backend.dtype).reshape(shape[0], shape[1] * shape[2] * shape[3]))
        back = backend.run("unflatten", flat, shape)
        np.testing.assert_array_equal(back, x.astype(backend.dtype))
        assert_image(back)
        assert backend.run("flatten", flat).shape == flat.shape
        assert backend.run("unflatten", flat, flat.shape).shape == flat.shape

    def test_asarray_and_back(self, backend):
        values = np.arange(6, dtype=backend.dtype).reshape(2, 3)
        np.testing.assert_array_equal(backend.ops.to_numpy(backend.ops.asarray(values)), values)
        np.testing.assert_array_equal(backend.ops.to_numpy(backend.ops.asarray([[1, 2]])), [[1, 2]])

    def test_a_window_larger_than_the_image_is_refused(self):
        with pytest.raises(AssertionError, match="a window of 4 does not fit 3 pixels"):
            output_sizes((1, 1, 3, 3), (4, 1), (1, 1), (0, 0))


def assert_image(x: Any) -> None:
    """Check that an image lies channels-last in memory."""
    assert x.transpose(0, 2, 3, 1).flags.c_contiguous


def assert_same_layout(result: Any, x: Any) -> None:
    """Check that a result lies like the argument it came from, where that one is without gaps."""
    if x.flags.c_contiguous:
        assert result.flags.c_contiguous
    elif x.ndim == 4 and x.transpose(0, 2, 3, 1).flags.c_contiguous:
        assert_image(result)

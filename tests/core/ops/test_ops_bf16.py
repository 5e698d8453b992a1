"""Kernels in bfloat16: within its rounding of float64, in any shape and layout, from float32 and from bfloat16.

They are those of this processor, if it has bfloat16; tests/addons/gpu/test_gpu_training_bf16.py has those of GPUs.
"""

import pickle
from typing import Any

import numpy as np
import pytest
from hypothesis import example
from hypothesis import strategies as st

from dsinga.base import buffers
from dsinga.ops import get_ops
from dsinga.ops.types import BFLOAT16
from dsinga.testing import kernel_formulas as formulas
from dsinga.testing.kernel_backend import (
    BATCHES,
    CHANNELS,
    WITH_WORKSPACE,
    KernelBackend,
    axes_in_memory,
    given,
    normal,
    windowed,
)
from tests.support.programs import python
from tests.support.refusals import refused

ROUNDOFF = 2.0**-8  # half a unit in the last of 8 digits, for a number just above a power of two
SUMS = 1e-5  # of float32, for some hundred terms
MARGIN = 64  # numbers on each side of an array

on_processor = pytest.mark.skipif(
    get_ops().name != "onednn" or bool(get_ops().lacks_bf16()), reason="the processor has no bfloat16"
)


class OnHost:
    """The kernels of a device on arrays of the host; workspaces stay as they are."""

    def __init__(self, ops: Any):
        self._ops, self._backend = ops, KernelBackend(lambda: ops, BFLOAT16)

    def __getattr__(self, kernel: str) -> Any:
        run = getattr(self._ops, kernel)
        return lambda *arguments: self._call(kernel, run, *arguments)

    def _call(self, kernel: str, run: Any, *arguments: Any) -> Any:
        result = run(*map(self._place, arguments))
        if kernel in WITH_WORKSPACE:
            return (*map(self._backend.host, result[:-1]), result[-1])
        return self._backend.host(result)

    def _place(self, value: Any) -> Any:
        if type(value) in (list, tuple):
            return type(value)(map(self._place, value))
        if type(value) is not np.ndarray:
            return value
        order = axes_in_memory(value)
        placed = self._ops.asarray(np.ascontiguousarray(value.transpose(order)))
        return placed.transpose(np.argsort(order).tolist())


@pytest.fixture(scope="module", params=[pytest.param("onednn", marks=on_processor)])
def ops() -> Any:
    return get_ops().for_worker(precision="bf16")


def rounded(x: np.ndarray) -> np.ndarray:
    """Return float64 numbers that bfloat16 has."""
    return x.astype(np.float32).astype(BFLOAT16).astype(np.float64)


def assert_near(actual: np.ndarray, exact: np.ndarray, roundings: int = 1, scale: float | None = None) -> None:
    """Assert that a result differs from the exact one by so many roundings to bfloat16, 0 for a float32 result."""
    assert actual.dtype == (BFLOAT16 if roundings else np.float32)
    assert actual.shape == exact.shape
    if exact.size:
        bound = roundings * ROUNDOFF * np.abs(exact) + SUMS * max(np.abs(exact).max() if scale is None else scale, 1e-3)
        assert (np.abs(actual.astype(np.float64) - exact) <= bound).all()


def place(values: np.ndarray, layout: str, dtype: np.dtype) -> np.ndarray:
    """Return ``values`` in a layout and dtype, with NaN in the memory on both sides: a kernel must not read there."""
    array = KernelBackend(get_ops, np.float32).place(values, layout).astype(dtype)
    order = axes_in_memory(array)
    memory = np.full(array.size + 2 * MARGIN, np.nan, dtype)
    placed = memory[MARGIN:-MARGIN].reshape([array.shape[axis] for axis in order]).transpose(np.argsort(order))
    placed[...] = array
    placed.flags.writeable = False
    return placed


DTYPES = st.sampled_from([np.dtype(np.float32), BFLOAT16])


NARROW = {"shape": (4, 1, 5, 1), "window": ((3, 1), (2, 3), (2, 0)), "layout": "channels last", "seed": 0}
LEFT_OVER = {"shape": (2, 16, 1, 11), "window": ((1, 4), (1, 7), (0, 3)), "layout": "channels last", "seed": 0}


@given(case=windowed(), filters=CHANNELS, bias=st.booleans(), x_dtype=DTYPES, dy_dtype=DTYPES)
@example(case=NARROW, filters=1, bias=True, x_dtype=BFLOAT16, dy_dtype=BFLOAT16)
@example(case=LEFT_OVER, filters=5, bias=True, x_dtype=BFLOAT16, dy_dtype=BFLOAT16)
def test_convolution(ops, case, filters, bias, x_dtype, dy_dtype):
    kernel, stride, pad = case["window"]
    x = rounded(normal(case["seed"], *case["shape"]))
    w = rounded(normal(case["seed"], filters, case["shape"][1], *kernel))
    b = normal(case["seed"], filters).astype(np.float32) if bias else None
    x_placed, w_placed = place(x, case["layout"], x_dtype), w.astype(np.float32)
    factor = ops.as_factor(w_placed)  # may be given in place of w
    y = ops.convolution(x_placed, factor, b, stride, pad)
    assert y.tobytes() == ops.convolution(x_placed, w_placed, b, stride, pad).tobytes()
    exact = formulas.convolution(x, w, b, stride, pad)
    # A device adds up the rounded images of each depth of a volume's kernel.
    wide = ROUNDOFF / SUMS if isinstance(ops, OnHost) and x.ndim == 5 else 1
    if x.size:
        assert_near(y, exact, scale=wide * np.abs(x).max() * np.abs(w).sum())
        rectified = ops.rectified_convolution(x_placed, factor, b, stride, pad)
        np.testing.assert_array_equal(rectified.astype(np.float32), np.maximum(y.astype(np.float32), 0))

    dy = rounded(normal(case["seed"] + 1, *exact.shape))
    dx, dw, db = ops.convolution_grad(x_placed, w_placed, place(dy, case["layout"], dy_dtype), stride, pad, True, True)
    exact_ops = get_ops("numpy")
    exact_dx, exact_dw, exact_db = exact_ops.convolution_grad(x, w, dy, stride, pad, True, True)
    assert dx.dtype == x_dtype
    roundings = int(x_dtype == BFLOAT16)
    if isinstance(ops, OnHost):  # whose library has results in bfloat16 only
        dx, roundings = dx.astype(BFLOAT16), 1
    assert_near(dx, exact_dx, roundings, scale=wide * np.abs(dy).max(initial=0) * np.abs(w).sum())
    assert_near(dw, exact_dw, 0, scale=np.abs(dy).sum() * np.abs(x).max(initial=0))
    assert_near(db, exact_db, 0, scale=np.abs(dy).sum())


@given(case=windowed(), channels=st.sampled_from([1, 3, 16]), bias=st.booleans(), x_dtype=DTYPES, dy_dtype=DTYPES)
def test_grouped_convolution(ops, case, channels, bias, x_dtype, dy_dtype):
    (batch, groups, *size), (kernel, stride, pad) = case["shape"], case["window"]
    spacing = stride, pad, (1,) * len(size), groups
    x = rounded(normal(case["seed"], batch, groups * channels, *size))
    w = rounded(normal(case["seed"], groups * channels, channels, *kernel))
    b = normal(case["seed"], len(w)).astype(np.float32) if bias else None
    x_placed, w_placed, exact_ops = place(x, case["layout"], x_dtype), w.astype(np.float32), get_ops("numpy")
    y, exact = (
        ops.grouped_convolution(x_placed, w_placed, b, *spacing),
        exact_ops.grouped_convolution(x, w, b, *spacing),
    )
    dy = rounded(normal(case["seed"] + 1, *exact.shape))
    gradients = ops.grouped_convolution_grad(
        x_placed, w_placed, place(dy, case["layout"], dy_dtype), *spacing, True, True
    )
    dx, dw, db = exact_ops.grouped_convolution_grad(x, w, dy, *spacing, True, True)
    if x.size:
        assert_near(y, exact, scale=np.abs(x).max() * np.abs(w).sum())
    assert_near(gradients[0], dx, int(x_dtype == BFLOAT16), scale=np.abs(dy).max(initial=0) * np.abs(w).sum())
    assert_near(gradients[1], dw, 0, scale=np.abs(dy).sum() * np.abs(x).max(initial=0))
    assert_near(gradients[2], db, 0, scale=np.abs(dy).sum())


@given(case=windowed(), mean=st.booleans(), dy_dtype=DTYPES)
def test_pooling(ops, case, mean, dy_dtype):
    exact_ops = get_ops("numpy")
    if not all(case["shape"]):
        return
    x = rounded(normal(case["seed"], *case["shape"]))
    x_placed, window = place(x, case["layout"], BFLOAT16), case["window"]
    if mean:
        y, exact = ops.avg_pool(x_placed, *window), formulas.avg_pool(x, *window)
    else:
        y, workspace = ops.max_pool(x_placed, *window, True)
        exact, exact_workspace = exact_ops.max_pool(x, *window, True)
    assert_near(y, exact)
    dy = rounded(normal(case["seed"], *exact.shape))
    dy_placed = place(dy, case["layout"], dy_dtype)
    if mean:
        dx, exact_dx = ops.avg_pool_grad(x_placed, dy_placed, *window), exact_ops.avg_pool_grad(x, dy, *window)
    else:
        dx = ops.max_pool_grad(x_placed, workspace, dy_placed, *window)
        exact_dx = exact_ops.max_pool_grad(x, exact_workspace, dy, *window)
    # A pixel's gradient is a sum over windows, which the library rounds after each of them.
    assert_near(dx, exact_dx, 3, scale=5 * np.abs(dy).max() * ROUNDOFF / SUMS)


@given(rows=BATCHES, inputs=CHANNELS, outputs=CHANNELS, transpose=st.booleans(), bias=st.booleans(), dtype=DTYPES,
       dy_dtype=DTYPES, seed=st.integers(0, 99))  # fmt: skip
def test_inner_product(ops, rows, inputs, outputs, transpose, bias, dtype, dy_dtype, seed):
    x, w = rounded(normal(seed, rows, inputs)), rounded(normal(seed, outputs, inputs))
    b = normal(seed, outputs).astype(np.float32) if bias else None
    w_placed = np.ascontiguousarray(w.T if transpose else w, np.float32)
    w_placed = ops.as_factor(w_placed)
    y = ops.inner_product(x.astype(dtype), w_placed, b, transpose)
    exact = x @ w.T + (0 if b is None else b)
    assert_near(y, exact, 0, scale=np.abs(w).sum())
    y_rounded = ops.rounded_inner_product(x.astype(dtype), w_placed, b, transpose)  # float32 on GPUs
    assert_near(y_rounded, exact, int(y_rounded.dtype == BFLOAT16), scale=np.abs(w).sum())
    np.testing.assert_array_equal(
        ops.rectified_inner_product(x.astype(dtype), w_placed, b, transpose), np.maximum(y, 0)
    )
    dy = rounded(normal(seed + 1, rows, outputs))
    dx, dw, db = ops.inner_product_grad(x.astype(dtype), w_placed, dy.astype(dy_dtype), transpose, True, True)
    assert_near(dx, dy @ w, int(dtype == BFLOAT16), scale=np.abs(w).sum())
    exact_dw = dy.T @ x
    assert_near(dw, exact_dw.T if transpose else exact_dw, 0, scale=np.abs(dy).sum())
    assert_near(db, dy.sum(axis=0), 0, scale=np.abs(dy).sum())


def test_a_product_is_computed_block_by_block_of_a_large_weight(ops):
    rows, columns = 700, 3000  # blocks of 160 rows, the last one shorter
    x, w = rounded(normal(1, 4, columns)), rounded(normal(2, rows, columns))
    y = ops.inner_product(x.astype(np.float32), w.astype(np.float32), None)
    assert_near(y, x @ w.T, 0, scale=300)
    dy = rounded(normal(3, 4, rows))
    dx, _, _ = ops.inner_product_grad(
        x.astype(np.float32), w.astype(np.float32), dy.astype(BFLOAT16), False, True, True
    )
    assert_near(dx, dy @ w, 0, scale=300)


def test_many_rows_are_multiplied_by_a_weight_that_is_rounded_whole(ops):
    x, w = rounded(normal(1, 300, 40)), rounded(normal(2, 700, 40))
    for product in (ops.inner_product, ops.rounded_inner_product):
        y = product(x.astype(np.float32), w.astype(np.float32), np.ones(700, np.float32))
        assert_near(y, x @ w.T + 1, int(y.dtype == BFLOAT16), scale=300)
    dx, _, _ = ops.inner_product_grad(y.astype(BFLOAT16), w.T.astype(np.float32), x.astype(BFLOAT16), False, True, True)
    assert_near(dx, x @ w.T, scale=300)
    y = ops.inner_product(x.astype(np.float32), np.ascontiguousarray(w.T, np.float32), None, True)
    assert_near(y, x @ w.T, 0, scale=300)


@pytest.mark.parametrize("steps", [7, 160])  # products of few steps take float32 factors
def test_attention(ops, steps):
    exact_ops, heads, factor = get_ops("numpy"), 2, 0.25
    query, keys, values, dy = (rounded(normal(seed, 2, steps, 96)) for seed in range(4))
    visible = np.tile(np.minimum(np.arange(1, steps + 1), 150), (2, 1))
    q, k, v, dy_placed = (x.astype(np.float32) for x in (query, keys, values, dy))
    weights, workspace = ops.attention_weights(q, k, heads, factor, visible, None)
    exact, exact_workspace = exact_ops.attention_weights(query, keys, heads, factor, visible, None)
    assert_near(weights, exact, 0)
    assert_close(ops.weighted_means(weights, v), exact_ops.weighted_means(exact, values), roundings=1)
    dweights, dvalues = ops.weighted_means_grad(weights, v, dy_placed)
    exact_dweights, exact_dvalues = exact_ops.weighted_means_grad(exact, values, dy)
    assert_near(dweights, exact_dweights, 0, scale=50)
    assert_close(dvalues, exact_dvalues, roundings=1)
    grads = ops.attention_weights_grad(q, k, weights, workspace, dweights, factor, None)
    exact_grads = exact_ops.attention_weights_grad(query, keys, exact, exact_workspace, exact_dweights, factor, None)
    for actual, exact_grad in zip(grads[:2], exact_grads[:2], strict=True):
        assert_close(actual, exact_grad, roundings=1)


def assert_close(actual: np.ndarray, exact: np.ndarray, roundings: int) -> None:
    """Assert that float32 sums differ from the exact ones by at most so many roundings of a factor, in the norm."""
    assert actual.dtype == np.float32
    assert np.linalg.norm(actual - exact) <= roundings * ROUNDOFF * np.linalg.norm(exact)


@pytest.mark.parametrize("channels", [3, 16, 100, 300])
@pytest.mark.parametrize("size", [(4, 4), (16, 12)])
def test_batch_normalisation(ops, channels, size):
    exact_ops = get_ops("numpy")
    x, dy = (rounded(normal(seed, 6, channels, *size) + seed) for seed in (0, 1))
    placed, dy_placed = (place(values, "channels last", BFLOAT16) for values in (x, dy))
    mean, variance = ops.channel_moments(placed)
    np.testing.assert_allclose(mean, x.mean(axis=(0, 2, 3)), atol=1e-5)
    np.testing.assert_allclose(variance, x.var(axis=(0, 2, 3)), atol=1e-5)
    sums, exact_sums = (o.batch_norm_sums(a, b, mean, variance, 1e-5) for o, a, b in
                        ((ops, placed, dy_placed), (exact_ops, x, dy)))  # fmt: skip
    for actual, exact in zip(sums, exact_sums, strict=True):
        np.testing.assert_allclose(actual, exact, atol=SUMS * np.abs(dy).sum() / channels)
    scale, shift = (normal(seed, channels).astype(np.float32) for seed in (2, 3))
    of_channel = (slice(None), None, None)
    affine = x * scale[of_channel] + shift[of_channel]
    assert_near(ops.channel_affine(placed, scale, shift), affine, scale=10)
    assert_near(ops.rectified_affine(placed, scale, shift), np.maximum(affine, 0), scale=10)
    for dtype in (np.float32, BFLOAT16):
        total = np.maximum(affine + dy, 0)
        assert_near(ops.rectified_affine(placed, scale, shift, dy_placed.astype(dtype)), total, scale=10)
    dx = scale[of_channel] * (dy + scale[of_channel] * x + shift[of_channel])
    assert_near(ops.batch_norm_grad(placed, dy_placed, scale, scale, shift), dx, scale=30)


@pytest.mark.parametrize("shape", [(6, 3, 4, 5), (4, 16, 8, 8), (3, 40, 5, 3), (70, 100)])
@pytest.mark.parametrize("needs", [(True, True), (True, False), (False, True)])
def test_batch_normalisation_of_a_whole_batch(ops, shape, needs):
    """With the rectifier after it, and what is added in between; the first channel is far from 0."""
    exact_ops, channels = get_ops("numpy"), shape[1]
    x, dy = (rounded(normal(seed, *shape)) for seed in (0, 1))
    x[:, 0] = rounded(x[:, 0] + 100)
    params = [normal(seed, channels).astype(np.float32) for seed in (2, 3, 4)]
    params.append(np.abs(params[0]))
    placed, dy_placed = (place(values, "channels last", BFLOAT16) for values in (x, dy))
    constants = 0.25, 1.5, 1e-5
    moments, affine, moved = ops.batch_norm_training(placed, params, *constants)
    exact_params = [param.astype(np.float64) for param in params]
    exact_moments, exact_affine, exact_moved = exact_ops.batch_norm_training(x, exact_params, *constants)
    for actual, exact in zip((*moments, *affine, *moved), (*exact_moments, *exact_affine, *exact_moved), strict=True):
        np.testing.assert_allclose(actual, exact, rtol=2e-3, atol=1e-4)
    y = ops.rectified_affine(placed, *affine)
    size = x.size // channels
    arguments = params[0], moments, size, 1e-5, needs
    dx, dother, for_params = ops.rectified_batch_norm_grad(placed, y, dy_placed, *arguments)
    before = np.where(y.astype(np.float64) > 0, dy, 0)
    exact_moments = tuple(array.astype(np.float64) for array in moments)
    exact_dx, _, exact_for_params = exact_ops.rectified_batch_norm_grad(
        x, y.astype(np.float64), dy, exact_params[0], exact_moments, size, 1e-5, needs
    )
    for actual, exact in zip(for_params, exact_for_params, strict=True):
        np.testing.assert_allclose(actual, exact, rtol=2e-3, atol=2e-2)
    assert [dx is not None, dother is not None] == list(needs)
    if needs[0]:
        assert_near(dx, exact_dx, 2, scale=2000)
    if needs[1]:
        np.testing.assert_array_equal(dother.astype(np.float64), before)


def test_a_mean_far_from_zero_does_not_hide_the_variance(ops):
    x = rounded(normal(0, 4, 8, 16, 16) + 100)
    mean, variance = ops.channel_moments(place(x, "channels last", BFLOAT16))
    np.testing.assert_allclose(mean, x.mean(axis=(0, 2, 3)), rtol=1e-6)
    np.testing.assert_allclose(variance, x.var(axis=(0, 2, 3)), rtol=1e-4)


@pytest.mark.parametrize(("local_size", "channels"), [(1, 16), (3, 16), (5, 16), (5, 17), (5, 40)])
def test_local_response_normalisation(ops, local_size, channels):
    exact_ops, constants = get_ops("numpy"), (local_size, 1.0, 0.75, 1.0)
    x, dy = rounded(normal(0, 2, channels, 5, 4)), rounded(normal(1, 2, channels, 5, 4))
    placed = place(x, "channels last", BFLOAT16)
    y, workspace = ops.lrn(placed, *constants, True)
    exact, exact_workspace = exact_ops.lrn(x, *constants, True)
    assert_near(y, exact, 2)
    dx = ops.lrn_grad(placed, workspace, dy.astype(np.float32), *constants)
    # The library keeps the norm, and adds two terms, in bfloat16.
    assert_near(dx, exact_ops.lrn_grad(x, exact_workspace, dy, *constants), 4, scale=400)


@pytest.mark.parametrize("slope", [0.0, 0.3])
def test_rectifiers_and_sums_keep_bfloat16(ops, slope):
    x, dy = rounded(normal(0, 3, 7)), rounded(normal(1, 3, 7))
    y = ops.relu(x.astype(BFLOAT16), slope)
    assert_near(y, np.where(x > 0, x, slope * x))
    for dtype in (np.float32, BFLOAT16):
        assert_near(ops.relu_grad(y, dy.astype(dtype), slope), np.where(x > 0, dy, slope * dy))
        assert_near(ops.add(x.astype(BFLOAT16), dy.astype(dtype)), x + dy)
    exact_ops = get_ops("numpy")
    assert_near(ops.gelu(x.astype(BFLOAT16)), exact_ops.gelu(x))
    assert_near(ops.gelu_grad(x.astype(BFLOAT16), dy.astype(BFLOAT16)), exact_ops.gelu_grad(x, dy))


@pytest.mark.parametrize("cell", ["rnn", "gru", "lstm"])
def test_recurrent_layers_differ_from_float32_by_their_rounding(ops, cell):
    shapes = formulas.param_shapes(cell, 24, 32, True)
    params = [0.2 * normal(index, *shape).astype(np.float32) for index, shape in enumerate(shapes)]
    x, dy = normal(7, 5, 9, 24).astype(np.float32), normal(8, 5, 9, 32).astype(np.float32)
    results = []
    for backend in (ops, get_ops("numpy")):
        y, last, workspace = backend.recurrent(cell, x, params, None, None, False, True)
        dx, _, gradients = backend.recurrent_grad(cell, params, workspace, dy, True, False)
        results.append([y, last, dx, *gradients])
    for rounded_, exact in zip(*results, strict=True):
        assert rounded_.dtype == np.float32
        assert 0 < np.linalg.norm(rounded_ - exact) <= 0.01 * np.linalg.norm(exact)


def test_the_same_numbers_give_the_same_bits_in_every_call(ops):
    x, w = place(normal(0, 8, 16, 9, 9), "channels last", BFLOAT16), normal(1, 8, 16, 3, 3).astype(np.float32)
    first, second = (ops.convolution(x, w, None, (1, 1), (1, 1)) for _ in range(2))
    assert first.tobytes() == second.tobytes()


def test_infinite_numbers_and_nan_stay(ops):
    x = np.array([[np.inf, -np.inf, np.nan, 3.4e38]], np.float32)
    np.testing.assert_array_equal(ops.cast_like(x, x.astype(BFLOAT16)).astype(np.float32)[0, :3], x[0, :3])
    assert np.isinf(ops.cast_like(x, x.astype(BFLOAT16)).astype(np.float32)[0, 3])  # above the largest bfloat16


@on_processor
def test_a_processor_without_bfloat16_computes_in_float32_and_says_so():
    script = """
import logging, numpy as np
logging.basicConfig()
from dsinga.ops import get_ops
ops = get_ops().for_worker(precision="bf16")
print(ops.precision, ops.inner_product(np.full((1, 1), 1.001, "f"), np.ones((1, 1), "f"), None)[0, 0])
"""
    done = python("-c", script, environment={"ONEDNN_MAX_CPU_ISA": "AVX512_CORE"})
    assert done.stdout == "float32 1.001\n"
    assert "precision kBF16 computes in float32 here: the processor has neither AVX512_BF16 nor AMX" in done.stderr


@on_processor
def test_other_precisions_are_refused():
    refused(lambda: get_ops().for_worker(precision="tf32"), "tf32 needs a GPU")


@on_processor
def test_an_unpickled_array_is_float32_to_every_kernel():
    """Its dtype is equal to numpy's float32, but another object."""
    x, w, one = normal(0, 64, 40).astype(np.float32), normal(1, 8, 40).astype(np.float32), np.ones(40, np.float32)
    sent = pickle.loads(pickle.dumps(x))
    for ops in (get_ops(), get_ops().for_worker(precision="bf16")):
        np.testing.assert_array_equal(ops.channel_affine(sent, one, one), ops.channel_affine(x, one, one))
        np.testing.assert_array_equal(ops.inner_product(sent, w, None), ops.inner_product(x, w, None))


def test_sums_of_an_odd_number_of_rows_are_right(ops):
    x = place(normal(0, 25, 256, 5, 5), "channels last", BFLOAT16)  # 625 rows, of which no 32 are a block
    mean, variance = ops.channel_moments(x)
    np.testing.assert_allclose(mean, x.astype(np.float64).mean(axis=(0, 2, 3)), atol=1e-5)
    np.testing.assert_allclose(variance, x.astype(np.float64).var(axis=(0, 2, 3)), atol=1e-5)


@on_processor
def test_codes_are_no_numbers():
    """As in float32, so that the layer says that it has got codes."""
    product = (
        get_ops()
        .for_worker(precision="bf16")
        .inner_product(np.array([[1, 2]], np.int32), np.ones((3, 2), np.float32), None)
    )
    assert product.dtype == np.float64
    np.testing.assert_array_equal(product, 3)


@pytest.mark.parametrize(
    "bases", [{}, buffers.few_bases([buffers.ONE_BASE * 2])], ids=["pool", "a thread's own memory"]
)
def test_a_source_of_several_layers_is_rounded_once(ops, bases):
    with buffers.use_bases(bases):
        x = buffers.empty((512, 1024))
        x[...] = 1
        assert ops.as_source(x[:256]) is not ops.as_source(x[:])
        rounded = ops.as_source(x[:])
        assert ops.as_source(x[:]) is rounded
        del x  # whose memory the next array gets
        x = buffers.empty((512, 1024))
        x[...] = 2
        assert ops.as_source(x).astype(np.float32)[0, 0] == 2

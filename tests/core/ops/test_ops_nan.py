"""NaN stays NaN in the kernels of the CPU backends: what a rectifier made 0 would be a prediction like any other."""

from typing import Any

import numpy as np
import pytest

from dsinga.ops import Ops
from dsinga.ops.layout import einsum
from dsinga.ops.types import BFLOAT16
from tests.core.ops.test_ops_bf16 import place
from tests.core.ops.test_ops_products import ops as ops

SHAPES = [(4, 7), (64, 300), (3, 5, 6, 7), (2, 32, 9, 8), (2, 3, 4, 5, 6)]


def images(ops: Ops, *shape: int) -> Any:
    """Return random numbers in the dtype that the backend has for images, channels last, the second channel NaN."""
    x = np.random.default_rng(0).standard_normal(shape)
    x[:, 1] = np.nan
    return place(x, "channels last", BFLOAT16 if ops.precision == "bf16" else np.dtype(np.float32))


def is_nan(x: Any) -> Any:
    return np.isnan(np.asarray(x).astype(np.float32))


@pytest.mark.parametrize("kernel", ["relu", "sigmoid", "tanh", "gelu", "silu", "hard_swish", "add", "multiply"])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_each_nan_stays(ops: Ops, kernel: str, shape: tuple[int, ...]):
    dtype = BFLOAT16 if ops.precision == "bf16" and kernel in ("relu", "add") else np.dtype(np.float32)
    numbers = np.random.default_rng(1).standard_normal(shape)
    numbers[np.random.default_rng(2).random(shape) < 0.1] = np.nan
    for layout in ("channels last", "rows"):
        x = place(numbers, layout, dtype)
        y = getattr(ops, kernel)(x, *([np.ones_like(x)] if kernel in ("add", "multiply") else []))
        np.testing.assert_array_equal(is_nan(y), np.isnan(numbers))
        if kernel == "relu":
            expected = np.maximum(x.astype(np.float32), 0)
            np.testing.assert_array_equal(y.astype(np.float32), expected)
            assert not np.signbit(y[~is_nan(y)].astype(np.float32)).any()


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_a_channel_of_nan_stays_in_normalisation_and_pooling(ops: Ops, shape: tuple[int, ...]):
    x, one = images(ops, *shape), np.ones(shape[1], np.float32)
    bad = one.copy()
    bad[1] = np.nan
    fine = np.zeros_like(x)
    cases = [(x, one, one, None), (x, one, one, fine), (fine, one, one, x), (fine, bad, one, None), (fine, one, bad, x)]
    for features, scale, shift, other in cases:
        y = is_nan(ops.rectified_affine(features, scale, shift, other))
        assert y[:, 1].all()
        assert not y[:, 2:].any()
    if len(shape) > 2:
        window = (2,) * (len(shape) - 2), (2,) * (len(shape) - 2), (0,) * (len(shape) - 2)
        for train in (False, True):
            y, workspace = ops.max_pool(x, *window, train)
            assert is_nan(y)[:, 1].all()
            assert not is_nan(y)[:, 2:].any()
        dx = ops.max_pool_grad(x, workspace, np.ones_like(y), *window)
        assert not is_nan(dx)[:, 2:].any()


@pytest.mark.parametrize("shape", [(4, 7), (64, 300)], ids=str)
def test_a_class_of_nan_leaves_no_probabilities(ops: Ops, shape: tuple[int, int]):
    x = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    x[:, 3] = np.nan
    assert np.isnan(ops.softmax(x)).all()


@pytest.mark.parametrize(
    ("subscripts", "first", "second"),
    [
        ("bhij,bhijd->hd", (0, 1, 1, 1), (0, 1, 1, 1, 2)),
        ("nc,nc->c", (0, 2), (0, 2)),
        ("gij,gij->gj", (1, 0, 2), (1, 0, 2)),
    ],
)
def test_a_sum_over_no_rows_is_zero(subscripts, first, second):
    """Also for empty arrays with strides of 0, whose memory, here full of NaN, numpy's einsum reads."""
    nan = np.full(64, np.nan, np.float32)
    x, y = (
        np.lib.stride_tricks.as_strided(nan, shape, (stride,) * len(shape))
        for shape, stride in ((first, 0), (second, 4))
    )
    assert not einsum(subscripts, x, y).any()

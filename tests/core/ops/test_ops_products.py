"""Products of the CPU backends, of factors and results of any strides, beside float64."""

from collections.abc import Callable
from itertools import product

import numpy as np
import pytest

from dsinga.ops import Ops, get_ops
from tests.core.ops.test_ops_bf16 import on_processor, rounded

# The last two axes of an array, in memory of its own.
LAYOUTS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "rows": np.ascontiguousarray,
    "transposed": lambda x: np.ascontiguousarray(x.swapaxes(-1, -2)).swapaxes(-1, -2),
    "block": lambda x: np.pad(x, [(0, 0)] * (x.ndim - 2) + [(1, 3), (2, 5)], constant_values=np.nan)[..., 1:-3, 2:-5],
    "heads": lambda x: np.moveaxis(np.ascontiguousarray(np.moveaxis(x, 0, -2)), -2, 0),
    "gaps": lambda x: np.repeat(x, 2, axis=-1)[..., ::2],
    "gaps in columns": lambda x: LAYOUTS["gaps"](x.swapaxes(-1, -2)).swapaxes(-1, -2),
    "reversed": lambda x: np.ascontiguousarray(x[..., ::-1, ::-1])[..., ::-1, ::-1],
    "offset": lambda x: np.concatenate([[np.nan], x.reshape(-1)]).astype(x.dtype)[1:].reshape(x.shape),
}
FACTORS = [*LAYOUTS, "one row", "one column"]  # the last two are broadcast
SIZES = [(65, 40, 33), (1, 100, 40), (100, 1, 40), (65, 80, 1), (1, 1, 1)]


@pytest.fixture(scope="module", params=["numpy", "float32", pytest.param("bf16", marks=on_processor)])
def ops(request: pytest.FixtureRequest) -> Ops:
    if request.param == "numpy":
        return get_ops("numpy")
    if get_ops().name != "onednn":
        pytest.skip("oneDNN is not installed")
    return get_ops("onednn").for_worker(precision=request.param)


def placed(x: np.ndarray, layout: str) -> np.ndarray:
    """Return float32 numbers that bfloat16 has in a layout."""
    x = rounded(x).astype(np.float32)
    if layout == "one row":
        return np.broadcast_to(x[..., :1, :], x.shape)
    if layout == "one column":
        return np.broadcast_to(x[..., :1], x.shape)
    return LAYOUTS[layout](x)


@pytest.mark.parametrize("size", SIZES, ids=str)
@pytest.mark.parametrize("stack", [(), (1, 1), (2, 3)], ids=str)
def test_products_of_any_strides_are_those_of_float64(ops: Ops, size: tuple[int, int, int], stack: tuple[int, ...]):
    (rows, terms, columns), rng = size, np.random.default_rng(0)
    left, right, begin = (
        rng.standard_normal((*stack, *shape)) for shape in ((rows, terms), (terms, columns), (rows, columns))
    )
    for (a, b), result in zip(product(FACTORS, FACTORS), [*LAYOUTS] * len(FACTORS) ** 2, strict=False):
        if not stack and "heads" in (a, b, result):
            continue
        x, y = placed(left, a), placed(right, b)
        exact = x.astype(np.float64) @ y.astype(np.float64)
        for factor, add in ((1.0, False), (0.25, True)):
            out = placed(begin, result)
            expected = factor * exact + (out if add else 0) if stack else exact + (out if add else 0)
            if stack:
                ops.batched_product(x, y, out, factor, add)
            else:
                ops.multiply_into(x, y, out, add)
            np.testing.assert_allclose(out, expected, atol=1e-4, err_msg=f"{a}, {b}, {result}")
        if not stack:
            ops.multiply_by(x, ops.factor(y, [rows] * 4), out)
            np.testing.assert_allclose(out, exact, atol=1e-4, err_msg=f"{a}, {b}, {result}, by a factor")


@on_processor
@pytest.mark.parametrize(
    ("batch", "heads", "width", "steps", "mask"),
    [(1, 1, 32, 257, "all"), (2, 2, 64, 300, "lengths"), (1, 2, 32, 577, "all"), (1, 2, 40, 600, "causal")],
)
def test_bfloat16_attention_over_many_steps_has_gradients(batch: int, heads: int, width: int, steps: int, mask: str):
    rng = np.random.default_rng(0)
    arrays = [rounded(rng.standard_normal((batch, steps, heads * width))) for _ in range(4)]
    seen = {"all": None, "causal": np.arange(1, steps + 1), "lengths": np.full(steps, steps - 3)}[mask]
    settings = heads, width**-0.5, None if seen is None else np.tile(seen, (batch, 1))
    results = []
    for backend, dtype in ((get_ops().for_worker(precision="bf16"), np.float32), (get_ops("numpy"), np.float64)):
        query, keys, values, dy = (array.astype(dtype) for array in arrays)
        y, workspace = backend.attention(query, keys, values, *settings, True)
        results.append([y, *backend.attention_grad(query, keys, values, y, workspace, dy, *settings)])
    for actual, exact in zip(*results, strict=True):
        assert np.linalg.norm(actual - exact) <= 0.01 * np.linalg.norm(exact)

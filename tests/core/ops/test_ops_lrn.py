"""Local response normalisation by shifted sums, also for processors for which the library has a primitive."""

import numpy as np
import pytest

from dsinga.base.errors import UserError
from dsinga.testing import kernel_formulas as formulas
from dsinga.testing.kernel_formulas import assert_close, assert_gradient

try:
    from dsinga.ops.onednn import normalisation
except UserError as error:
    pytest.skip(str(error), allow_module_level=True)


def normal(seed: int, *shape: int) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape)


def place(values: np.ndarray, channels_last: bool) -> np.ndarray:
    values = values.astype(np.float32)
    return np.ascontiguousarray(values.transpose(0, 2, 3, 1)).transpose(0, 3, 1, 2) if channels_last else values


@pytest.mark.parametrize("block", [1, 40], ids=["a row", "blocks and a remainder"])  # the contract has all at once
@pytest.mark.parametrize("channels_last", [True, False])
@pytest.mark.parametrize(
    ("channels", "size", "alpha", "beta", "k"),
    [
        (8, 3, 5e-5, 0.75, 1.0),
        (8, 5, 1.0, 0.75, 2.0),
        (5, 4, 0.1, 0.5, 1.0),
        (3, 9, 1.0, 1.0, 2.0),
        (1, 1, 1.0, 0.6, 1.0),
    ],
)
def test_agrees_with_the_formula_and_its_slope(monkeypatch, block, channels_last, channels, size, alpha, beta, k):
    monkeypatch.setattr(normalisation, "BLOCK", block)
    x, dy = normal(1, 2, channels, 3, 2), normal(2, 2, channels, 3, 2)
    x_placed, dy_placed = place(x, channels_last), place(dy, channels_last)
    y, workspace = normalisation.forward(x_placed, size, alpha, beta, k)
    assert_close(y, formulas.lrn(x, size, alpha, beta, k), np.float32)
    dx = normalisation.backward(x_placed, workspace, dy_placed, size, alpha, beta)
    assert_gradient(lambda x: (formulas.lrn(x, size, alpha, beta, k) * dy).sum(), x, dx, np.float32)
    assert y.transpose(0, 2, 3, 1).flags.c_contiguous
    assert dx.transpose(0, 2, 3, 1).flags.c_contiguous


def test_nan_stays_in_its_windows():
    x = place(normal(1, 2, 8, 3, 2), True)
    x[1, 3, 2, 0] = np.nan
    y, _ = normalisation.forward(x, 3, 0.1, 0.75, 1.0)
    assert np.argwhere(np.isnan(y)).tolist() == [[1, channel, 2, 0] for channel in (2, 3, 4)]

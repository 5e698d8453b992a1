"""The backends under test, and how tests call their kernels."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from dsinga.errors import UserError
from dsinga.ops import BACKENDS, Ops


@dataclass(frozen=True)
class Backend:
    """A backend that computes in one dtype."""

    ops: Ops
    dtype: type

    def run(self, kernel: str, *arguments: Any) -> Any:
        """Call ``ops.kernel`` on read-only arrays of the backend's dtype and check that it left them alone."""
        given = [self.asarray(argument) if isinstance(argument, np.ndarray) else argument for argument in arguments]
        before = [argument.copy() if isinstance(argument, np.ndarray) else None for argument in given]
        result = getattr(self.ops, kernel)(*given)
        for now, then in zip(given, before, strict=True):
            if then is not None:
                np.testing.assert_array_equal(now, then)
        return result

    def asarray(self, array: np.ndarray) -> Any:
        """Return a read-only view of ``array``; floating-point values come in the backend's dtype."""
        if array.dtype.kind == "f" and array.dtype != self.dtype:
            array = array.astype(self.dtype)
        array = array.view()
        array.flags.writeable = False
        return self.ops.asarray(array)

    def place(self, values: np.ndarray, layout: str) -> Any:
        """Return ``values`` in the backend's dtype, laid out in memory as ``layout`` says."""
        values = values.astype(self.dtype, order="C")
        if layout == "channels last":
            return np.ascontiguousarray(np.moveaxis(values, 1, -1)).transpose(0, -1, *range(1, values.ndim - 1))
        if layout == "gaps":
            wide = np.full((*values.shape[:-1], 2 * values.shape[-1]), np.nan, self.dtype)
            wide[..., ::2] = values
            return wide[..., ::2]
        if layout == "reversed":
            return np.ascontiguousarray(values[..., ::-1])[..., ::-1]
        assert layout == "rows"
        return values


def backends() -> list[Any]:
    """Every backend in float32, and numpy's in float64."""
    cases = [pytest.param((name, np.float32), id=f"{name}-float32") for name in BACKENDS]
    return [*cases, pytest.param(("numpy", np.float64), id="numpy-float64")]


def load(name: str) -> Ops:
    """Return a backend by its maker, whatever DSINGA_OPS says; skip the test where it cannot load."""
    try:
        return BACKENDS[name]()
    except UserError as error:
        pytest.skip(str(error))

"""The backends under test, and how tests call their kernels."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from dsinga.errors import UserError
from dsinga.ops import BACKENDS, Ops
from tests.support import emulated_cupy

EMULATED = "emulated"
WITH_WORKSPACE = ("max_pool", "lrn", "layer_norm", "recurrent", "crf")


@dataclass(frozen=True)
class Backend:
    """A backend that computes in one dtype."""

    ops: Ops
    dtype: type

    def run(self, kernel: str, *arguments: Any) -> Any:
        """Call ``ops.kernel`` on arrays of the backend's dtype and check that it left them alone.

        The results are in host memory, as they lay, but for workspaces, which are the kernel's own.
        """
        given = [self.asarray(argument) if isinstance(argument, np.ndarray) else argument for argument in arguments]
        before = [self.host(argument).copy() if is_array(argument) else None for argument in given]
        result = getattr(self.ops, kernel)(*given)
        for now, then in zip(given, before, strict=True):
            if then is not None:
                np.testing.assert_array_equal(self.host(now), then)
        if kernel in WITH_WORKSPACE:
            return (*map(self.host, result[:-1]), result[-1])
        return self.host(result)

    def host(self, result: Any) -> Any:
        """Return an array in host memory, laid out as it was; a sequence of arrays likewise; all else as it is."""
        if isinstance(result, tuple | list):
            return type(result)(map(self.host, result))
        if self.ops.xp is np or not is_array(result):
            return result
        order = in_memory(result)
        return self.ops.to_numpy(result.transpose(order)).transpose(np.argsort(order).tolist())

    def asarray(self, array: np.ndarray) -> Any:
        """Return ``array`` for the backend, read-only where it can be; floating-point values come in its dtype."""
        if self.ops.xp is not np and isinstance(array, self.ops.xp.ndarray):
            return array
        if array.dtype.kind == "f" and array.dtype != self.dtype:
            array = array.astype(self.dtype)
        if self.ops.xp is not np:
            order = in_memory(array)
            return self.ops.asarray(np.ascontiguousarray(array.transpose(order))).transpose(np.argsort(order).tolist())
        array = array.view()
        array.flags.writeable = False
        return self.ops.asarray(array)

    def place(self, values: np.ndarray, layout: str) -> Any:
        """Return ``values`` in the backend's dtype, laid out in memory as ``layout`` says."""
        values, xp = self.ops.asarray(values.astype(self.dtype, order="C")), self.ops.xp
        if layout == "channels last":
            return xp.ascontiguousarray(xp.moveaxis(values, 1, -1)).transpose(0, -1, *range(1, values.ndim - 1))
        if layout == "gaps":
            wide = xp.zeros((*values.shape[:-1], 2 * values.shape[-1]), self.dtype)
            wide[...] = np.nan
            wide[..., ::2] = values
            return wide[..., ::2]
        if layout == "reversed":
            return xp.ascontiguousarray(values[..., ::-1])[..., ::-1]
        assert layout == "rows"
        return values


def in_memory(array: Any) -> list[int]:
    """Return the axes of an array, the one with the longest steps first."""
    return np.argsort([-abs(step) for step in array.strides], kind="stable").tolist()


def is_array(one: Any) -> bool:
    """Whether it is an array, of the host or of a device."""
    return hasattr(one, "strides")


def backends() -> list[Any]:
    """Every backend in float32, those that have it in float64 too; cupy on a GPU, and emulated on the CPU."""
    marks = {"cupy": pytest.mark.gpu, EMULATED: pytest.mark.slow}
    both = [(name, dtype) for name in ("numpy", "cupy", EMULATED) for dtype in (np.float32, np.float64)]
    return [
        pytest.param((name, dtype), id=f"{name}-{dtype.__name__}", marks=[marks[name]] if name in marks else [])
        for name, dtype in [("onednn", np.float32), *both]
    ]


def load(name: str) -> Ops:
    """Return a backend by its maker, whatever DSINGA_OPS says; skip the test where it cannot load."""
    if name == EMULATED:
        return emulated_cupy.load()
    try:
        return BACKENDS[name]()
    except UserError as error:
        pytest.skip(str(error))

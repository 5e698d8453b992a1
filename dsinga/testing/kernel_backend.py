"""Calls the kernels of a backend in one dtype, for the kernel contract."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from dsinga.base.errors import UserError
from dsinga.ops import Ops

LAYOUTS = ("channels last", "rows", "gaps", "reversed")
"""The memory layouts of :meth:`KernelBackend.place`."""

WITH_WORKSPACE = ("max_pool", "lrn", "layer_norm", "rms_norm", "recurrent", "crf", "attention", "attention_weights")
"""Kernels whose last result is a workspace, which only their gradient can read."""


class KernelBackend:
    """A backend that computes in one dtype; it is made when a test first uses it."""

    def __init__(self, make_ops: Callable[[], Ops], dtype: Any):
        self.make_ops, self.dtype = make_ops, dtype

    @functools.cached_property
    def ops(self) -> Ops:
        """The backend; the test is skipped where making it raises UserError."""
        try:
            return self.make_ops()
        except UserError as error:
            pytest.skip(str(error))

    def run(self, kernel: str, *arguments: Any) -> Any:
        """Call ``ops.kernel`` on arrays of the backend's dtype, and assert that it leaves them unchanged.

        The results are in host memory, with their layout, except for workspaces, which stay as they are.
        """
        placed = [self.asarray(argument) if isinstance(argument, np.ndarray) else argument for argument in arguments]
        copies = [self.host(argument).copy() if is_array(argument) else None for argument in placed]
        result = getattr(self.ops, kernel)(*placed)
        for argument, copy in zip(placed, copies, strict=True):
            if copy is not None:
                np.testing.assert_array_equal(self.host(argument), copy)
        if kernel in WITH_WORKSPACE:
            return (*map(self.host, result[:-1]), result[-1])
        return self.host(result)

    def host(self, result: Any) -> Any:
        """Return an array in host memory with its layout; sequences likewise; everything else unchanged."""
        if isinstance(result, tuple | list):
            return type(result)(map(self.host, result))
        if self.ops.xp is np or not is_array(result):
            return result
        order = axes_in_memory(result)
        return self.ops.to_numpy(result.transpose(order)).transpose(np.argsort(order).tolist())

    def asarray(self, array: np.ndarray) -> Any:
        """Return ``array`` for the backend, floating-point numbers in its dtype; read-only in host memory."""
        if self.ops.xp is not np and isinstance(array, self.ops.xp.ndarray):
            return array
        if array.dtype.kind == "f" and array.dtype != self.dtype:
            array = array.astype(self.dtype)
        if self.ops.xp is not np:
            order = axes_in_memory(array)
            transposed = self.ops.asarray(np.ascontiguousarray(array.transpose(order)))
            return transposed.transpose(np.argsort(order).tolist())
        array = array.view()
        array.flags.writeable = False
        return self.ops.asarray(array)

    def place(self, values: np.ndarray, layout: str) -> Any:
        """Return ``values`` in the backend's dtype, in one of the memory layouts of LAYOUTS."""
        array, xp = self.ops.asarray(values.astype(self.dtype, order="C")), self.ops.xp
        if layout == "channels last":
            return xp.ascontiguousarray(xp.moveaxis(array, 1, -1)).transpose(0, -1, *range(1, array.ndim - 1))
        if layout == "gaps":
            wide = xp.zeros((*array.shape[:-1], 2 * array.shape[-1]), self.dtype)
            wide[...] = np.nan
            wide[..., ::2] = array
            return wide[..., ::2]
        if layout == "reversed":
            return xp.ascontiguousarray(array[..., ::-1])[..., ::-1]
        assert layout == "rows"
        return array


def axes_in_memory(array: Any) -> list[int]:
    """Return the axes of an array, the one with the longest stride first."""
    return np.argsort([-abs(stride) for stride in array.strides], kind="stable").tolist()


def is_array(value: Any) -> bool:
    """Whether ``value`` is an array, of the host or of a device."""
    return hasattr(value, "strides")

"""Types in the signatures of kernels: arrays, pairs, devices, asynchronous copies."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeGuard

import ml_dtypes
import numpy as np

Array = Any
"""A ``numpy.ndarray``, or the array type of the backend."""

Formula = Callable[[Array, Array, Sequence[Array], Array, Array], None]
"""A function (w, g, slots, t, s) that changes w and slots in place, elementwise, with numpy's ufuncs.

All are blocks of one length; ``t`` and ``s`` are scratch. ``g`` may be ``t`` itself and is not written otherwise. Equal
formulas compute the same.
"""

Shape = tuple[int, ...]

PointRanges = tuple[tuple[int, int], ...]
"""The points [start, stop) along each axis of a record, without the batch."""

Pair = tuple[int, int]
"""(vertical, horizontal): an image size; also the two numbers of a random key."""

Sizes = tuple[int, ...]
"""A kernel, stride, pad or size: (vertical, horizontal) of images, (depth, vertical, horizontal) of volumes."""

Groups = tuple[tuple[str, ...], ...]
"""The address of each worker's process, a Dask worker or this one: [group][worker]."""

Devices = tuple[tuple[int | None, ...], ...]
"""The GPU of each worker of each group, numbered in its process; None for CPU cores."""

Ask = Callable[..., dict[str, Any]]
"""Returns the results of a function in each process, by address: (addresses, function, arguments)."""

BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
FLOAT32 = np.dtype(np.float32)  # a comparison with it is quicker than with np.float32, and `is` quicker still


@dataclass(frozen=True, slots=True)
class Shaped:
    """The shape and dtype of an array that was freed, and whether its numbers were in C order."""

    shape: Shape
    dtype: Any
    in_order: bool

    @property
    def ndim(self) -> int:
        """The number of axes."""
        return len(self.shape)


def converted(x: Any, convert: Callable[[Any], Any]) -> Any:
    """Convert an array to float32 by ``convert``, or each of a tuple; a freed bfloat16 array gets the dtype alone."""
    if isinstance(x, tuple):
        return tuple(converted(part, convert) for part in x)
    if isinstance(x, Shaped):
        return Shaped(x.shape, FLOAT32, x.in_order) if x.dtype == BFLOAT16 else x
    return convert(x)


def is_plain(array: Any) -> TypeGuard[np.ndarray]:
    """Whether ``array`` is a C-contiguous float32 numpy array."""
    return type(array) is np.ndarray and array.dtype is FLOAT32 and array.flags.c_contiguous


def is_on_device(array: Any) -> bool:
    """Whether ``array`` is in device memory, like labels in a recorded pass."""
    if isinstance(array, np.ndarray):
        return hasattr(array, "get")  # of an emulated device
    return hasattr(array, "dtype") and not isinstance(array, np.generic) and not hasattr(array, "array")


class CellActivations(NamedTuple):
    """The activations of a recurrent cell's gates and candidate, and of an LSTM's cell state in its output.

    Each is "sigmoid", "tanh", "relu" or "identity".
    """

    gate: str = "sigmoid"
    candidate: str = "tanh"
    cell: str = "tanh"


CELL_ACTIVATIONS = CellActivations()
"""A recurrent cell's default activations."""


class AsyncCopy(ABC):
    """A started copy between host and device; its source must not change before :meth:`result`."""

    @abstractmethod
    def result(self) -> Array:
        """Return the copy: an array for the device's next kernels, or a complete array of the host."""

    @property
    def kind(self) -> tuple[Shape, Any]:
        """The shape and dtype of the copied array."""
        array = self.result()
        return tuple(array.shape), array.dtype


class NotCapturable(RuntimeError):
    """Error: a pass cannot be recorded, because the host reads or computes something in it."""


class RecordedStep:
    """Stands for the step number while a pass is recorded; layers get its numbers from ``Context.step_number``."""

    def __repr__(self) -> str:
        return "the step of a recorded pass"


@dataclass(frozen=True, eq=False)
class FinishedCopy(AsyncCopy):
    """An asynchronous copy that is the array itself, for backends with arrays in host memory."""

    array: Array

    def result(self) -> Array:
        """Return the array, not a copy."""
        return self.array

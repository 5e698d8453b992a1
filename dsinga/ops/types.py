"""Types that every file of the kernel backends uses in its signatures, and a test for the most common array."""

from __future__ import annotations

from typing import Any, NamedTuple, TypeGuard

import numpy as np

Array = Any
"""A ``numpy.ndarray``, or the array type of the backend."""

Pair = tuple[int, int]
"""(vertical, horizontal): a kernel, stride, pad or image size; also the two numbers of a random key."""

FLOAT32 = np.dtype(np.float32)  # a comparison with it is quicker than with np.float32, and `is` quicker still


def is_plain(array: Any) -> TypeGuard[np.ndarray]:
    """Whether ``array`` is a C-contiguous float32 array of numpy's own type."""
    return type(array) is np.ndarray and array.dtype is FLOAT32 and array.flags.c_contiguous


class CellActivations(NamedTuple):
    """The activations of a recurrent cell's gates, of its candidate, and of an LSTM's cell state in its output.

    Each is "sigmoid", "tanh", "relu" or "identity".
    """

    gate: str = "sigmoid"
    candidate: str = "tanh"
    cell: str = "tanh"


CELL_ACTIVATIONS = CellActivations()
"""The activations that a recurrent cell has by default."""

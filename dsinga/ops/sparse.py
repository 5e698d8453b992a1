"""Gradients that are zero except for some rows, such as the gradient of an embedding table.

A layer returns :class:`SparseRows` for a param with ``ParamSpec(sparse=True)``.

- *Updates.* If all workers have sent rows, a server updates the union of these rows, and their part of the updater's
  state. A row that no batch looks up does not change: no momentum, weight decay or average moves it in that step. Plain
  SGD gives the bits of whole gradients.
- *Slices.* A table is cut between rows, with ``slicing: kBlock`` into blocks of rows. With ``clip_norm``, kLamb and
  kMuon it is not cut.
- *Back to workers.* A worker gets only the changed rows if its copy is at most eight steps old.
- *Shared tables.* Gradients of layers that share a table are rows if all of them are rows, else the whole table.
- *Groups.* Several worker groups or server groups send rows to servers, and whole tables back and between groups.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from dsinga.ops.types import Array


@dataclass(frozen=True, eq=False)
class SparseRows:
    """A sparse array of shape ``shape``: the rows ``rows`` are ``values``, (n, ...), all others are zero.

    ``rows`` (n,) are int64, strictly ascending. Both arrays are in host memory.
    """

    rows: np.ndarray
    values: np.ndarray
    shape: tuple[int, ...]

    @property
    def dtype(self) -> np.dtype:
        """The dtype of the rows' values."""
        return self.values.dtype

    @property
    def nbytes(self) -> int:
        """The bytes of a message with the rows, numbered in int32."""
        return 4 * self.rows.size + self.values.nbytes

    def dense(self) -> np.ndarray:
        """Convert to a new dense array."""
        array = np.zeros(self.shape, self.dtype)
        array[self.rows] = self.values
        return array

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return self.dense().astype(dtype or self.dtype, copy=False)

    def part(self, start: int, stop: int) -> SparseRows:
        """Return rows ``start`` to ``stop`` as a sparse array counted from ``start``; values are a view."""
        first, last = np.searchsorted(self.rows, (start, stop))
        return SparseRows(self.rows[first:last] - start, self.values[first:last], (stop - start, *self.shape[1:]))


def values_of(gradient: Array | SparseRows) -> Array:
    """Return a gradient's numbers: an array itself, or the values of sparse rows."""
    return gradient.values if isinstance(gradient, SparseRows) else gradient


def scaled(gradient: Array | SparseRows, factor: float) -> Array | SparseRows:
    """Return a copy of a gradient multiplied by ``factor`` in float32."""
    if isinstance(gradient, SparseRows):
        return SparseRows(gradient.rows, gradient.values * np.float32(factor), gradient.shape)
    return gradient * np.float32(factor)


def to_host(gradient: Array | SparseRows, ops: Any) -> np.ndarray | SparseRows:
    """Copy a backend's gradient to host memory, where sparse rows always are."""
    return gradient if isinstance(gradient, SparseRows) else ops.to_numpy(gradient)


def whole_shape(gradient: np.ndarray | SparseRows, shape: tuple[int, ...]) -> np.ndarray | SparseRows:
    """Reshape a gradient to its param's shape; sparse rows are unchanged."""
    return gradient if isinstance(gradient, SparseRows) else gradient.reshape(shape)


def no_rows(shape: tuple[int, ...]) -> SparseRows:
    """Create a sparse float32 array of zeros of this shape."""
    return SparseRows(np.empty(0, np.int64), np.empty((0, *shape[1:]), np.float32), shape)


def fault(gradient: SparseRows) -> str:
    """Check the row numbers of a sparse gradient: return what is wrong, as a clause, or ""."""
    rows, values, shape = gradient.rows, gradient.values, gradient.shape
    if rows.ndim != 1 or rows.dtype != np.int64:
        return f"its rows must be a 1-d int64 array, not {rows.dtype} of shape {rows.shape}"
    if values.shape != (rows.size, *shape[1:]):
        return f"its values must be of shape {(rows.size, *shape[1:])}, not {values.shape}"
    if rows.size and (rows[0] < 0 or rows[-1] >= shape[0] or (np.diff(rows) <= 0).any()):
        return f"its rows must be strictly ascending from 0 or more to {shape[0] - 1} or less"
    return ""


def add_up(parts: Sequence[Array | SparseRows]) -> Array | SparseRows:
    """Add one param's gradients in order: sparse if all are, else a new dense array, with the bits of dense sums."""
    sparse = [part for part in parts if isinstance(part, SparseRows)]
    if len(sparse) < len(parts):
        (shape,) = {part.shape for part in parts if not isinstance(part, SparseRows)}
        total = np.zeros(shape, parts[0].dtype)
        for part in parts:
            if isinstance(part, SparseRows):
                total.reshape(part.shape)[part.rows] += part.values
            else:
                total += part
        return total
    if len(sparse) == 1:
        return sparse[0]
    rows = np.unique(np.concatenate([part.rows for part in sparse]))
    values = np.zeros((rows.size, *sparse[0].shape[1:]), sparse[0].dtype)
    for part in sparse:
        values[np.searchsorted(rows, part.rows)] += part.values
    return SparseRows(rows, values, sparse[0].shape)

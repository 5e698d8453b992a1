"""Gradients that are zero but for some rows, as of an embedding of which a batch looks up a few words."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from dsinga.ops.types import Array


@dataclass(frozen=True, eq=False)
class SparseRows:
    """An array of shape ``shape`` whose rows (entries along axis 0) are ``values``, (n, ...), at ``rows``, else zeros.

    ``rows`` (n,) are int64 and rise, each once. Both live in host memory.
    """

    rows: np.ndarray
    values: np.ndarray
    shape: tuple[int, ...]

    @property
    def dtype(self) -> np.dtype:
        """That of the values."""
        return self.values.dtype

    @property
    def nbytes(self) -> int:
        """How many bytes it takes to send the rows, their numbers as int32."""
        return 4 * self.rows.size + self.values.nbytes

    def dense(self) -> np.ndarray:
        """Return the array itself, a new one."""
        whole = np.zeros(self.shape, self.dtype)
        whole[self.rows] = self.values
        return whole

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return self.dense().astype(dtype or self.dtype, copy=False)

    def part(self, start: int, stop: int) -> SparseRows:
        """Return rows ``start`` to ``stop`` of the array, counted from ``start``; the values are a view."""
        first, last = np.searchsorted(self.rows, (start, stop))
        return SparseRows(self.rows[first:last] - start, self.values[first:last], (stop - start, *self.shape[1:]))


def no_rows(shape: tuple[int, ...]) -> SparseRows:
    """Return float32 zeros of that shape, without a row."""
    return SparseRows(np.empty(0, np.int64), np.empty((0, *shape[1:]), np.float32), shape)


def fault(gradient: SparseRows) -> str:
    """Say what is wrong with the rows of a gradient; empty where nothing is."""
    rows, values, shape = gradient.rows, gradient.values, gradient.shape
    if rows.ndim != 1 or rows.dtype != np.int64:
        return f"its rows must be int64, one after the other, not {rows.dtype} of shape {rows.shape}"
    if values.shape != (rows.size, *shape[1:]):
        return f"its values must be of shape {(rows.size, *shape[1:])}, not {values.shape}"
    if rows.size and (rows[0] < 0 or rows[-1] >= shape[0] or (np.diff(rows) <= 0).any()):
        return f"its rows must rise from 0 at least to {shape[0] - 1} at most, each once"
    return ""


def add_up(parts: Sequence[Array | SparseRows]) -> Array | SparseRows:
    """Return the sum of gradients of one param, added in their order: rows if all of them are, else a new array.

    Every number is the sum that the whole arrays would give, to the bit.
    """
    sparse = [part for part in parts if isinstance(part, SparseRows)]
    if len(sparse) < len(parts):
        (shape,) = {part.shape for part in parts if not isinstance(part, SparseRows)}
        whole = np.zeros(shape, parts[0].dtype)
        for part in parts:
            if isinstance(part, SparseRows):
                whole.reshape(part.shape)[part.rows] += part.values
            else:
                whole += part
        return whole
    if len(sparse) == 1:
        return sparse[0]
    rows = np.unique(np.concatenate([part.rows for part in sparse]))
    values = np.zeros((rows.size, *sparse[0].shape[1:]), sparse[0].dtype)
    for part in sparse:
        values[np.searchsorted(rows, part.rows)] += part.values
    return SparseRows(rows, values, sparse[0].shape)

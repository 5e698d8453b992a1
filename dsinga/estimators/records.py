"""Records as nets take them: scaled to mean 0 and deviation 1, and equal records merged where order must not count."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np

BLOCK_BYTES = 1 << 23


class Scaling(NamedTuple):
    """The map x -> (x - offset) / scale of each column, to float32; ``offset`` and ``scale`` are float64."""

    offset: np.ndarray
    scale: np.ndarray

    def apply(self, x: Any) -> Any:
        """Return scaled numbers, float32, of the shape of ``x``, which may be a dask array."""
        if not isinstance(x, np.ndarray):
            return ((x - self.offset) / self.scale).astype(np.float32)
        scaled = np.empty(x.shape, np.float32)
        for rows in row_blocks(x):
            scaled[rows] = (x[rows] - self.offset) / self.scale
        return scaled

    def undo(self, x: np.ndarray) -> np.ndarray:
        """Return the numbers, float64, of which ``x`` are the scaled ones."""
        return x * self.scale + self.offset


class TrainingSet(NamedTuple):
    """Records (n, ...), their targets (n, ...) or None, and their weights (n,) float64 or None for equal ones."""

    x: Any
    y: Any = None
    weights: Any = None


def standard_scaling(x: np.ndarray, weights: np.ndarray | None = None) -> Scaling:
    """Return the scaling to weighted mean 0 and deviation 1 of each column; a constant column is only shifted."""
    mean = weighted_mean(x, weights, lambda block: block)
    variance = weighted_mean(x, weights, lambda block: np.square(block - mean))
    return Scaling(mean, without_zeros(np.sqrt(variance), mean))


def weighted_mean(x: np.ndarray, weights: np.ndarray | None, of: Callable[[np.ndarray], np.ndarray]) -> np.ndarray:
    """Return the mean over records of ``of(block)``, float64, for blocks of rows of ``x``."""
    total, count = np.zeros(x.shape[1:]), 0.0
    for rows in row_blocks(x):
        block = of(np.asarray(x[rows], np.float64))
        if weights is None:
            total += block.sum(axis=0)
            count += len(block)
        else:
            total += np.tensordot(weights[rows], block, axes=(0, 0))
            count += weights[rows].sum()
    return total / count


def row_blocks(x: np.ndarray) -> Iterator[slice]:
    """Yield slices of rows that have a few MiB each in float64: temporary arrays stay small."""
    size = max(1, BLOCK_BYTES // max(1, 8 * math.prod(x.shape[1:])))
    yield from (slice(start, start + size) for start in range(0, len(x), size))


def without_zeros(scale: np.ndarray, offset: np.ndarray) -> np.ndarray:
    """Return ``scale`` with 1 for columns that are constant up to rounding."""
    return np.where(scale > 10 * np.finfo(np.float64).eps * np.abs(offset), scale, 1.0)


def canonical(records: TrainingSet) -> TrainingSet:
    """Return the records in an order that depends on their values only, each once, with the sum of its weights.

    A batch of all records has the same loss in any order, and with a record twice or with twice its weight; but not the
    same float32 sums. In this form these are the same to the bit. Records of weight 0 are left out.
    """
    x, y = np.asarray(records.x), None if records.y is None else np.asarray(records.y)
    weights = np.ones(len(x)) if records.weights is None else records.weights
    columns = [array.reshape(len(x), -1).astype(np.float64) for array in (x, y) if array is not None]
    table = np.concatenate([*columns, weights[:, None]], axis=1)[weights > 0]
    order = np.lexsort(table.T[::-1])  # by weight last: the sum of equal records' weights has one order, too
    table, rows = table[order], np.flatnonzero(weights > 0)[order]
    is_new = np.ones(len(table), bool)
    is_new[1:] = (table[1:, :-1] != table[:-1, :-1]).any(axis=1)
    first = np.flatnonzero(is_new)
    sums = np.add.reduceat(table[:, -1], first)
    kept = rows[first]
    return TrainingSet(x[kept], None if y is None else y[kept], sums)


def mean_one(weights: np.ndarray | None) -> np.ndarray | None:
    """Return weights divided by their mean, None where all are equal."""
    if weights is None or np.all(weights == weights[0]):
        return None
    return weights / weights.mean()

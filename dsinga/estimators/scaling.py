"""Scales columns to mean 0 and deviation 1, or to [0, 1], in float32."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np

from dsinga.base.errors import UserError
from dsinga.data.array_kinds import is_dask_collection
from dsinga.data.conversion import find_nonfinite, nonfinite_error, place_of
from dsinga.estimators.lazy import compute

BLOCK_BYTES = 1 << 23
CACHED_BYTES = 1 << 18  # the size of a temporary array that stays in the caches, without mapping new pages


class Scaling(NamedTuple):
    """The scaling of records' columns, x -> (x - offset) / scale, to float32; ``offset`` and ``scale`` are float64."""

    offset: np.ndarray
    scale: np.ndarray

    def apply(self, x: Any) -> Any:
        """Scale numbers to float32; ``x`` may be a dask array."""
        if not isinstance(x, np.ndarray):
            return ((x - self.offset) / self.scale).astype(np.float32)
        scaled = np.empty(x.shape, np.float32)
        for rows in row_blocks(x, CACHED_BYTES):
            scaled[rows] = (x[rows] - self.offset) / self.scale
        return scaled

    def undo(self, x: np.ndarray) -> np.ndarray:
        """Return the original numbers of scaled ones, float64."""
        return x * self.scale + self.offset


def find_scaling(x: Any, weights: Any, client: Any, name: str = "X") -> Scaling:
    """Find the scaling of each column to weighted mean 0 and deviation 1; a dask array is read twice."""
    if not is_dask_collection(x):
        return standard_scaling(x, weights, name)
    import dask.array as da

    mean = np.asarray(compute(da.average(x, axis=0, weights=weights), client), np.float64)
    _check_finite(x, mean, client, name)
    variance = compute(da.average(da.square(x - mean), axis=0, weights=weights), client)
    return Scaling(mean, without_zeros(np.sqrt(np.asarray(variance)), mean))


def find_range(x: Any, client: Any) -> Scaling:
    """Find the scaling of each column to [0, 1]; a dask array is read once."""
    low, high = compute((x.min(axis=0), x.max(axis=0)), client)
    low = np.asarray(low, np.float64)
    _check_finite(x, low + high, client, "X")
    return Scaling(low, without_zeros(np.asarray(high) - low, low))


def _check_finite(x: Any, sums: np.ndarray, client: Any, name: str) -> None:
    """Raise UserError for the first NaN or infinity in ``x``, if the ``sums`` of its columns are not finite."""
    if np.isfinite(sums).all() or not is_dask_collection(x) or not len(x):
        return
    import dask.array as da

    finite = da.isfinite(x.reshape(len(x), -1)).all(axis=1)
    row = int(compute(finite.argmin(), client))
    bad = find_nonfinite(np.asarray(compute(x[row : row + 1], client)))
    if bad is not None:  # otherwise a weight is not finite, or the sum overflowed
        raise nonfinite_error(f"dask array: {name!r}", bad.value, row, place_of(bad.position))


def standard_scaling(x: np.ndarray, weights: np.ndarray | None, name: str) -> Scaling:
    """Find a numpy array's scaling to weighted mean 0 and deviation 1; a constant column is only shifted."""
    with np.errstate(over="ignore", invalid="ignore"):
        mean = weighted_mean(x, weights, lambda block: block)
        variance = weighted_mean(x, weights, lambda block: np.square(block - mean))
    for index in np.argwhere(~np.isfinite(variance))[:1].tolist():
        size, place = np.abs(x[(slice(None), *index)]).max(), place_of(tuple(index))
        where = f" in {place}" if place else ""
        raise UserError(
            f"{name} has numbers as large as {size:.3g}{where}, whose squares are infinite; divide by {size:.1g}"
        )
    return Scaling(mean, without_zeros(np.sqrt(variance), mean))


def weighted_mean(x: np.ndarray, weights: np.ndarray | None, of: Callable[[np.ndarray], np.ndarray]) -> np.ndarray:
    """Return the weighted mean over records of ``of(block)``, float64, for blocks of rows of ``x``."""
    total, count = np.zeros(x.shape[1:]), np.zeros(())
    for rows in row_blocks(x):
        block = of(np.asarray(x[rows], np.float64))
        if weights is None:
            total += block.sum(axis=0)
            count = count + len(block)
        else:
            by_column = weights.ndim > 1
            total += (weights[rows] * block).sum(axis=0) if by_column else np.tensordot(weights[rows], block, (0, 0))
            count = count + weights[rows].sum(axis=0)
    return total / count


def row_blocks(x: np.ndarray, nbytes: int = BLOCK_BYTES) -> Iterator[slice]:
    """Split rows into slices of at most ``nbytes`` each in float64, to keep temporary arrays small."""
    size = max(1, nbytes // max(1, 8 * math.prod(x.shape[1:])))
    yield from (slice(start, start + size) for start in range(0, len(x), size))


def without_zeros(scale: np.ndarray, offset: np.ndarray) -> np.ndarray:
    """Replace the scale of columns that are constant up to rounding by 1."""
    return np.where(scale > 10 * np.finfo(np.float64).eps * np.abs(offset), scale, 1.0)

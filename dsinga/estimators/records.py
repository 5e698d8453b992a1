"""Records of estimators as nets take them: scaled, here or on a Dask cluster, and equal records merged."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np

from dsinga.api import find_cluster
from dsinga.data.array_kinds import is_dask_collection
from dsinga.data.conversion import find_nonfinite, nonfinite_error, place_of

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


@contextlib.contextmanager
def running_client(client: Any) -> Iterator[Any]:
    """Yield a Dask client of the cluster that :func:`dsinga.train` would use, None where that would start one."""
    source = find_cluster(client, waits=True)
    with source.open() if source.is_running else contextlib.nullcontext() as opened:
        yield opened


def compute(values: Any, client: Any) -> Any:
    """Return dask collections, in any nesting, computed on the cluster of ``client``, or of :func:`running_client`."""
    import dask

    with contextlib.nullcontext(client) if client is not None else running_client(None) as running:
        if running is None:
            return dask.compute(values)[0]
        from dsinga.cluster.connecting.expected_workers import await_number_of_workers

        await_number_of_workers(running, 1)  # Dask would wait for the first one without a word
        return running.compute(dask.delayed(values)).result()


def find_scaling(x: Any, weights: Any, client: Any, name: str = "X") -> Scaling:
    """Return the scaling to weighted mean 0 and deviation 1 of each column; a dask array is read twice.

    Raises UserError for NaN or infinity in a dask array, by the ``name`` of which messages call it.
    """
    if not is_dask_collection(x):
        return standard_scaling(x, weights)
    import dask.array as da

    mean = np.asarray(compute(da.average(x, axis=0, weights=weights), client), np.float64)
    _check_finite(x, mean, client, name)
    variance = compute(da.average(da.square(x - mean), axis=0, weights=weights), client)
    return Scaling(mean, without_zeros(np.sqrt(np.asarray(variance)), mean))


def find_range(x: Any, client: Any) -> Scaling:
    """Return the scaling of each column to [0, 1]; a dask array is read once."""
    low, high = (x.min(axis=0), x.max(axis=0))
    if is_dask_collection(x):
        low, high = compute((low, high), client)
    low = np.asarray(low, np.float64)
    _check_finite(x, low + high, client, "X")
    return Scaling(low, without_zeros(np.asarray(high) - low, low))


def _check_finite(x: Any, sums: np.ndarray, client: Any, name: str) -> None:
    """Raise UserError for the first number of ``x`` that is NaN or infinite, as ``sums`` of its columns then are.

    Scaled by such sums, all numbers of a column would be NaN, those of record 0 first.
    """
    if np.isfinite(sums).all() or not is_dask_collection(x) or not len(x):
        return
    import dask.array as da

    finite = da.isfinite(x.reshape(len(x), -1)).all(axis=1)
    row = int(compute(finite.argmin(), client))
    bad = find_nonfinite(np.asarray(compute(x[row : row + 1], client)))
    if bad is not None:  # else a weight is not finite, or the sum was too large
        raise nonfinite_error(f"dask array: {name!r}", bad.value, row, place_of(bad.position))

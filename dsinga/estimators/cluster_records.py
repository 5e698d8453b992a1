"""Records of estimators on a Dask cluster: computing dask arrays, and their scaling."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import numpy as np

from dsinga.api import find_cluster
from dsinga.data.array_kinds import is_dask_collection
from dsinga.data.conversion import find_nonfinite, nonfinite_error, place_of
from dsinga.estimators.records import Scaling, standard_scaling, without_zeros


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
        return dask.compute(values)[0] if running is None else running.compute(dask.delayed(values)).result()


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

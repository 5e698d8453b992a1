"""Reads Dask and xarray collections as dask arrays, and predicts for them lazily, block by block."""

from __future__ import annotations

import contextlib
import functools
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, TypeVar, cast

import numpy as np
import zarr
from sklearn.utils.validation import check_is_fitted

from dsinga.api.engines import find_runner, runner_of
from dsinga.api.runners import THIS_PROCESS
from dsinga.base.errors import UserError
from dsinga.data.array_kinds import is_dask_collection, is_dask_frame, is_data_array
from dsinga.data.missing_values import with_nan
from dsinga.data.sendable import naming_unsendable
from dsinga.data.sources.arrays import as_numpy
from dsinga.data.sources.dask_arrays import with_fixed_partitions
from dsinga.estimators.sparse_records import SparseRecords

F = TypeVar("F", bound=Callable[..., Any])

SCATTERED_BYTES = 1 << 20  # larger nets are scattered to a client's workers instead of being in the task graph


@contextlib.contextmanager
def running_client(client: Any) -> Iterator[Any]:
    """Yield a client of the running cluster that :func:`dsinga.train` would use; None if it would start one."""
    runner: Any = runner_of(find_runner(client, waits=True), False)
    with contextlib.nullcontext() if runner is THIS_PROCESS else runner.open() as opened:
        yield opened


@contextlib.contextmanager
def computing_on(client: Any) -> Iterator[Any]:
    """Yield ``client``, or one of a running cluster, once it has a Dask worker; None without a cluster."""
    with contextlib.nullcontext(client) if client is not None else running_client(None) as running:
        if running is not None:
            from dsinga.cluster.connecting.expected_workers import await_number_of_workers

            await_number_of_workers(running, 1)  # Dask would wait for the first one silently
        yield running


def compute(values: Any, client: Any) -> Any:
    """Compute dask collections on the running cluster; return other values unchanged."""
    if not any(map(is_dask_collection, values if isinstance(values, (list, tuple)) else (values,))):
        return values
    import dask

    with computing_on(client) as running:
        return dask.compute(values)[0] if running is None else running.compute(dask.delayed(values)).result()


class Collection(NamedTuple):
    """A Dask or xarray collection opened as a dask array (n, ...), with its column names or None."""

    array: Any
    names: Sequence[str] | None = None


def open_collection(data: Any, lengths: bool = False) -> Collection:
    """Convert a Dask or xarray collection to a dask array; a numpy array becomes one chunk.

    ``lengths`` computes an unknown number of records, such as a data frame's. Raises ValueError for data without
    records along the first axis.
    """
    import dask.array as da

    data, names = with_nan(data, "X"), None
    if hasattr(data, "to_dask_array"):
        data = with_fixed_partitions(data)
        if plain_dtypes(data):
            data = data.map_partitions(_as_plain, meta=_as_plain(data._meta))
        names = [str(name) for name in data.columns] if hasattr(data, "columns") else None
        with warnings.catch_warnings():  # pandas' strings become objects, as intended
            warnings.filterwarnings("ignore", "Dask currently has limited support", UserWarning)
            array = data.to_dask_array(lengths=True if lengths else None)
    elif is_data_array(data):
        array = da.asarray(data.data)
    else:
        array = data if isinstance(data, da.Array) else da.from_array(as_numpy(data, "X"), chunks=-1)
    if array.ndim == 0:
        raise ValueError("expected an array of records (n, ...), got a single number")
    if lengths and np.isnan(array.shape[0]):
        array = array.compute_chunk_sizes()
    if array.ndim > 1:
        array = array.rechunk(dict.fromkeys(range(1, array.ndim), -1))
    return Collection(array, names)


def plain_dtypes(data: Any) -> dict[Any, str] | str:
    """Return numpy's dtypes to use for pandas' nullable and Arrow numbers, by column; a series' own.

    Booleans next to numbers become small integers, because one array of both would have objects.
    """
    import pandas  # type: ignore[import-untyped]

    types = pandas.api.types

    def plain(dtype: Any) -> str:
        if not (types.is_extension_array_dtype(dtype) and types.is_numeric_dtype(dtype)):
            return ""
        return "bool" if types.is_bool_dtype(dtype) else "int64" if types.is_integer_dtype(dtype) else "float64"

    dtypes = data.dtypes
    if not hasattr(dtypes, "items"):
        return plain(dtypes)
    booleans = {name for name, kind in dtypes.items() if types.is_bool_dtype(kind)}
    of_booleans = dict.fromkeys(booleans if len(booleans) < len(dtypes) else (), "uint8")
    return {name: dtype for name, kind in dtypes.items() if (dtype := plain(kind))} | of_booleans


def _as_plain(part: Any) -> Any:
    """Convert a part of a data frame to numpy's numbers. Raises UserError for NA among integers."""
    dtypes = plain_dtypes(part)
    try:
        return part.astype(dtypes)
    except ValueError as error:
        names = ", ".join(map(repr, dtypes)) if isinstance(dtypes, dict) else repr(part.name)
        raise UserError(
            f"{names}: {error}; leave such records out, as by dropna(), or put a number in its place"
        ) from None


def as_result(data: Any, result: Any, name: str) -> Any:
    """Give a result the sample dimension and coordinates of ``data``, if that is an xarray array."""
    if not is_data_array(data):
        return result
    import xarray

    dim = data.dims[0]
    coords = {key: c for key, c in data.coords.items() if tuple(c.dims) in ((dim,), ())}
    dims = (dim, "output", name) if result.ndim > 2 else (dim, name)[: result.ndim]
    if not is_dask_collection(result):
        return xarray.DataArray(result, dims=dims, coords=coords)
    from dsinga.addons.fields.prediction.predicted_dataset import lazy_array

    return lazy_array(result, dims, coords)


def lazily(name: str) -> Callable[[F], F]:
    """Return a decorator that makes a method on numpy records compute dask collections lazily.

    For xarray arrays the result is one, too, with a second axis called ``name``.
    """

    def decorate(method: F) -> F:
        @functools.wraps(method)
        def apply(self: Any, X: Any) -> Any:
            check_is_fitted(self, "params_")
            records, X = X, self.as_trained(X)
            if is_dask_collection(X) and not self.is_eager and not isinstance(records, zarr.Array):
                return map_records(self, method.__name__, X, name)
            if is_dask_collection(X):
                collection = open_collection(X)
                self.check_shape(collection.array.shape[1:], collection.names)
                with naming_unsendable({"X": X}):
                    return map_records(self, method.__name__, collection.array, name).compute()
            result = method(self, as_numpy(with_nan(X, "X"), "X") if is_data_array(X) else X)
            return result if self.is_eager else as_result(X, result, name)

        return cast(F, apply)

    return decorate


def average(array: Any, weights: Any = None) -> Any:
    """Return the lazy mean of a dask array over records, weighted by ``weights`` (n,) if given."""
    import dask.array as da

    if weights is None:
        return array.mean(axis=0)
    return da.average(array, axis=0, weights=open_collection(weights, lengths=True).array)


def predicted(estimator: Any, x: Any, y: Any) -> tuple[Any, Any]:
    """Return targets and predictions of the same records as dask arrays, to compute a score."""
    records, targets = open_collection(estimator.as_trained(x), lengths=True), open_collection(y, lengths=True).array
    if len(records.array) != len(targets):
        raise ValueError(f"X has {len(records.array)} records, but y has {len(targets)}; give both as many")
    estimator.check_shape(records.array.shape[1:], records.names)
    return targets, map_records(estimator, "predict", records.array, "output")


def raw_scores(estimator: Any, x: Any) -> Any:
    """Return the net's output for records that ``fit`` has opened, lazily for a dask array."""
    if is_dask_collection(x):
        return map_records(estimator, "_outputs", x, "class")
    return estimator.for_blocks()._outputs(x.matrix if isinstance(x, SparseRecords) else x)


def map_records(estimator: Any, method: str, data: Any, name: str) -> Any:
    """Apply ``estimator.method`` to each chunk of ``data``, lazily.

    The result is of the kind of ``data``. Dask sends the estimator to each worker once.
    """
    from dsinga.cluster.lazy_prediction import map_chunks  # imports Dask, not needed for numpy arrays

    if is_dask_frame(data) and data.ndim == 2:
        return map_partitions(estimator, method, data, name)
    collection = open_collection(data)
    array = collection.array
    estimator.check_shape(array.shape[1:], collection.names)
    worker_copy = estimator.for_blocks()
    sample = getattr(worker_copy, method)(np.zeros((1, *array.shape[1:]), array.dtype))
    return as_result(data, map_chunks(array, shared(worker_copy), sample, method), name)


def map_partitions(estimator: Any, method: str, frame: Any, name: str) -> Any:
    """Apply ``estimator.method`` to each partition of a dask data frame, lazily, and keep its index.

    The result is a series, or a data frame with a column for each class, quantile, feature or target. Results with
    three axes, such as quantiles of several targets, are a dask array.
    """
    meta = _as_plain(frame._meta)
    estimator.check_shape((len(frame.columns),), [str(column) for column in frame.columns])
    worker_copy = estimator.for_blocks()
    sample = getattr(worker_copy, method)(np.zeros((1, len(frame.columns)), meta.to_numpy().dtype))
    if sample.ndim > 2:
        return map_records(estimator, method, open_collection(frame).array, name)
    columns = estimator.result_columns(name, sample.shape[1]) if sample.ndim == 2 else None
    result = _labelled(sample[:0], meta.index, columns)
    return frame.map_partitions(_compute_partition, shared(worker_copy), method, result, meta=result)


def _compute_partition(part: Any, estimator: Any, method: str, empty: Any) -> Any:
    """Task: compute one partition of a data frame; ``empty`` is the result for a partition without rows."""
    if not len(part):
        return empty
    columns = empty.columns if empty.ndim == 2 else None
    return _labelled(getattr(estimator, method)(_as_plain(part).to_numpy()), part.index, columns)


def _labelled(result: np.ndarray, index: Any, columns: Any) -> Any:
    """Return a result as a pandas series, or as a data frame with these columns."""
    import pandas

    return pandas.Series(result, index) if columns is None else pandas.DataFrame(result, index, columns)


def shared(value: Any) -> Any:
    """Return ``value`` in a form for many tasks: a large one is kept in the workers' memory."""
    import dask

    from dsinga.cluster.clients import current_client

    client = current_client() if value.nbytes > SCATTERED_BYTES else None
    if client is None or client.asynchronous:
        return dask.delayed(value, pure=False, traverse=False)
    return dask.delayed(client.scatter(value, broadcast=True, hash=False), pure=False)

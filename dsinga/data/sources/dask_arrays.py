"""Reads records from dask arrays, computed in the process and thread that reads them."""

from __future__ import annotations

import contextlib
import math
import sys
from collections.abc import Callable, Collection, Hashable, Iterator, Mapping, Sequence
from functools import partial
from itertools import product
from typing import Any, cast

import numpy as np
import zarr

from dsinga.base.errors import UserError
from dsinga.base.redaction import redacted_cause
from dsinga.base.registry import register
from dsinga.data.array_kinds import is_dask_frame
from dsinga.data.chunk_cache import ChunkCache
from dsinga.data.column import Column
from dsinga.data.missing_values import plain_array, with_nan
from dsinga.data.sendable import why_graph_unsendable
from dsinga.data.sources.arrays import (
    DataAndLabels,
    Kind,
    Labels,
    Options,
    array_labels,
    check_block,
    column_dtype,
    convert,
)
from dsinga.data.stores.chunk_files import axis_parts
from dsinga.data.stores.store_format import MAX_BLOCK_BYTES, SMALL_BYTES, block_rows


def dask_records(x: Any, y: Any, options: Options) -> DataAndLabels:
    """Open a dask array (n, ...) as records, computed when they are read."""
    return DataAndLabels("dask array", DaskColumn(with_nan(x, "x"), "x"), y)


def dask_labels(y: Any, name: str, length: int, options: Options) -> Labels:
    """Open a dask array (n, ...) as labels.

    Labels are computed at once, except for float labels of more than 128 MiB.
    """
    check_chunks(y, name)
    y = with_nan(y, name, is_label=True)
    if y.dtype.kind in "OSUT" or (y.shape[:1] == (length,) and (y.dtype.kind in "bui" or y.nbytes <= SMALL_BYTES)):
        (y,) = compute(y)
        return array_labels(plain_array(y, name), name, length, options)
    return DaskColumn(y, name, labels=True), options.classes


@register("records", "dask.Array")
def dask_kind(value: Any) -> Kind:
    """Say how a dask array is opened as records or labels."""
    return Kind("a dask array", dask_records, labels=dask_labels)


def in_chunks(array: Any) -> Any:
    """Let a zarr array above 128 MiB be read by chunks, as a dask array."""
    if not isinstance(array, zarr.Array) or not array.ndim or array.nbytes <= SMALL_BYTES:
        return array
    import dask.array as da

    rows = block_rows(array.shape[0], math.prod(array.shape[1:]) * array.dtype.itemsize, array.chunks[0])
    return da.from_zarr(array, chunks=(rows, *array.shape[1:]))


class DaskColumn(Column):
    """Records, or labels, in a dask array (length, *shape), computed chunk by chunk when read.

    If the graph only cuts an array into chunks, as ``da.from_zarr`` does, blocks are read from that array. Otherwise a
    :class:`DaskGraph` computes them. A process that loads a pickle must call :meth:`connect` before it reads.

    Args:
        array: the dask array, with chunks along the first axis only.
        labels: whether the array has labels, with label dtypes, rather than records.

    Raises:
        UserError: chunks have unknown sizes or cut records, or the dtype is not numeric.
    """

    from_files = False

    def __init__(self, array: Any, name: str, labels: bool = False):
        dtype = column_dtype(array, name, labels)
        check_chunks(array, name)
        self.labels = labels
        row_bytes = int(np.prod(array.shape[1:], dtype=np.int64)) * dtype.itemsize
        sizes = array.chunks[0] or (0,)
        block = block_rows(array.shape[0], row_bytes, max(sizes))
        super().__init__(name, array.shape[0], array.shape[1:], dtype, block)
        check_block(
            self, f"chunk it finer: {name}.rechunk({{0: {max(1, MAX_BLOCK_BYTES // 16 // max(row_bytes, 1))}}})"
        )
        self._graph = DaskGraph(array, name)
        self._ends = np.cumsum(sizes)
        self._chunks, self._array = None, None
        if max(sizes) <= block:  # else a whole chunk would be read for each block of it
            self._array = _cut_array(self._graph.tasks, self._graph.keys, array.chunks)
        self.reads_regions = self._array is not None
        if self._array is not None:
            self._graph.tasks = {}
        elif not set(range(block, array.shape[0], block)) <= set(self._ends.tolist()):
            # A chunk that several blocks share is computed once, if the whole array is small; else by each block.
            self._chunks = ChunkCache(SMALL_BYTES) if array.shape[0] * row_bytes <= SMALL_BYTES else None

    def connect(self, client: Callable[[], Any]) -> None:
        """Use the Dask client from ``client`` to fetch chunks that a cluster keeps."""
        self._graph.connect(client)

    def load(self, start: int, stop: int) -> np.ndarray:
        """Compute the rows ``start`` to ``stop``."""
        if self._array is not None:
            index = slice(start, stop), *(self.index or (slice(0, size) for size in self.shape))
            what = f"dask array: rows {start} to {stop - 1} of {self.name!r} cannot be read"
            with naming_failures(what, "see whether every worker can reach the array"):
                rows = plain_array(self._array[index], self.name)
            return convert(rows, self, self.labels)
        first, last = np.searchsorted(self._ends, [start, stop - 1], side="right").tolist()
        chunks = self._compute(range(first, last + 1))
        offset = int(self._ends[first]) - len(chunks[0])
        rows = chunks[0] if len(chunks) == 1 else np.concatenate(chunks)
        return convert(rows[start - offset : stop - offset], self, self.labels)

    def why_unsendable(self) -> str:
        """Return why the array, naming its task, cannot be sent to another process; "" if it can."""
        why = super().why_unsendable()
        if why and self._array is not None:
            return f"its chunks are of a {type(self._array).__name__}: {why}"
        return why and (why_graph_unsendable(self._graph.tasks) or why)

    def _compute(self, numbers: Sequence[int]) -> list[np.ndarray]:
        if self._chunks is None:
            return self._run(numbers)
        return [self._chunks.get((number,), partial(self._run_one, number)) for number in numbers]

    def _run_one(self, number: int) -> np.ndarray:
        return self._run([number])[0]

    def _run(self, numbers: Sequence[int]) -> list[np.ndarray]:
        which = " or ".join(str(number) for number in numbers[:3]) + (" or a later one" if len(numbers) > 3 else "")
        what = f"dask array: chunk {which} of {self.name!r} cannot be computed"
        with naming_failures(what, f"see whether {self.name}.compute() can"):
            chunks = self._graph.compute([self._graph.keys[number] for number in numbers])
        return [self._checked(chunk, number) for chunk, number in zip(chunks, numbers, strict=True)]

    def _checked(self, chunk: Any, number: int) -> np.ndarray:
        rows = plain_array(chunk, self.name)[:]  # a view, since a cache makes it read-only
        start = int(self._ends[number - 1]) if number else 0
        expected = (int(self._ends[number]) - start, *self.shape)
        if rows.shape != expected:
            raise UserError(
                f"dask array: chunk {number} of {self.name!r} has the shape {rows.shape}, but the array says "
                f"{expected}; give the right chunks= or shape= where the array is made"
            )
        return rows


def _cut_array(graph: Mapping[Any, Any], keys: Sequence[Hashable], chunks: Sequence[Sequence[int]]) -> Any:
    from dask._task_spec import DataNode, Task
    from dask.array.core import getter

    sizes, *others = chunks
    rest = tuple(slice(0, size) for (size,) in others)
    start = 0
    origins: set[Hashable] = set()
    for key, size in zip(keys, sizes, strict=True):
        task = graph.get(key)
        if not isinstance(task, Task) or task.func is not getter or len(task.args) != 2 or task.kwargs:
            return None
        if getattr(task.args[1], "value", None) != (slice(start, start + size), *rest):
            return None
        origins |= task.dependencies
        start += size
    origin = graph.get(origins.pop()) if len(origins) == 1 else None
    return origin.value if isinstance(origin, DataNode) else None


def check_chunks(array: Any, name: str) -> None:
    """Raise UserError for a dask array with chunks of unknown sizes, or with chunks that cut records."""
    if any(np.isnan(size) for sizes in array.chunks for size in sizes):
        raise UserError(
            f"the dask array {name!r} has chunks of unknown sizes; call {name}.compute_chunk_sizes() first, or "
            "to_dask_array(lengths=True) where it comes from a data frame"
        )
    if any(len(sizes) > 1 for sizes in array.chunks[1:]):
        axes = ", ".join(f"{axis}: -1" for axis in range(1, array.ndim))
        raise UserError(
            f"the dask array {name!r} has chunks of shape {array.chunksize}, which cut its records of shape "
            f"{array.shape[1:]}; chunk it along the samples only: {name}.rechunk({{0: 'auto', {axes}}})"
        )


@contextlib.contextmanager
def naming_failures(what: str, remedy: str) -> Iterator[None]:
    """Turn errors of user code into a UserError such as "chunk 3 cannot be computed"."""
    try:
        yield
    except UserError:
        raise
    except Exception as error:  # of any class
        raise UserError(f"{what} ({type(error).__name__}: {error}); {remedy}") from redacted_cause(error)


def compute(*collections: Any) -> tuple[Any, ...]:
    """Compute dask collections on the cluster that keeps their data, or else with Dask's current scheduler."""
    futures = [future for collection in collections for future in cluster_futures(collection)]
    if futures:
        client = futures[0].client
        return tuple(client.gather(client.compute(list(collections))))
    import dask

    return dask.compute(*collections)


def with_fixed_partitions(frame: Any) -> Any:
    """Stop Dask from joining partitions of a data frame or series in later computations."""
    from dask.dataframe.dask_expr import from_graph
    from dask.dataframe.dask_expr.io.parquet import ReadParquet

    if next(frame.expr.find_operations(ReadParquet), None) is None:
        return frame
    tasks = frame.optimize()  # of which Dask joins none
    keys, prefix = list(tasks.__dask_keys__()), frame._name
    return from_graph(dict(tasks.__dask_graph__()), frame._meta, tasks.divisions, keys, prefix)


class DaskGraph:
    """Computes chunks of a dask array or data frame in the calling thread, without a scheduler.

    Values that a cluster keeps, as of a persisted array, are fetched from its Dask workers.

    A process that loads a pickle with such values must call :meth:`connect` first.
    """

    def __init__(self, array: Any, name: str):
        import dask
        from dask._task_spec import convert_legacy_graph
        from dask.core import flatten

        self._futures = {future.key: future for future in _finished_futures(cluster_futures(array), name)}
        # dask.optimize fails for a frame of delayed partitions, whose keys are texts.
        optimised = array.optimize() if is_dask_frame(array) else dask.optimize(array)[0]
        # Some graphs, such as those of dask.dataframe.concat, have tasks that are tuples still.
        self.tasks: Mapping[Any, Any] = convert_legacy_graph(dict(optimised.__dask_graph__()))
        self.keys: list[Hashable] = list(flatten(optimised.__dask_keys__()))
        named = {key for task in self.tasks.values() for key in getattr(task, "dependencies", ())}
        if unknown := named - self.tasks.keys() - self._futures.keys():  # in a frame of futures, dask has them by key
            self._futures |= {future.key: future for future in _finished_futures(_futures_of_keys(unknown), name)}

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_futures": dict.fromkeys(self._futures)}  # they belong to the client of one process

    def connect(self, client: Callable[[], Any]) -> None:
        """Use the Dask client from ``client`` to fetch values that a cluster keeps."""
        if missing := [key for key, future in self._futures.items() if future is None]:
            import distributed

            here, future = client(), cast(Any, distributed.Future)  # its type of ``state`` is not what it takes
            self._futures |= {key: future(key, here, state="memory") for key in missing}

    def compute(self, keys: Sequence[Hashable]) -> list[Any]:
        """Return the chunks ``keys``, computed in one run, so that shared tasks run once."""
        from dask.core import get

        graph, cluster_keys = self._needed(keys)
        values = self._fetch(cluster_keys)
        computed = [key for key in keys if key in graph]
        results = get(graph, computed, cache=dict(values))
        values |= dict(zip(computed, results, strict=True))
        return [values[key] for key in keys]

    def _needed(self, keys: Sequence[Hashable]) -> tuple[dict[Any, Any], list[Any]]:
        graph: dict[Any, Any] = {}
        cluster_keys: list[Any] = []
        stack = list(keys)
        while stack:
            key = stack.pop()
            if key in graph or key in cluster_keys:
                continue
            if key in self._futures:
                cluster_keys.append(key)
                continue
            graph[key] = self.tasks[key]
            stack += graph[key].dependencies
        return graph, cluster_keys

    def _fetch(self, keys: Sequence[Any]) -> dict[Any, Any]:
        if not keys:
            return {}
        futures = [self._futures[key] for key in keys]
        assert all(futures), "connect was called in this process"
        return dict(zip(keys, futures[0].client.gather(futures), strict=True))


class DaskRegions:
    """Reads regions of a dask array, and computes only the chunks that a region overlaps."""

    def __init__(self, array: Any, name: str):
        self.graph, self.name, self._dtype = DaskGraph(array, name), name, array.dtype
        self._counts = tuple(map(len, array.chunks))
        self._begins = [np.cumsum([0, *sizes[:-1]]).tolist() for sizes in array.chunks]

    def read(self, region: Sequence[slice]) -> np.ndarray:
        """Compute a region, given as a slice with start and stop for each axis."""
        parts = list(product(*map(axis_parts, region, self._begins)))
        values = self.graph.compute([self.graph.keys[self._flat([axis.number for axis in part])] for part in parts])
        out = np.empty([part.stop - part.start for part in region], self._dtype)
        for part, value in zip(parts, values, strict=True):
            out[tuple(axis.place for axis in part)] = plain_array(value, self.name)[tuple(axis.inside for axis in part)]
        return out

    def _flat(self, number: Sequence[int]) -> int:
        return int(np.ravel_multi_index(number, self._counts)) if number else 0


def _finished_futures(futures: list[Any], name: str) -> list[Any]:
    """Wait for the futures in a dask array's graph and return them."""
    if futures:
        from distributed import wait

        with futures[0].client.as_current():
            wait(futures)
        for future in futures:
            if future.status != "finished":
                raise UserError(
                    f"the cluster has not computed the dask array {name!r}: {future.key} is {future.status}"
                    f"{': ' + repr(future.exception()) if future.status == 'error' else ''}"
                )
    return futures


def _futures_of_keys(keys: Collection[Any]) -> list[Any]:
    import distributed

    client = distributed.get_client()
    return [distributed.Future(key, client) for key in keys]


def cluster_futures(collection: Any) -> list[Any]:
    """Return the futures in a collection's graph: the chunks that a cluster keeps."""
    if "distributed" not in sys.modules:  # nobody has made one
        return []
    from distributed.client import futures_of

    return list(futures_of(collection))

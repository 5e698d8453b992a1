"""The graph of a dask array, computed part by part in the thread that reads; what a cluster keeps is fetched from it.

Dask is imported in functions: where there is a dask array, Dask is loaded.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Hashable, Mapping, Sequence
from itertools import product
from typing import Any, cast

import numpy as np

from dsinga.base.errors import UserError
from dsinga.data.missing_values import plain_array
from dsinga.data.stores.chunk_files import axis_parts


class DaskGraph:
    """The tasks of a dask array, after Dask has optimised them.

    The tasks that are needed run in the calling thread, one after another, without a scheduler: so a worker that reads
    waits for no thread of the cluster. Values that a cluster keeps (of a persisted array) are fetched from its Dask
    workers.

    A pickle contains the graph. Where this has keys of values that a cluster keeps, the process that loads it must call
    :meth:`connect` before it computes.

    Attributes:
        tasks: the task of each key.
        keys: the keys of the chunks, a flat list.

    Args:
        array: the dask array.
        name: the name by which messages call it.

    Raises:
        UserError: the cluster has not computed a value that it should keep.
    """

    def __init__(self, array: Any, name: str):
        import dask
        from dask.core import flatten

        self._futures = {future.key: future for future in _finished_futures(array, name)}
        (optimised,) = dask.optimize(array)
        self.tasks: Mapping[Any, Any] = dict(optimised.__dask_graph__())
        self.keys: list[Hashable] = list(flatten(optimised.__dask_keys__()))

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_futures": dict.fromkeys(self._futures)}  # they belong to the client of one process

    def connect(self, client: Callable[[], Any]) -> None:
        """Take values that a cluster keeps through the Dask client that ``client`` returns; it is called if needed."""
        if missing := [key for key, future in self._futures.items() if future is None]:
            import distributed

            here, future = client(), cast(Any, distributed.Future)  # its type of ``state`` is not what it takes
            self._futures |= {key: future(key, here, state="memory") for key in missing}

    def compute(self, keys: Sequence[Hashable]) -> list[Any]:
        """Return the values of ``keys``, all computed in one run, so that tasks that several of them need run once."""
        from dask.core import get

        graph, cluster_keys = self._needed(keys)
        values = self._fetch(cluster_keys)
        computed = [key for key in keys if key in graph]
        results = get(graph, computed, cache=dict(values))
        values |= dict(zip(computed, results, strict=True))
        return [values[key] for key in keys]

    def _needed(self, keys: Sequence[Hashable]) -> tuple[dict[Any, Any], list[Any]]:
        """Return the part of the graph that computes ``keys``, and the keys that it takes from the cluster."""
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
        """Return the values that the cluster keeps, by key."""
        if not keys:
            return {}
        futures = [self._futures[key] for key in keys]
        assert all(futures), "connect was called in this process"
        return dict(zip(keys, futures[0].client.gather(futures), strict=True))


class DaskRegions:
    """Reads regions of a dask array: of the chunks that a region touches, each is computed or fetched."""

    def __init__(self, array: Any, name: str):
        self.graph, self.name, self._dtype = DaskGraph(array, name), name, array.dtype
        self._counts = tuple(map(len, array.chunks))
        self._begins = [np.cumsum([0, *sizes[:-1]]).tolist() for sizes in array.chunks]

    def read(self, region: Sequence[slice]) -> np.ndarray:
        """Return the numbers of a region, a slice with a start and a stop along each axis."""
        parts = list(product(*map(axis_parts, region, self._begins)))
        values = self.graph.compute([self.graph.keys[self._flat([axis.number for axis in part])] for part in parts])
        out = np.empty([part.stop - part.start for part in region], self._dtype)
        for part, value in zip(parts, values, strict=True):
            out[tuple(axis.place for axis in part)] = plain_array(value, self.name)[tuple(axis.inside for axis in part)]
        return out

    def _flat(self, number: Sequence[int]) -> int:
        return int(np.ravel_multi_index(number, self._counts)) if number else 0


def _finished_futures(array: Any, name: str) -> list[Any]:
    """Return the futures in the graph of an array when they are done.

    A cluster that is busy with training could have no thread for them. Raises UserError where one has failed.
    """
    if futures := cluster_futures(array):
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


def cluster_futures(collection: Any) -> list[Any]:
    """Return the futures in the graph of a collection: the chunks that a cluster keeps."""
    if "distributed" not in sys.modules:  # nobody has made one
        return []
    from distributed.client import futures_of

    return list(futures_of(collection))

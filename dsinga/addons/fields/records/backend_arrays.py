"""Lazy arrays for xarray that join arrays of several files; finds chunks of lazy arrays."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from xarray import Variable
from xarray.backends import BackendArray
from xarray.core.indexing import (
    BasicIndexer,
    CopyOnWriteArray,
    IndexingSupport,
    LazilyIndexedArray,
    MemoryCachedArray,
    explicit_indexing_adapter,
)

from dsinga.base.cores import available_cores
from dsinga.data.sources.xarray_files import FileArray, ZarrFileArray, is_region
from dsinga.data.stores.chunk_files import MOST_THREADS

REMOTE_THREADS = 16  # that wait for chunks at a URL, or for those that zarr reads
REMOTE_BYTES = 32 << 20  # of these chunks, decoded


class _Joined(BackendArray):
    """A lazy array of variables joined along an axis or, with ``is_new``, stacked along a new first axis."""

    def __init__(self, variables: Sequence[Any], axis: int, is_new: bool):
        self._variables, self._axis, self._is_new = variables, axis, is_new
        self._ends = np.cumsum([1 if is_new else variable.shape[axis] for variable in variables])
        shape = variables[0].shape
        self.shape = (*shape[:axis], int(self._ends[-1]), *shape[axis + (not is_new) :])
        self.dtype = np.result_type(*(variable.dtype for variable in variables))

    def __getitem__(self, key: Any) -> Any:
        return explicit_indexing_adapter(key, self.shape, IndexingSupport.OUTER, self._read)

    def chunk_begins(self, axis: int) -> np.ndarray | None:
        if axis == self._axis and self._is_new:
            return np.arange(len(self._variables))
        inner = axis - (self._is_new and axis > self._axis)
        begins = [chunk_begins(variable._data, inner) for variable in self._variables]
        if axis != self._axis:
            return begins[0]
        if any(each is None for each in begins):
            return None
        return np.concatenate([each + end for each, end in zip(begins, [0, *self._ends], strict=False)])

    def _read(self, key: tuple[Any, ...]) -> np.ndarray:
        points = np.arange(self.shape[self._axis])[key[self._axis]]
        place = sum(not isinstance(each, (int, np.integer)) for each in key[: self._axis])
        parts = [self._part(key, each, place) for each in self._runs(np.atleast_1d(points))]
        joined = np.concatenate(parts, axis=place) if len(parts) > 1 else parts[0]
        return joined if np.ndim(points) else joined.take(0, axis=place)

    def _runs(self, points: np.ndarray) -> list[np.ndarray]:
        owners = np.searchsorted(self._ends, points, "right")
        return np.split(points, np.flatnonzero(np.diff(owners)) + 1)

    def _part(self, key: tuple[Any, ...], points: np.ndarray, place: int) -> np.ndarray:
        owner = int(np.searchsorted(self._ends, points[0], "right")) if len(points) else 0
        before, after = key[: self._axis], key[self._axis + 1 :]
        if self._is_new:
            values = np.expand_dims(self._variables[owner][(*before, *after)].values, place)
            return np.repeat(values, len(points), axis=place)
        places = points - (int(self._ends[owner - 1]) if owner else 0)
        is_range = len(places) > 0 and bool((np.diff(places) == 1).all())
        chosen = slice(int(places[0]), int(places[-1]) + 1) if is_range else places
        return np.asarray(self._variables[owner][(*before, chosen, *after)].values)


def joined(variables: Sequence[Any], dim: str) -> Any:
    """Join variables along an existing or new dimension, lazily if in a file."""
    first, is_new = variables[0], dim not in variables[0].dims
    if getattr(first, "_in_memory", True):
        result: Any = Variable.concat(list(variables), dim)  # type: ignore[no-untyped-call]
        return Variable(result.dims, result.data, first.attrs, first.encoding)
    encoding = dict(first.encoding)
    if is_new and "preferred_chunks" in encoding:
        encoding["preferred_chunks"] = {dim: 1, **encoding["preferred_chunks"]}
    data = LazilyIndexedArray(_Joined(variables, 0 if is_new else first.dims.index(dim), is_new))
    return Variable((dim, *first.dims) if is_new else first.dims, data, first.attrs, encoding)


def _file_of(data: Any) -> Any:
    """Return the file array, the first of several, in xarray's nested lazy arrays; None if there is none."""
    while not isinstance(data, FileArray) and data is not None:
        data = data._variables[0]._data if isinstance(data, _Joined) else getattr(data, "array", None)
    return data


def is_remote(data: Any) -> bool:
    """Return whether nested lazy arrays read a zarr array that is not in local files."""
    data = _file_of(data)
    return isinstance(data, ZarrFileArray) and data.is_remote


def plain_file(data: Any) -> tuple[ZarrFileArray, list[int]] | None:
    """Return the zarr array of which nested lazy arrays are a region, and where it starts.

    None for other selections, and where xarray decodes numbers.
    """
    while isinstance(data, (MemoryCachedArray, CopyOnWriteArray)):
        data = data.array
    if not isinstance(data, LazilyIndexedArray) or not isinstance(data.array, ZarrFileArray):
        return None
    if not is_region(data.key):
        return None
    return data.array, [part.indices(size)[0] for part, size in zip(data.key.tuple, data.array.shape, strict=True)]


def most_threads(data: Any) -> int:
    """Return the number of threads that read chunks of xarray's nested lazy arrays at once."""
    data = _file_of(data)
    if not isinstance(data, ZarrFileArray):
        return 1
    if not data.reads_files:
        return max(MOST_THREADS, min(REMOTE_THREADS, REMOTE_BYTES // data.chunk_bytes))
    return min(MOST_THREADS, available_cores())


def chunk_begins(data: Any, axis: int) -> np.ndarray | None:
    """Return the first points of chunks along an axis of nested lazy arrays; None if unknown."""
    if isinstance(data, ZarrFileArray):
        return np.arange(0, data.shape[axis], data.chunks[axis])
    if isinstance(data, _Joined):
        return data.chunk_begins(axis)
    inner, key = getattr(data, "array", None), getattr(data, "key", None)
    if inner is None or isinstance(inner, np.ndarray):
        return None
    if key is None:
        return chunk_begins(inner, axis)
    kept = [place for place, part in enumerate(key.tuple) if not isinstance(part, (int, np.integer))]
    part, begins = key.tuple[kept[axis]], chunk_begins(inner, kept[axis])
    if begins is None or not isinstance(key, BasicIndexer) or part.step not in (None, 1):
        return None
    start, stop, _ = part.indices(inner.shape[kept[axis]])
    return np.array([0, *(begins[(start < begins) & (begins < stop)] - start)])

"""Lazy arrays for xarray: errors name the variable or the zarr chunk, and several files are joined as one array.

This file imports xarray, and is imported where somebody has a Dataset.
"""

from __future__ import annotations

import copy
import math
import os
from collections.abc import Sequence
from typing import Any

import numpy as np
from xarray import Variable
from xarray.backends import BackendArray
from xarray.core.indexing import BasicIndexer, IndexingSupport, LazilyIndexedArray, explicit_indexing_adapter

from dsinga.base.errors import UserError
from dsinga.base.redaction import redacted_cause
from dsinga.base.serial_executor import available_cores
from dsinga.data.stores.chunk_files import MOST_THREADS, SMALL_BYTES, FileVersion, RegionReader, version_of
from dsinga.data.stores.store_faults import chunk_fault

REMOTE_THREADS = 16  # that wait for chunks at a URL, or for those that zarr reads
REMOTE_BYTES = 32 << 20  # of these chunks, decoded


def reading_files(dataset: Any) -> Any:
    """Return an xarray Dataset like ``dataset``, whose variables in files are read by arrays of this module.

    What xarray does after it has read (packed numbers, masks, selections) stays, and so do numbers that come from
    elsewhere: memory, or Dask.
    """
    dataset, source = dataset.copy(deep=False), dataset.encoding.get("source")
    for name, variable in dataset.variables.items():
        if name in dataset.indexes or variable.chunks is not None or getattr(variable, "_in_memory", True):
            continue
        try:
            data = _with_files(variable._data, str(name), source)
        except (AttributeError, TypeError):  # of another version of xarray, which has its arrays elsewhere
            data = None
        if data is not None:
            variable._data = data
    return dataset


def _with_files(data: Any, name: str, source: Any) -> Any:
    """Return a copy of xarray's nested lazy arrays around another one of a file; None where there is none.

    ``source`` is the path from which xarray has opened the Dataset, None where it is not known.
    """
    if isinstance(data, _FileArray):
        return None
    is_zarr = type(data).__name__ == "ZarrArrayWrapper"
    if isinstance(data, BackendArray) and not is_zarr:
        is_file = isinstance(source, str) and os.path.isfile(source)
        return _FileArray(data, name, FileVersion(source) if is_file else None)
    if is_zarr:
        return _ZarrArray(data, name, version_of(data.get_array()))
    inner = getattr(data, "array", None)
    inner = None if inner is None or isinstance(inner, np.ndarray) else _with_files(inner, name, source)
    if inner is None:
        return None
    data = copy.copy(data)
    data.array = inner
    return data


class _FileArray(BackendArray):
    """An array of a file, whose errors name the variable.

    Args:
        wrapper: the array as xarray has it.
        name: the name of the variable.
        version: that of its file when it was opened, None where it is not known.
    """

    def __init__(self, wrapper: Any, name: str, version: FileVersion | None):
        self._wrapper, self._name, self._version = wrapper, name, version
        self.shape, self.dtype = wrapper.shape, wrapper.dtype

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self._wrapper, self._name, self._version)

    def __getitem__(self, key: Any) -> Any:
        try:
            numbers = self._read(key)
            if self._version is not None:
                self._version.check()
            return numbers
        except UserError as error:
            raise UserError(f"variable {self._name!r}: {error}") from error.__cause__
        except Exception as error:  # of files and codecs: any class
            raise UserError(
                f"variable {self._name!r} cannot be read ({type(error).__name__}: {error}); write its file again, or "
                "see whether every process can reach it"
            ) from redacted_cause(error)

    def _read(self, key: Any) -> Any:
        return self._wrapper[key]


class _ZarrArray(_FileArray):
    """An array of zarr, whose errors name the chunk, too; :class:`RegionReader` reads regions of files."""

    def __init__(self, wrapper: Any, name: str, version: FileVersion | None):
        super().__init__(wrapper, name, version)
        self._array = wrapper.get_array()
        self.chunks, self.chunk_bytes = self._array.chunks, math.prod(self._array.chunks) * self.dtype.itemsize
        self._reader = RegionReader(self._array)

    def _read(self, key: Any) -> Any:
        bounds = [_bounds(part, size) for part, size in zip(key.tuple, self.shape, strict=False)]
        is_region = isinstance(key, BasicIndexer) and all(isinstance(part, slice) for part in key.tuple)
        region = tuple(slice(start, stop) for start, stop, _ in bounds)
        try:
            if is_region and self._reader.reads_files and all(step == 1 and low <= high for low, high, step in bounds):
                return self._reader.read(region)
            return self._wrapper[key]
        except Exception as error:  # of files and codecs: any class
            raise chunk_fault(self._array, region, error) from error


def _bounds(part: Any, size: int) -> tuple[int, int, int]:
    """Return the first and the last point, plus 1, of an index along an axis; and its step, 0 where it has none."""
    if isinstance(part, slice):
        start, stop, step = part.indices(size)
        return (start, stop, step) if step > 0 else (stop + 1, start + 1, step)
    points = np.asarray(part) % max(size, 1)
    return (int(points.min()), int(points.max()) + 1, 0) if points.size else (0, 0, 0)


class _Joined(BackendArray):
    """Variables that follow one another along an axis, or, of ``is_new``, are the points of a first axis."""

    def __init__(self, variables: Sequence[Any], axis: int, is_new: bool):
        self._variables, self._axis, self._is_new = variables, axis, is_new
        self._ends = np.cumsum([1 if is_new else variable.shape[axis] for variable in variables])
        shape = variables[0].shape
        self.shape = (*shape[:axis], int(self._ends[-1]), *shape[axis + (not is_new) :])
        self.dtype = np.result_type(*(variable.dtype for variable in variables))

    def __getitem__(self, key: Any) -> Any:
        return explicit_indexing_adapter(key, self.shape, IndexingSupport.OUTER, self._read)

    def chunk_begins(self, axis: int) -> np.ndarray | None:
        """Return the first points of the chunks along an axis; None where not known."""
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
        """Return points in parts that each lie in one variable, at least one part."""
        owners = np.searchsorted(self._ends, points, "right")
        return np.split(points, np.flatnonzero(np.diff(owners)) + 1)

    def _part(self, key: tuple[Any, ...], points: np.ndarray, place: int) -> np.ndarray:
        """Return the numbers at points of the axis that lie in one variable."""
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
    """Return variables joined along a dimension, which may be a new one; lazily where the first is in a file."""
    first, is_new = variables[0], dim not in variables[0].dims
    if getattr(first, "_in_memory", True):
        result: Any = Variable.concat(list(variables), dim)  # type: ignore[no-untyped-call]
        return Variable(result.dims, result.data, first.attrs, first.encoding)
    encoding = dict(first.encoding)
    if is_new and "preferred_chunks" in encoding:
        encoding["preferred_chunks"] = {dim: 1, **encoding["preferred_chunks"]}
    data = LazilyIndexedArray(_Joined(variables, 0 if is_new else first.dims.index(dim), is_new))
    return Variable((dim, *first.dims) if is_new else first.dims, data, first.attrs, encoding)


def most_threads(data: Any) -> int:
    """Return the number of threads that read chunks of xarray's nested lazy arrays at once."""
    while not isinstance(data, _FileArray) and data is not None:
        data = data._variables[0]._data if isinstance(data, _Joined) else getattr(data, "array", None)
    if not isinstance(data, _ZarrArray):
        return 1
    if not data._reader.reads_files:
        return max(MOST_THREADS, min(REMOTE_THREADS, REMOTE_BYTES // data.chunk_bytes))
    return min(MOST_THREADS, available_cores()) if data.chunk_bytes > SMALL_BYTES else 1


def chunk_begins(data: Any, axis: int) -> np.ndarray | None:
    """Return the first points of the chunks along an axis of xarray's nested lazy arrays; None where not known."""
    if isinstance(data, _ZarrArray):
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

"""Reads xarray objects from files with errors that name the variable or chunk, and reports missing chunks."""

from __future__ import annotations

import copy
import math
import os
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import zarr
from xarray import Dataset
from xarray.backends import BackendArray
from xarray.core.indexing import BasicIndexer, VectorizedIndexer

from dsinga.base.errors import UserError
from dsinga.base.redaction import redacted_cause
from dsinga.data.array_kinds import with_origins
from dsinga.data.stores.chunk_files import FileVersion, RegionReader, local_folder, version_of
from dsinga.data.stores.missing_chunks import CheckedArray, MissingChunks
from dsinga.data.stores.store_faults import check_equal_chunks, check_group, chunk_fault


def reading_files(value: Any) -> Any:
    """Make an xarray object read its files by this module, so that errors name variable or chunk.

    xarray's unpacking, masks and selections stay.
    """
    value, source = value.copy(deep=False), value.encoding.get("source")
    arrays: list[zarr.Array] = []
    variables = value.variables.items() if isinstance(value, Dataset) else [(value.name or "x", value.variable)]
    for name, variable in variables:
        if name in value.indexes or (variable.chunks is None and getattr(variable, "_in_memory", True)):
            continue
        with_files = partial(files_array, name=str(name), source=source, arrays=arrays)
        try:
            lazy = variable._data if variable.chunks is None else None
            data = with_origins(variable._data, with_files) if lazy is None else with_files(lazy)
        except (AttributeError, TypeError):  # of another version of xarray, which has its arrays elsewhere
            continue
        if data is not None:
            variable._data = data
    _check_metadata(arrays, value.indexes)
    return value


def _check_metadata(arrays: Sequence[zarr.Array], indexes: Mapping[Any, Any]) -> None:
    groups: dict[Any, list[zarr.Array]] = {}
    for array in arrays:
        groups.setdefault((id(array.store), array.path.rpartition("/")[0]), []).append(array)
    for (_, path), members in groups.items():
        try:
            group = zarr.open_group(members[0].store, path=path, mode="r")
        except Exception:  # of a store without the group, and of file systems: any class
            check_group(None, members)
            continue
        is_known = group.metadata.consolidated_metadata is not None or local_folder(members[0]) is not None
        coordinates = [group[str(name)] for name in indexes if is_known and str(name) in group]
        check_group(group, [*members, *coordinates])  # type: ignore[list-item]
        for name, index in indexes.items():
            is_ordered = index.is_monotonic_increasing or index.is_monotonic_decreasing
            if not (is_ordered and index.is_unique) and str(name) in group:
                CheckedArray(group[str(name)])[()]  # type: ignore[arg-type]


def files_array(data: Any, name: str, source: Any = None, arrays: list[zarr.Array] | None = None) -> Any:
    """Wrap the file array inside xarray's lazy arrays by one that names errors; None if there is no file."""
    if isinstance(data, FileArray):
        return None
    is_zarr = type(data).__name__ == "ZarrArrayWrapper"
    if isinstance(data, BackendArray) and not is_zarr:
        is_file = isinstance(source, str) and os.path.isfile(source)
        return FileArray(data, name, FileVersion(source) if is_file else None)
    if is_zarr:
        array = data.get_array()
        check_equal_chunks(array)
        if arrays is not None:
            arrays.append(array)
        return ZarrFileArray(data, name, version_of(array))
    inner = getattr(data, "array", None)
    inner = None if inner is None or isinstance(inner, np.ndarray) else files_array(inner, name, source, arrays)
    if inner is None:
        return None
    data = copy.copy(data)
    data.array = inner
    return data


def checked_array(data: Any, name: str) -> Any:
    """Wrap xarray's lazy arrays like :func:`files_array`, after checking their metadata."""
    arrays: list[zarr.Array] = []
    data = files_array(data, name, None, arrays)
    check_group(None, arrays)
    return data


class FileArray(BackendArray):
    """Reads an array of a file for xarray; its errors name the variable."""

    def __init__(self, wrapper: Any, name: str, version: FileVersion | None):
        self._wrapper, self._name, self._version = wrapper, name, version
        self.shape, self.dtype = wrapper.shape, wrapper.dtype

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self._wrapper, self._name, self._version)

    def __getitem__(self, key: Any) -> Any:
        return self._checked(self._read, key)

    def _checked(self, read: Callable[[Any], Any], key: Any) -> Any:
        try:
            numbers = read(key)
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


class ZarrFileArray(FileArray):
    """Reads a zarr array for xarray; its errors name the variable and the chunk.

    Attributes:
        chunks: the points of a chunk along each axis.
        chunk_bytes: the bytes of a decoded chunk.
        reads_files: whether chunks are read as local files, without zarr.
        is_remote: whether the store is at a URL, in memory, or references elsewhere.
    """

    def __init__(self, wrapper: Any, name: str, version: FileVersion | None):
        super().__init__(wrapper, name, version)
        self._array = wrapper.get_array()
        self.chunks, self.chunk_bytes = self._array.chunks, math.prod(self._array.chunks) * self.dtype.itemsize
        self._missing = MissingChunks(self._array)
        self._reader = RegionReader(self._array, self._missing.check)
        self.reads_files, self.is_remote = self._reader.reads_files, local_folder(self._array) is None

    def read(self, region: tuple[slice, ...]) -> np.ndarray:
        """Read a region, slices with start and stop, without xarray."""
        numbers: np.ndarray = self._checked(self._read_region, region)
        return numbers

    def _read_region(self, region: tuple[slice, ...]) -> np.ndarray:
        try:
            return self._reader.read(region)
        except UserError:  # which names the chunk
            raise
        except Exception as error:  # of files and codecs: any class
            raise chunk_fault(self._array, region, error) from error

    def _read(self, key: Any) -> Any:
        if is_region(key):
            parts = [part.indices(size) for part, size in zip(key.tuple, self.shape, strict=True)]
            return self._read_region(tuple(slice(start, max(start, stop)) for start, stop, _ in parts))
        numbers = self._numbers(key)
        points = [np.atleast_1d(np.arange(size)[part]) for part, size in zip(key.tuple, self.shape, strict=True)]
        if not isinstance(key, VectorizedIndexer):
            self._missing.check(np.asarray(numbers).reshape([len(axis) for axis in points]), points)
            return numbers
        chunks = [axis // chunk for axis, chunk in zip(np.broadcast_arrays(*points), self.chunks, strict=True)]
        for index in set(zip(*(axis.ravel().tolist() for axis in chunks), strict=True)):
            self._missing.check_chunk(index)
        return numbers

    def _numbers(self, key: Any) -> Any:
        bounds = [_bounds(part, size) for part, size in zip(key.tuple, self.shape, strict=False)]
        region = tuple(slice(start, stop) for start, stop, _ in bounds)
        try:
            return self._wrapper[key]
        except Exception as error:  # of files and codecs: any class
            raise chunk_fault(self._array, region, error) from error


def is_region(key: Any) -> bool:
    """Return whether an index of xarray is slices with step 1."""
    is_basic = isinstance(key, BasicIndexer)
    return is_basic and all(isinstance(part, slice) and part.step in (None, 1) for part in key.tuple)


def _bounds(part: Any, size: int) -> tuple[int, int, int]:
    """Return which range [first, last + 1) of an axis an index needs, and its step."""
    if isinstance(part, slice):
        start, stop, step = part.indices(size)
        return (start, stop, step) if step > 0 else (stop + 1, start + 1, step)
    points = np.asarray(part) % max(size, 1)
    return (int(points.min()), int(points.max()) + 1, 0) if points.size else (0, 0, 0)

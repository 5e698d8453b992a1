"""Lets xarray read the chunks of a zarr store as files, and errors of files name the variable and the chunk."""

from __future__ import annotations

import copy
import os
from typing import Any

import numpy as np
from xarray.backends import BackendArray
from xarray.core.indexing import BasicIndexer

from dsinga.base.errors import UserError
from dsinga.base.redaction import redacted_cause
from dsinga.data.file_version import FileVersion
from dsinga.data.sources.zarr_faults import chunk_fault, version_of
from dsinga.data.stores.chunk_files import RegionReader


def reading_files(dataset: Any) -> Any:
    """Return an xarray Dataset like ``dataset``, of which variables in files are read as this module says.

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
    if type(data).__name__ == "ZarrArrayWrapper":
        return _ZarrArray(data, name, version_of(data.get_array()))
    if isinstance(data, BackendArray):
        is_file = isinstance(source, str) and os.path.isfile(source)
        return _FileArray(data, name, FileVersion(source) if is_file else None)
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

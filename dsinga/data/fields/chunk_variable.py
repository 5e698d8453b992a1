"""Lets xarray read the chunks of a zarr store as files."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
from xarray.backends import BackendArray
from xarray.core.indexing import BasicIndexer

from dsinga.data.sources.zarr_chunks import ChunkFiles, has_plain_chunks


def reading_files(variable: Any) -> Any:
    """Return an xarray Variable like ``variable`` that reads the chunks of its zarr store as files, where it can.

    What xarray does after it has read (packed numbers, masks, selections) stays. ``variable`` is returned where its
    numbers come from elsewhere.
    """
    try:
        data = _with_files(variable._data)
    except (AttributeError, TypeError):  # of another version of xarray, which has its arrays elsewhere
        data = None
    if data is None:
        return variable
    variable = variable.copy(deep=False)
    variable._data = data
    return variable


def _with_files(data: Any) -> Any:
    """Return a copy of xarray's nested lazy arrays around another one of zarr; None where there is none."""
    if type(data).__name__ == "ZarrArrayWrapper":
        return _FileArray(data) if has_plain_chunks(data.get_array()) else None
    inner = getattr(data, "array", None)
    inner = None if inner is None or isinstance(inner, np.ndarray) else _with_files(inner)
    if inner is None:
        return None
    data = copy.copy(data)
    data.array = inner
    return data


class _FileArray(BackendArray):
    """An array of zarr whose regions are read by :class:`ChunkFiles`; all other indices go to zarr.

    Args:
        wrapper: the array as xarray has it.
    """

    def __init__(self, wrapper: Any):
        self._wrapper = wrapper
        self.shape, self.dtype = wrapper.shape, wrapper.dtype
        self._files = ChunkFiles(wrapper.get_array())

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self._wrapper,)

    def __getitem__(self, key: Any) -> Any:
        parts = key.tuple
        if isinstance(key, BasicIndexer) and all(isinstance(part, slice) for part in parts):
            bounds = [part.indices(size) for part, size in zip(parts, self.shape, strict=True)]
            if all(step == 1 and start <= stop for start, stop, step in bounds):
                return self._files.read(tuple(slice(start, stop) for start, stop, _ in bounds))
        return self._wrapper[key]

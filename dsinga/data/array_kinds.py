"""Says which library an array or a data frame is of, without importing any library."""

from __future__ import annotations

import os
import sys
from typing import Any


def is_path(value: Any) -> bool:
    """Return whether ``value`` is a path or a URL."""
    return isinstance(value, (str, os.PathLike))


def is_array(value: Any) -> bool:
    """Return whether ``value`` is an array of any library, or a list: what numpy converts to an array."""
    return hasattr(value, "__array__") or isinstance(value, list)


def is_dask_collection(value: Any) -> bool:
    """Return whether Dask computes ``value``: an array, data frame or series of Dask, or an xarray object of these."""
    dask = sys.modules.get("dask")
    return dask is not None and dask.is_dask_collection(value)


def is_dask_array(value: Any) -> bool:
    """Return whether ``value`` is a dask array."""
    return _is_a(value, "dask.array", "Array")


def is_dask_frame(value: Any) -> bool:
    """Return whether ``value`` is a data frame or a series of Dask."""
    return _is_a(value, "dask.dataframe", "DataFrame", "Series")


def is_frame(value: Any) -> bool:
    """Return whether ``value`` is a data frame or a series of pandas or Dask."""
    return _is_a(value, "pandas", "DataFrame", "Series") or is_dask_frame(value)


def is_data_array(value: Any) -> bool:
    """Return whether ``value`` is an xarray DataArray."""
    return _is_a(value, "xarray", "DataArray")


def is_dataset(value: Any) -> bool:
    """Return whether ``value`` is an xarray Dataset."""
    return _is_a(value, "xarray", "Dataset")


def _is_a(value: Any, module: str, *names: str) -> bool:
    """Return whether ``value`` is an instance of a class of a module."""
    loaded = sys.modules.get(module)
    return loaded is not None and isinstance(value, tuple(getattr(loaded, name) for name in names))

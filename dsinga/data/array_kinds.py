"""Says which library an array or a data frame is of, without importing any library."""

from __future__ import annotations

import os
import sys
from typing import Any


def is_a(value: Any, module: str, *names: str) -> bool:
    """Return whether ``value`` is an instance of a class of a module, which is not imported."""
    loaded = sys.modules.get(module)
    return loaded is not None and isinstance(value, tuple(getattr(loaded, name) for name in names))


def is_of(value: Any, package: str, *names: str) -> bool:
    """Return whether ``value`` is an instance of a class with one of these names anywhere in a package."""
    return any(base.__module__.split(".")[0] == package and base.__name__ in names for base in type(value).__mro__)


def is_dask_collection(value: Any) -> bool:
    """Return whether Dask computes ``value``: an array, data frame or series of Dask, or an xarray object of these."""
    dask = sys.modules.get("dask")
    return dask is not None and dask.is_dask_collection(value)


def is_dask_frame(value: Any) -> bool:
    """Return whether ``value`` is a data frame or a series of Dask."""
    return is_a(value, "dask.dataframe", "DataFrame", "Series")


def is_data_array(value: Any) -> bool:
    """Return whether ``value`` is an xarray DataArray."""
    return is_a(value, "xarray", "DataArray")


def is_path(value: Any) -> bool:
    """Return whether ``value`` is a path or a URL."""
    return isinstance(value, (str, os.PathLike))

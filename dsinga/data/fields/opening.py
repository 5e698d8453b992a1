"""Opens the Dataset at a path or URL, whose errors name what is damaged. xarray is imported only here."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterable
from typing import Any

import zarr

from dsinga.base.errors import UserError
from dsinga.base.redaction import redact, redacted_cause
from dsinga.base.regular_files import open_regular
from dsinga.data.filesystem import has_zarr_metadata, is_url, zarr_store
from dsinga.data.microscopy.opening import open_path_of_image
from dsinga.data.sources.zarr_faults import check_group, check_members

OPEN_SEVERAL = "open several as one Dataset: dsinga.data.open_stores(paths)"


def open_path(path: str) -> Any:
    """Return the Dataset at an absolute path or URL, of which nothing but coordinates is read.

    An OME-Zarr image, or one of its levels, is opened as :func:`dsinga.data.open_ome_zarr` does. Raises UserError
    where there is none, or it cannot be opened.
    """
    try:
        import xarray
    except ImportError:
        raise UserError("windows of fields need xarray: pip install 'dsinga[xarray]'") from None
    if (image := open_path_of_image(path)) is not None:
        return image
    is_zarr = path.rstrip("/").endswith(".zarr") or has_zarr_metadata(path)
    try:
        if is_zarr:
            with warnings.catch_warnings():  # of a store without consolidated metadata, which is as good
                warnings.filterwarnings("ignore", "Failed to open Zarr store with consolidated metadata")
                opened = xarray.open_zarr(zarr_store(path, read_only=True), chunks=None)
            _check_group(path, map(str, opened.variables))
            opened.encoding["source"] = path  # as xarray says of files
            return opened
        if not is_url(path):
            _check_file(path)
        return xarray.open_dataset(path)
    except UserError:
        raise
    except Exception as error:  # of any engine: any class
        fault = f"{type(error).__name__}: {error}"
        if is_zarr:
            _name_fault(path)
        remedy = f"; {OPEN_SEVERAL}" if "*" in path else ""
        raise UserError(f"{path} cannot be opened as a Dataset ({redact(fault, path)}){remedy}") from redacted_cause(
            error, path
        )


def _check_group(path: str, names: Iterable[str]) -> None:
    """Raise UserError where the consolidated metadata of a zarr group contradict the arrays of some names."""
    group = zarr.open_group(store=zarr_store(path, read_only=True), mode="r")
    is_listed = group.metadata.consolidated_metadata is not None or not is_url(path)
    check_group(group, [group[name] for name in names] if is_listed else ())  # type: ignore[misc]


def _check_file(path: str) -> None:
    """Raise an error where there is no regular file, or one of HDF5 that is damaged."""
    if os.path.isdir(path):  # of an engine that reads folders
        return
    with open_regular(path) as file:
        is_hdf5 = file.read(4) == b"\x89HDF"
    if is_hdf5:
        try:
            import h5py  # type: ignore[import-untyped]
        except ImportError:
            return
        with h5py.File(path, "r") as file:  # h5netcdf, where this fails, prints another error when it is freed
            file.attrs.get("_nc3_strict")


def _name_fault(path: str) -> None:
    """Raise UserError for the part of a zarr store that is damaged, where one is found."""
    try:
        check_members(path)
    except UserError:
        raise
    except Exception:  # of the group itself, of which the error that was raised first says as much
        return

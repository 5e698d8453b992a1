"""Checks that references to netCDF or HDF5 files unpack numbers as the files themselves do."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import numpy as np
import zarr

from dsinga.data.missing_values import UNPACKED


def scale_faults(array: zarr.Array) -> list[str]:
    """Say which netCDF or HDF5 files pack numbers unlike the references to them, a sentence for each.

    Files at URLs, and files that h5py cannot open, are skipped.
    """
    files = getattr(getattr(array.store, "_store", None), "fs", None)
    references: Mapping[str, Any] = getattr(files, "references", {})
    keys = [key for key in references if key.startswith(f"{array.path}/") and isinstance(references[key], list)]
    known = {**UNPACKED, "_FillValue": array.fill_value, **array.attrs}
    faults = []
    for path, key in {references[key][0]: key for key in reversed(keys)}.items():
        there = {} if "://" in path else _attributes(path, array.path, files)
        for name in (*UNPACKED, "_FillValue") if there else ():
            here, other = known[name], there.get(name, UNPACKED.get(name))
            if None not in (here, other) and here != other and (here == here or other == other):
                faults.append(
                    f"{array.path!r} has the {name} {here:g} by the references, but {other:g} in "
                    f"{os.path.basename(path)}, to which {key} leads; join the files by dsinga.data.open_stores(paths)"
                )
    return faults


def _attributes(path: str, name: str, files: Any) -> dict[str, Any]:
    try:
        import h5py  # type: ignore[import-untyped]

        files.fss[None].sync_fs.cat_file(path, 0, 8)  # raises where it is no regular file in an allowed folder
        with h5py.File(path, "r") as file:
            return {"": None, **{key: np.ravel(value)[0] for key, value in file[name].attrs.items() if np.size(value)}}
    except Exception:  # of packages and files: any class
        return {}

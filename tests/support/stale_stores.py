"""Zarr groups whose consolidated metadata are older than their arrays."""

from typing import Any

import zarr

STALE = ["dtype", "shorter", "longer", "chunks", "gone", "_FillValue", "units", "scale_factor"]


def make_stale(path: Any, name: str, what: str) -> None:
    """Change an array of a group in one of the ways ``STALE``, but not the group's consolidated metadata."""
    group: Any = zarr.open_group(path, mode="a", use_consolidated=False)
    array = group[name]
    rows, *rest = array.shape
    changes: dict[str, dict[str, Any]] = {
        "dtype": {"dtype": "f8"},
        "shorter": {"shape": (rows - 2, *rest)},
        "longer": {"shape": (rows * 2, *rest)},
        "chunks": {"chunks": (1, *array.chunks[1:])},
    }
    if what in changes:
        facts = {"dtype": array.dtype, "shape": array.shape, "chunks": array.chunks, **changes[what]}
        group.create_array(name, overwrite=True, attributes=dict(array.attrs), **facts)[...] = 1
    elif what == "gone":
        del group[name]
    else:
        array.attrs[what] = "days since 2000-01-01" if what == "units" else 2.0

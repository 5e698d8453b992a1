"""Opens the data frames of any library, and files and folders of parquet, as a Frame."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dsinga.addons.tables.frames import DaskFrame, Frame, MemoryFrame, import_arrow
from dsinga.base.errors import UserError
from dsinga.data.array_kinds import is_a, is_arrow_table, is_dask_frame, is_path
from dsinga.data.filesystem import resolve

INSTEAD = {  # for objects that are no frame, by a method that they have
    "read_all": "; it can be read once only: give what its read_all() returns",
    "collect": "; give what its collect() returns",
    "to_frame": "; give a frame: what its to_frame() returns, or frame[[...]]",
    "to_table": "; give the path of its files, or what its to_table() returns",
}


def open_frame(value: Any, roots: Sequence[str] = ()) -> Frame:
    """Open a data frame, or the one at a path, for reading in parts."""
    import_arrow()
    if isinstance(value, Frame):
        return value
    if is_path(value):
        from dsinga.addons.tables.parquet import ParquetFrame  # which frames in memory do not need

        return ParquetFrame(resolve(value, roots, "give a file or folder of parquet"))
    if is_dask_frame(value) and value.ndim == 2:
        return DaskFrame(value)
    if is_a(value, "pandas", "DataFrame") or is_arrow_table(value):
        return MemoryFrame(value)
    remedy = next((text for method, text in INSTEAD.items() if hasattr(value, method)), "")
    raise UserError(
        "a table is a data frame of pandas, Dask, Polars or Arrow, or the path of a folder or file of parquet, not a "
        f"{type(value).__name__}{remedy}"
    )

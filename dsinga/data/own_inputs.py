"""Refuses to write a lazy result over the data that it is computed from."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Any

import zarr
from zarr.abc.store import Store

from dsinga.base.errors import UserError
from dsinga.base.redaction import redact
from dsinga.data.array_kinds import is_path, origins
from dsinga.data.filesystem import exists, is_references, zarr_store
from dsinga.data.locations import absolute, file_system, is_url, join
from dsinga.data.stores.chunk_files import location_of


def check_apart(target: Any, inputs: Iterable[str], component: str = "") -> None:
    """Raise UserError if writing ``target`` would overwrite one of the ``inputs`` of a computation."""
    if read := overwritten(target, inputs, component):
        raise UserError(
            f"the prediction is computed from {redact(read)} while it is written, so that it cannot replace it; write "
            "to another path"
        )


def overwritten(target: Any, inputs: Iterable[str], component: str = "") -> str:
    """Return the input that writing ``target`` would replace; "" if none."""
    place = place_of(target)
    written = join(place, component.strip("/")) if place is not None else ""
    for source in inputs if written else ():
        store: Any = zarr_store(source, read_only=True) if is_references(source) else None
        references = store._store.fs.references.values() if store is not None else ()
        for read in [source, *{each[0] for each in references if isinstance(each, list)}]:
            path = place_of(read) or read
            if f"{path}/".startswith(f"{written}/") or written.startswith(f"{path}/") and exists(written):
                return read
    return ""


def place_of(value: Any) -> str | None:
    """Return the path without links, or the normalised URL, of a path, store or array; None if unknown."""
    if isinstance(value, Store):
        return place_of(location_of(value))
    if hasattr(value, "fs") and hasattr(value, "root"):  # a mapping of fsspec
        return place_of(getattr(value.fs, "sync_fs", value.fs).unstrip_protocol(value.root))
    if hasattr(value, "store") and hasattr(value, "path"):  # an array or a group of zarr, or a store with a path in it
        return join(place_of(value.store) or "", value.path)
    if not is_path(value):
        return None
    path = absolute(os.fspath(value).rpartition("::")[2])
    if not is_url(path):
        return os.path.realpath(path)
    try:
        filesystem, path = file_system(path)
        return str(filesystem.unstrip_protocol(path)).rstrip("/")
    except (UserError, NotImplementedError):  # of a protocol without a package
        return path.rstrip("/")


def inputs_of(array: Any) -> tuple[str, ...]:
    """Return the paths or URLs of the zarr arrays that a lazy xarray or dask array reads."""
    return tuple(dict.fromkeys(filter(None, map(_origin, [*origins(array).values()] or [array]))))


def _origin(value: Any) -> str | None:
    while value is not None and not isinstance(value, zarr.Array):
        value = getattr(value, "_array", getattr(value, "array", None))
    return None if value is None else join(location_of(value), value.path)

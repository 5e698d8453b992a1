"""Files in SINGA's formats as records: each is imported once, into a store beside it, which is read from then on."""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from typing import Any

from dsinga.addons.importers import import_records
from dsinga.base.registry import register
from dsinga.data.filesystem import imported_name
from dsinga.data.stores.record_store import RecordStore, is_complete
from dsinga.data.stores.staged_stores import DestinationExists

logger = logging.getLogger(__name__)


@register("records", "kvfile", ".bin")
def open_kvfile(location: str, *, encoded: bool = False, **_: Any) -> RecordStore:
    """Return the records of a kvfile; ``encoded`` says that their pixels are image files, such as JPEG."""
    return RecordStore(import_once(location, "kvfile", {"encoded": encoded}))


@register("records", "textfile", ".csv", ".txt")
def open_textfile(location: str, *, separator: str = ",", has_label: bool = True, **_: Any) -> RecordStore:
    """Return the records that are the lines of a text file; the first value of each is its label."""
    return RecordStore(import_once(location, "textfile", {"separator": separator, "has_label": has_label}))


@register("records", "lmdb", ".mdb", "/data.mdb")
def open_lmdb(location: str, *, encoded: bool = False, **_: Any) -> RecordStore:
    """Return the records of an LMDB, a file or its folder."""
    return RecordStore(import_once(location, "lmdb", {"encoded": encoded}))


@register("records", "imagefolder", "/")
def open_imagefolder(location: str, *, shape: Sequence[int] = (), **_: Any) -> RecordStore:
    """Return the images of a folder, resized to the last two axes of ``shape``."""
    return RecordStore(import_once(location, "imagefolder", {"size": tuple(shape[-2:])} if len(shape) > 1 else {}))


@register("hook", "import_once")
def import_once(source: str, kind: str, options: dict[str, Any], vocabulary: Sequence[str] = ()) -> str:
    """Return the path of the store imported from ``source``; import it if it is missing or outdated.

    A store with another vocabulary than ``vocabulary`` is outdated, too. Several processes may import at once: each
    writes a store of its own, the first to rename it wins, and the others use that one.
    """
    destination = imported_name(source)
    if not options.get("has_label", True):  # without labels the same file gives a different store
        destination = f"{destination.removesuffix('.zarr')}-unlabelled.zarr"

    def is_current() -> bool:
        return (
            is_complete(destination)
            and _modified_ns(source) <= os.stat(os.path.join(destination, "zarr.json")).st_mtime_ns
            and RecordStore(destination).vocabulary == tuple(vocabulary)
        )

    if is_current():
        return destination
    logger.info("importing %s %s into %s", kind, source, destination)
    try:
        import_records(kind, source, destination, overwrite=lambda: not is_current(), **options)
    except DestinationExists:
        if not is_current():
            raise
    return destination


def _modified_ns(source: str) -> int:
    """Return when a file, or a folder or one of its direct entries, was last modified, in nanoseconds."""
    entries = [entry.path for entry in os.scandir(source)] if os.path.isdir(source) else []
    # LMDB's lock file is left out, since every open modifies it.
    return max(os.stat(path).st_mtime_ns for path in (source, *entries) if not path.endswith("lock.mdb"))

"""Opening the store that a job names, importing once what SINGA would have read."""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from typing import Any

from dsinga.data.filesystem import exists, is_url, join
from dsinga.data.paths import imported_name, resolve
from dsinga.data.store import RecordStore, is_complete
from dsinga.data.writer import DestinationExists
from dsinga.errors import UserError
from dsinga.registry import nearest

BACKENDS = ("kvfile", "textfile", "lmdb", "imagefolder")  # of StoreProto.backend in SINGA; "zarr" is ours
logger = logging.getLogger(__name__)


def open_store(
    path: str | os.PathLike[str],
    backend: str | None = None,
    roots: Sequence[str] = (),
    separator: str = ",",
    has_label: bool = True,
    shape: Sequence[int] = (),
    encoded: bool = False,
) -> RecordStore:
    """Open the store that ``path`` names.

    What SINGA read itself, a kvfile, textfile, lmdb or imagefolder, is imported once into a zarr store beside it
    (``train_data.bin`` into ``train_data.zarr``) and that is opened from then on, as long as it is complete and not
    older than its source.

    Args:
        path: path or URL, see :func:`dsinga.data.resolve`.
        backend: "zarr", or one of SINGA's; None, or "" goes by what lies there.
        roots: folders that a relative path may start from, after the working directory.
        separator: between the values of a line of a textfile.
        has_label: whether the first value of such a line is a label.
        shape: of a record, (..., height, width); images of an imagefolder are resized to it.
        encoded: whether the pixels of a kvfile or lmdb are image files, such as JPEG.

    Raises:
        UserError: nothing is there, or it cannot be read; the message says where and what to do.
    """
    location = resolve(path, roots)
    kind = _kind(location, backend)
    if kind is None:
        return RecordStore(location)
    options: dict[str, dict[str, Any]] = {
        "textfile": {"separator": separator, "has_label": has_label},
        "kvfile": {"encoded": encoded},
        "lmdb": {"encoded": encoded},
        "imagefolder": {"size": tuple(shape[-2:])} if len(shape) > 1 else {},
    }
    return RecordStore(imported(location, kind, options[kind]))


def _kind(location: str, backend: str | None) -> str | None:
    """Return which importer what lies at ``location`` needs, None for a store."""
    if backend == "hdfsfile":
        raise UserError(f"{location}: backend 'hdfsfile' is not read; copy the file here and name it a 'kvfile'")
    if backend and backend not in (*BACKENDS, "zarr"):
        raise UserError(f"{location}: no backend {backend!r}{nearest(backend, BACKENDS)}")
    if location.endswith(".zarr") or exists(join(location, "zarr.json")) or backend == "zarr":
        return None
    if is_url(location):
        if backend:
            raise UserError(f"{location}: a {backend} at a URL is not read; copy it here and import it into a store")
        return None
    kind = backend or _guess(location)
    if kind is None:
        raise UserError(f"{location}: it does not show what it is; name its backend, one of {', '.join(BACKENDS)}")
    return kind


def _guess(location: str) -> str | None:
    if os.path.isdir(location):
        return "lmdb" if os.path.exists(os.path.join(location, "data.mdb")) else "imagefolder"
    suffixes = {".bin": "kvfile", ".csv": "textfile", ".txt": "textfile", ".mdb": "lmdb"}
    return suffixes.get(os.path.splitext(location)[1])


def imported(source: str, kind: str, options: dict[str, Any], vocabulary: Sequence[str] = ()) -> str:
    """Return where the store made of ``source`` is, making it unless it is there, fresh, and of that vocabulary.

    Several processes may try at once: each writes its own, the first to rename it wins, the others use that one.
    """
    destination = imported_name(source)
    if not options.get("has_label", True):  # the same file gives another store
        destination = f"{destination.removesuffix('.zarr')}-unlabelled.zarr"

    def fresh() -> bool:
        return (
            is_complete(destination)
            and _changed(source) <= os.stat(os.path.join(destination, "zarr.json")).st_mtime_ns
            and RecordStore(destination).vocabulary == tuple(vocabulary)
        )

    if fresh():
        return destination
    from dsinga.data.importers import import_records

    logger.info("importing %s %s into %s", kind, source, destination)
    try:
        import_records(kind, source, destination, overwrite=lambda: not fresh(), **options)
    except DestinationExists:
        if not fresh():
            raise
    return destination


def _changed(source: str) -> int:
    """When the file, or what a folder directly contains, changed last, in nanoseconds."""
    parts = [entry.path for entry in os.scandir(source)] if os.path.isdir(source) else []
    # LMDB touches its lock file on every open.
    return max(os.stat(part).st_mtime_ns for part in (source, *parts) if not part.endswith("lock.mdb"))

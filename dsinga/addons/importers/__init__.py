"""Importers: read published data sets and common file formats into record stores, or open the files as records."""

from __future__ import annotations

import contextlib
import inspect
import logging
import os
from collections.abc import Callable, Generator, Iterable, Sequence
from typing import Any

from dsinga.addons.importers.batches import Batch, StoreContents, naming_errors
from dsinga.base.error_frames import public
from dsinga.base.errors import UserError
from dsinga.base.registry import lookup, nearest, register, registered
from dsinga.data.filesystem import imported_name
from dsinga.data.locations import absolute, join
from dsinga.data.stores.record_store import RecordStore, is_complete
from dsinga.data.stores.staged_stores import DestinationExists, StagedStores
from dsinga.data.stores.writer import stage_store

# An importer takes the source and its own options, and returns the contents of each store to write, by the path to add
# to the destination; "" is the destination itself. It reads headers only; the batches are generators.
Importer = Callable[..., dict[str, StoreContents]]
Progress = Callable[[int, int], None]


@public
def import_records(
    kind: str,
    source: str | os.PathLike[str],
    destination: str | os.PathLike[str],
    progress: Progress | None = None,
    overwrite: bool | Callable[[], bool] = False,
    **options: object,
) -> dict[str, int]:
    """Import ``source`` into a store or a folder of stores, in bounded memory; an error or an interrupt leaves nothing.

    Args:
        kind: the name of an importer, such as your own ``@register("importer", "name")``; its docstring says what it
            reads.
        source: file or folder.
        destination: path or URL of the store to write. For mnist and cifar10 it is the folder for train_data.zarr,
            test_data.zarr (and image_mean.zarr); for mat, conll, pairs, contexts and movielens, of several stores.
        progress: called after each batch with the amount read and the total, both in records or both in bytes.
        overwrite: whether existing stores are replaced; see :func:`dsinga.data.write_store`.
        **options: options of the importer.

    An importer of your own is a function of the source and of options. It returns a dict from paths of stores below the
    destination ("" for the destination itself) to their contents. ``stack`` makes batches of single records. ``dsinga
    data import lines SOURCE DESTINATION --import FILE`` runs it, too:

    >>> import numpy as np
    >>> import dsinga
    >>> from dsinga.data import Record, StoreContents, stack
    >>> @dsinga.register("importer", "lines")
    ... def lines(source):
    ...     def read():  # a line for each record: its class, then its numbers
    ...         with open(source) as text:
    ...             for number, line in enumerate(text, 1):
    ...                 label, *numbers = line.split()
    ...                 yield Record(np.array(numbers, np.float32), int(label), where=f"{source}:{number}")
    ...
    ...     return {"": StoreContents(stack(read()), classes=("low", "middle", "high"))}

    Returns:
        The number of records of each store, by location.

    Raises:
        UserError: unknown kind or option, a source that cannot be read, a destination that cannot be written.
    """
    kinds = registered("importer")
    if kind not in kinds:
        remedy = f"choose one of {', '.join(kinds)}"
        if kind == "parquet":
            remedy = f"parquet is read in place: dsinga.table({source!r}, label=...)"
        raise UserError(f"unknown import kind {kind!r}{nearest(kind, kinds)}; {remedy}")
    importer = lookup("importer", kind)
    option_names = [*inspect.signature(importer).parameters][1:]
    for option in options:
        if option not in option_names:
            valid = ", ".join(option_names) or "none"
            raise UserError(f"import of {kind} has no option {option!r}; its options are: {valid}")
    path = absolute(source)
    if not os.path.exists(path):
        raise UserError(f"{path} does not exist; give a file or folder on this machine to import")
    with naming_errors(path):
        stores = importer(path, **options)
    if not isinstance(stores, dict) or not all(isinstance(contents, StoreContents) for contents in stores.values()):
        raise UserError(
            f'the importer {kind} must return its stores, as in {{"": StoreContents(batches)}}, not {stores!r}'
        )
    stores = {join(absolute(destination), name): contents for name, contents in stores.items()}
    with StagedStores(overwrite) as staged:
        for location in stores:
            staged.check(location)
        return _write(stores, staged, progress)


def _write(stores: dict[str, StoreContents], staged: StagedStores, progress: Progress | None) -> dict[str, int]:
    counts = {}
    total = sum(contents.total or 0 for contents in stores.values())
    done = 0
    for location, contents in stores.items():
        batches = _report_batches(contents, done, total, progress)
        with contextlib.closing(batches), _closing(contents.batches):
            counts[location] = stage_store(
                staged,
                location,
                batches,
                classes=contents.classes,
                vocabulary=contents.vocabulary,
                tokenizer=contents.tokenizer,
            )
        done += contents.total or 0
    return counts


def _closing(batches: Iterable[Batch]) -> contextlib.AbstractContextManager[object]:
    return contextlib.closing(batches) if isinstance(batches, Generator) else contextlib.nullcontext()


def _report_batches(contents: StoreContents, start: int, total: int, progress: Progress | None) -> Generator[Batch]:
    records = 0
    for batch in contents.batches:
        yield batch
        records += len(batch.data)
        if progress is not None:
            progress(start + (records if batch.done is None else batch.done), total)


logger = logging.getLogger(__name__)


@register("records", "kvfile", ".bin")
def open_kvfile(location: str, *, encoded: bool = False, **_: Any) -> RecordStore:
    """Open a kvfile as records; with ``encoded`` their pixels are image files, such as JPEG."""
    return RecordStore(import_once(location, "kvfile", {"encoded": encoded}))


@register("records", "textfile", ".csv", ".txt")
def open_textfile(location: str, *, separator: str = ",", has_label: bool = True, **_: Any) -> RecordStore:
    """Open a text file with a record a line; the first value of each is its label."""
    return RecordStore(import_once(location, "textfile", {"separator": separator, "has_label": has_label}))


@register("records", "lmdb", ".mdb", "/data.mdb")
def open_lmdb(location: str, *, encoded: bool = False, **_: Any) -> RecordStore:
    """Open an LMDB database, given as a file or its folder, as records."""
    return RecordStore(import_once(location, "lmdb", {"encoded": encoded}))


@register("records", "imagefolder", "/")
def open_imagefolder(location: str, *, shape: Sequence[int] = (), **_: Any) -> RecordStore:
    """Open a folder of images as records, resized to the last two axes of ``shape``."""
    return RecordStore(import_once(location, "imagefolder", {"size": tuple(shape[-2:])} if len(shape) > 1 else {}))


def import_once(source: str, kind: str, options: dict[str, Any], vocabulary: Sequence[str] = ()) -> str:
    """Import ``source`` unless its store exists and is up to date; return the store's path.

    A store with another vocabulary is outdated. Several processes may import at once: all use the first store that is
    renamed.
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
    entries = [entry.path for entry in os.scandir(source)] if os.path.isdir(source) else []
    # LMDB's lock file is left out, since every open modifies it.
    return max(os.stat(path).st_mtime_ns for path in (source, *entries) if not path.endswith("lock.mdb"))

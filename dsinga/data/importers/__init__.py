"""Importing records, as others publish or kept them, into stores."""

from __future__ import annotations

import contextlib
import inspect
import os
from collections.abc import Callable, Generator, Iterable

from dsinga.data.filesystem import absolute, join
from dsinga.data.importers.cifar10 import cifar10
from dsinga.data.importers.conll import conll
from dsinga.data.importers.imagefolder import imagefolder
from dsinga.data.importers.kvfile import kvfile
from dsinga.data.importers.lmdb import lmdb
from dsinga.data.importers.mat import mat
from dsinga.data.importers.mnist import mnist
from dsinga.data.importers.npz import npz
from dsinga.data.importers.records import Batch, StoreContents
from dsinga.data.importers.text import text
from dsinga.data.importers.textfile import textfile
from dsinga.data.writer import check_destination, write_store
from dsinga.errors import UserError
from dsinga.registry import lookup, nearest, register, registered

Importer = Callable[..., dict[str, StoreContents]]
Progress = Callable[[int, int], None]

# An importer takes the source and options of its own, and returns the stores to be, by the name that each gets below
# the destination; "" is the destination itself. Nothing but headers is read before the batches are asked for.
KINDS: dict[str, Importer] = {
    "mnist": mnist,
    "cifar10": cifar10,
    "conll": conll,
    "csv": textfile,
    "textfile": textfile,
    "kvfile": kvfile,
    "lmdb": lmdb,
    "npz": npz,
    "mat": mat,
    "imagefolder": imagefolder,
    "text": text,
}
for _kind, _importer in KINDS.items():
    if _kind not in registered("importer"):  # a user's own of that name may have come first
        register("importer", _kind)(_importer)


def import_records(
    kind: str,
    source: str | os.PathLike[str],
    destination: str | os.PathLike[str],
    progress: Progress | None = None,
    overwrite: bool | Callable[[], bool] = False,
    **options: object,
) -> dict[str, int]:
    """Import ``source`` into a store, or a folder of stores, in bounded memory; an interruption leaves none half made.

    Args:
        kind: a key of ``KINDS``, whose function's docstring says what it reads, or the name of a user's own, which is
            registered as ``@register("importer", "name")``: a function like those.
        source: file or folder.
        destination: path or URL of the store to make; for mnist and cifar10 the folder to make train_data.zarr,
            test_data.zarr (and image_mean.zarr) in, for mat and conll the folder for several stores.
        progress: called after each batch with how much is done and of how much, in records or bytes.
        overwrite: whether stores that are there are replaced; see :func:`dsinga.data.write_store`.
        **options: those of the kind.

    Returns:
        The location of each store made, and how many records it has.

    Raises:
        UserError: unknown kind or option, a source that cannot be read, a destination that cannot be written.
    """
    kinds = registered("importer")
    if kind not in kinds:
        raise UserError(f"no import of kind {kind!r}{nearest(kind, kinds)}; the kinds are {', '.join(kinds)}")
    importer = lookup("importer", kind)
    known = [*inspect.signature(importer).parameters][1:]
    for option in options:
        if option not in known:
            raise UserError(f"import of {kind} has no option {option!r}; it has {', '.join(known) or 'none'}")
    path = absolute(source)
    if not os.path.exists(path):
        raise UserError(f"there is no {path} to import; a file or folder on this machine is wanted")
    made = importer(path, **options)
    if not isinstance(made, dict) or not all(isinstance(part, StoreContents) for part in made.values()):
        raise UserError(f'import of {kind} must return its stores, as in {{"": StoreContents(batches)}}, not {made!r}')
    parts = {join(absolute(destination), name): part for name, part in made.items()}
    for location in parts:
        check_destination(location, overwrite if callable(overwrite) else lambda: bool(overwrite))
    counts = {}
    total = sum(part.total or 0 for part in parts.values())
    done = 0
    for location, part in parts.items():
        batches = _reporting(part, done, total, progress)
        with contextlib.closing(batches), _closing(part.batches):
            names = {"classes": part.classes, "vocabulary": part.vocabulary}
            counts[location] = write_store(location, batches, **names, overwrite=overwrite)
        done += part.total or 0
    return counts


def _closing(batches: Iterable[Batch]) -> contextlib.AbstractContextManager[object]:
    """Close a generator, and with it its files, where the import ends before it; lists have nothing to close."""
    return contextlib.closing(batches) if isinstance(batches, Generator) else contextlib.nullcontext()


def _reporting(part: StoreContents, before: int, total: int, progress: Progress | None) -> Generator[Batch]:
    records = 0
    for batch in part.batches:
        yield batch
        records += len(batch.data)
        if progress is not None:
            progress(before + (records if batch.done is None else batch.done), total)

"""Importers: reading published data sets and common file formats into record stores."""

from __future__ import annotations

import contextlib
import inspect
import os
from collections.abc import Callable, Generator, Iterable

from dsinga.addons.importers.batches import Batch, StoreContents, naming_errors
from dsinga.base.errors import UserError
from dsinga.base.registry import lookup, nearest, registered
from dsinga.data.filesystem import absolute, join
from dsinga.data.stores.staged_stores import StagedStores
from dsinga.data.stores.writer import stage_store

# An importer takes the source and its own options, and returns the contents of each store to write, by the path to add
# to the destination; "" is the destination itself. It reads headers only; the batches are generators.
Importer = Callable[..., dict[str, StoreContents]]
Progress = Callable[[int, int], None]


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
        kind: the name of an importer, whose function's docstring says what it reads, such as that of a user's:
            ``@register("importer", "name")``.
        source: file or folder.
        destination: path or URL of the store to write; for mnist and cifar10 the folder for train_data.zarr,
            test_data.zarr (and image_mean.zarr), for mat, conll, pairs, contexts and movielens the folder for
            several stores.
        progress: called after each batch with the amount read and the total, both in records or both in bytes.
        overwrite: whether existing stores are replaced; see :func:`dsinga.data.write_store`.
        **options: options of the importer.

    Returns:
        The number of records of each store, by location.

    Raises:
        UserError: unknown kind or option, a source that cannot be read, a destination that cannot be written.
    """
    kinds = registered("importer")
    if kind not in kinds:
        raise UserError(f"unknown import kind {kind!r}{nearest(kind, kinds)}; choose one of {', '.join(kinds)}")
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
    """Write the contents of each store, by location, and return the number of records of each."""
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
    """Return a context that closes a generator, and so its files, if the import ends early; lists need no closing."""
    return contextlib.closing(batches) if isinstance(batches, Generator) else contextlib.nullcontext()


def _report_batches(contents: StoreContents, start: int, total: int, progress: Progress | None) -> Generator[Batch]:
    """Yield the batches of a store and call ``progress`` after each."""
    records = 0
    for batch in contents.batches:
        yield batch
        records += len(batch.data)
        if progress is not None:
            progress(start + (records if batch.done is None else batch.done), total)

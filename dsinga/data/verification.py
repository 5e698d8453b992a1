"""Reading a whole store to find everything in it that is damaged, for ``dsinga data verify``."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from typing import Any, NamedTuple

from dsinga.advice import option
from dsinga.data.column import Column
from dsinga.data.sources.zarr_column import ZarrColumn
from dsinga.data.sources.zarr_source import open_zarr_records
from dsinga.data.store import RecordStore, StoreColumn
from dsinga.errors import UserError

MOST_FAULTS = 20  # that a message lists


class Verified(NamedTuple):
    """What :func:`verify_store` has read: the numbers of records, and of chunks of all arrays, and what was checked.

    Chunks that lie side by side count once. ``has_checksums`` is False where
    changed bytes that can be decoded go unnoticed.
    """

    records: int
    chunks: int
    has_checksums: bool


def verify_store(
    store: str | os.PathLike[str],
    *,
    data: str | None = None,
    label: str | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Verified:
    """Read all records and labels of a store, in bounded memory, and check them.

    In a record store every chunk is compared with its checksum. In zarr that dsinga did not write, and in stores of
    versions without checksums, it is checked that the chunks are there and can be decoded, and that records and labels
    are equally many.

    Args:
        store: path or URL of a record store, or of any other zarr array or group.
        data: name of the array of records in a zarr group, guessed by default.
        label: the same for the labels.
        progress: called with the number of rows that were read and that of all, of data and labels together.

    Raises:
        UserError: the store cannot be opened, or parts of it are damaged: the message lists up to 20 of them.
    """
    source = open_zarr_records(store, data, label).allowing_nonfinite()
    total, done, chunks = len(source) * len(source.columns), 0, 0
    faults: list[str] = []
    for column in source.columns:
        step, read = _reader(column)
        for start in range(0, column.length, step):
            stop = min(start + step, column.length)
            faults += _faults(read, start, stop)
            done, chunks = done + stop - start, chunks + 1
            if progress is not None:
                progress(done, total)
    if faults:
        listed = "".join(f"\n  {_short(fault, source.location)}" for fault in faults[:MOST_FAULTS])
        more = f"\n  and {len(faults) - MOST_FAULTS} more" if len(faults) > MOST_FAULTS else ""
        remedy = f"import it again with {option('overwrite')}, or put back a copy of these chunks"
        raise UserError(f"{source.location}: {len(faults)} of {chunks} chunks are damaged; {remedy}:{listed}{more}")
    return Verified(len(source), chunks, isinstance(source, RecordStore) and source.has_checksums)


def _reader(column: Column) -> tuple[int, Callable[[int, int], Any]]:
    """Return the rows of a chunk of ``column``, and the function that reads them."""
    if isinstance(column, ZarrColumn):
        return (column.array.shards or column.array.chunks)[0], column.read_rows
    return column.chunk if isinstance(column, StoreColumn) else column.block, column.load


def _faults(read: Callable[[int, int], Any], start: int, stop: int) -> list[str]:
    """Return the message about the rows ``start`` to ``stop`` of a column, if they cannot be read."""
    try:
        read(start, stop)
    except UserError as error:
        return [str(error)]
    return []


def _short(fault: str, location: str) -> str:
    """Return the message of a fault without the location and the remedy, which are said once."""
    fault = fault.removeprefix(f"{location} is damaged: ").removeprefix(f"{location}: ")
    return re.split(r"; (?:import it|write the array) again", fault)[0]

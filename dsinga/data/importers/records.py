"""What importers make: named parts, each a stream of batches; and the way from single records to batches."""

from __future__ import annotations

from collections.abc import Generator, Iterable
from typing import NamedTuple

import numpy as np

from dsinga.data.store_format import chunk_rows
from dsinga.errors import UserError


class Batch(NamedTuple):
    """Data (n, *shape), labels (n,), (n, T) or None, and how much of the source is read, in the unit of `total`."""

    data: np.ndarray
    labels: np.ndarray | None
    done: int | None = None


class StoreContents(NamedTuple):
    """One store to be: its batches, ``total`` (records, unless the batches say how far they are), names of codes.

    ``classes`` are those of labels, ``vocabulary`` those of data that are codes.
    """

    batches: Iterable[Batch]
    total: int | None = None
    classes: tuple[str, ...] = ()
    vocabulary: tuple[str, ...] = ()


class Record(NamedTuple):
    """One record: data (*shape), label or None, ``where`` it was found (file and row or offset), and Batch.done."""

    data: np.ndarray
    label: int | None
    where: str
    done: int | None = None


def stack(records: Iterable[Record]) -> Generator[Batch]:
    """Gather single records into batches of about a MiB.

    Raises:
        UserError: a record differs from the first one in shape, dtype or in having a label; the message says where.
    """
    first: Record | None = None
    held: list[Record] = []
    rows = 1
    for record in records:
        if first is None:
            first, rows = record, chunk_rows(record.data.nbytes)
        _compare(record, first)
        held.append(record)
        if len(held) == rows:
            yield _join(held)
            held = []
    if held:
        yield _join(held)


def _compare(record: Record, first: Record) -> None:
    if record.data.shape != first.data.shape or record.data.dtype != first.data.dtype:
        raise UserError(
            f"{record.where}: {record.data.dtype} of shape {record.data.shape}, where the first record "
            f"({first.where}) is {first.data.dtype} of shape {first.data.shape}; all records of a store are alike"
        )
    if (record.label is None) != (first.label is None):
        has, other = ("no label", "one") if record.label is None else ("a label", "none")
        raise UserError(f"{record.where}: {has}, where the first record ({first.where}) has {other}")


def _join(held: list[Record]) -> Batch:
    labels = None if held[0].label is None else np.array([record.label for record in held], np.int64)
    return Batch(np.stack([record.data for record in held]), labels, held[-1].done)

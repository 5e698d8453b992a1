"""Opens data set files for importers; defines batches of records and the contents of stores."""

from __future__ import annotations

import contextlib
import gzip
import io
import lzma
import os
import zlib
from collections.abc import Callable, Generator, Iterable, Iterator
from typing import IO, NamedTuple

import numpy as np

from dsinga.base.error_frames import public
from dsinga.base.errors import UserError
from dsinga.base.regular_files import open_regular
from dsinga.data.stores.store_format import chunk_rows


class Batch(NamedTuple):
    """A batch of records: data (n, *shape), labels (n,), (n, K) or None, and how much of the source has been read.

    ``done`` has the unit of ``StoreContents.total``.
    """

    data: np.ndarray
    labels: np.ndarray | None
    done: int | None = None


class StoreContents(NamedTuple):
    """The contents of a store to write: its batches, their total size, and the names of labels and codes.

    ``total`` is in records, or in the unit of the batches' ``done``, such as bytes. ``classes`` name labels,
    ``vocabulary`` the data's codes; ``tokenizer`` is the tokenizer.json that made them.
    """

    batches: Iterable[Batch]
    total: int | None = None
    classes: tuple[str, ...] = ()
    vocabulary: tuple[str, ...] = ()
    tokenizer: str = ""


class Record(NamedTuple):
    """One record: data (*shape), label or None, its place (file and row or offset) for errors, and ``Batch.done``.

    A label is an integer, a float, or an array (K,) of them.
    """

    data: np.ndarray
    label: int | float | np.ndarray | None
    where: str
    done: int | None = None


@public
def stack(records: Iterable[Record]) -> Generator[Batch]:
    """Collect single records into batches of about one MiB.

    Raises:
        UserError: a record differs from the first in shape, dtype or having a label; the message says where.
    """
    first: Record | None = None
    pending: list[Record] = []
    rows = 1
    for record in records:
        if first is None:
            first, rows = record, chunk_rows(record.data.nbytes)
        _compare(record, first)
        pending.append(record)
        if len(pending) == rows:
            yield _join(pending)
            pending = []
    if pending:
        yield _join(pending)


def in_batches(data: np.ndarray, labels: np.ndarray | None, rows: int) -> Generator[Batch]:
    """Yield records with their labels, if any, in batches of ``rows``."""
    for start in range(0, len(data), rows):
        yield Batch(data[start : start + rows], None if labels is None else labels[start : start + rows])


def _compare(record: Record, first: Record) -> None:
    if record.data.shape != first.data.shape or record.data.dtype != first.data.dtype:
        raise UserError(
            f"{record.where} is {record.data.dtype} of shape {record.data.shape}, but the first record ({first.where}) "
            f"is {first.data.dtype} of shape {first.data.shape}; all records of a store must have one shape and dtype"
        )
    if (record.label is None) != (first.label is None):
        has, first_has = ("no label", "one") if record.label is None else ("a label", "none")
        raise UserError(f"{record.where} has {has}, but the first record ({first.where}) has {first_has}")


def _join(records: list[Record]) -> Batch:
    labels = None if records[0].label is None else np.array([record.label for record in records])
    return Batch(np.stack([record.data for record in records]), labels, records[-1].done)


SUFFIXES = ("", ".gz", ".xz")


class OpenFile(NamedTuple):
    """A file to read bytes from, and ``tell``, which returns the bytes read from disk."""

    file: IO[bytes]
    tell: Callable[[], int]


@contextlib.contextmanager
def opened(path: str) -> Iterator[OpenFile]:
    """Open ``path`` for reading bytes, decompressed if its suffix is .gz or .xz.

    Errors of reading become a UserError that names the file.
    """
    with naming_errors(path), open_regular(path) as raw:
        suffix = os.path.splitext(path)[1]
        if suffix == ".gz":
            with gzip.open(raw) as file:
                yield OpenFile(file, raw.tell)  # type: ignore[arg-type]
        elif suffix == ".xz":
            with lzma.open(raw) as file:
                yield OpenFile(file, raw.tell)
        else:
            yield OpenFile(raw, raw.tell)


def text_lines(path: str, encoding: str = "UTF-8", remedy: str = "convert the file") -> Iterator[tuple[int, str]]:
    """Yield (number from 1, text) of each line of a file, decompressed if its suffix is .gz or .xz."""
    with opened(path) as (file, _):
        for number, line in enumerate(file, 1):
            try:
                text = line.decode(encoding)
            except UnicodeDecodeError as error:
                raise UserError(f"{path}:{number}: not {encoding} text ({error.reason}); {remedy}") from None
            except LookupError:
                raise UserError(
                    f"there is no encoding {encoding!r}; utf-8 and latin-1 are two of those known"
                ) from None
            yield number, text


def read_lines(path: str) -> Iterator[str]:
    """Yield the lines of a text file; bytes that are not UTF-8 become surrogates."""
    with naming_errors(path), io.TextIOWrapper(open_regular(path), "utf-8", "surrogateescape") as file:
        yield from file


@contextlib.contextmanager
def naming_errors(path: str) -> Iterator[None]:
    """Turn errors of reading or decompressing within the context into a UserError that names ``path``."""
    try:
        yield
    except EOFError:
        raise UserError(f"{path} is truncated: its compressed data end early") from None
    except (gzip.BadGzipFile, lzma.LZMAError, zlib.error) as error:
        raise UserError(f"{path} cannot be decompressed: {error}") from None
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror or error}") from None


def find(folder: str, *names: str) -> str:
    """Return the path of the first of ``names`` that exists in ``folder``, plain or with .gz or .xz."""
    for name in names:
        for suffix in SUFFIXES:
            path = os.path.join(folder, name + suffix)
            if os.path.isfile(path):
                return path
    raise UserError(f"{folder} has no file {names[0]} (or {names[0]}.gz, {names[0]}.xz)")

"""Writes records to a store, or arrays to a CSV file, batch by batch in bounded memory.

The store or the file is either complete or absent.
"""

from __future__ import annotations

import functools
import hashlib
import math
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, TypeVar

import numpy as np
import zarr
from zarr.codecs import BloscCodec

from dsinga.base.durable_files import draft_folder
from dsinga.base.error_frames import public
from dsinga.base.errors import UserError
from dsinga.data.conversion import as_labels, as_records
from dsinga.data.filesystem import zarr_store
from dsinga.data.sources.arrays import as_numpy
from dsinga.data.stores.staged_stores import StagedStores, naming_destination
from dsinga.data.stores.store_format import CHECKSUMS_VERSION, checksum, chunk_rows, metadata_checksum, to_text

WHOLE_ARRAYS = "write_store requires batches (x, y); for whole arrays write write_store(path, [(x, y)])"
F = TypeVar("F", bound=Callable[..., Any])


def _refusing_arrays(function: F) -> F:
    """Raise UserError with the remedy if labels are given by position, next to the data."""

    @public
    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        if len(args) > 2:
            raise UserError(WHOLE_ARRAYS)
        return function(*args, **kwargs)

    return call  # type: ignore[return-value]


@_refusing_arrays
def write_store(
    destination: str | os.PathLike[str],
    batches: Iterable[Sequence[Any]],
    *,
    classes: Sequence[str] = (),
    vocabulary: Sequence[str] = (),
    overwrite: bool | Callable[[], bool] = False,
) -> int:
    """Write batches of records to a new zarr store for training; return the number of records.

    On a local path the store is renamed to its destination when it is complete. At a URL it is written in place and
    marked complete last. After an error, the incomplete store and the folders created for it are removed.

    Args:
        destination: local path or fsspec URL.
        batches: pairs of data (n, *shape) and labels, or None in all pairs. Data of uint8 and bool are stored as uint8,
            int32 as int32, all other numbers as float32; integer labels as int32, floats as float32. n may differ
            between batches. Labels are (n,), or (n, K) for several per record; sequences may have one for each step,
            (n, T), padded with -1.
        classes: names of the labels 0, 1, ...
        vocabulary: the words or characters that the codes 0, 1, ... stand for, if data are codes.
        overwrite: whether an existing store is replaced, or a function that decides it at the end.

    Raises:
        DestinationExists: the destination exists; also, despite ``overwrite``, if it is not a record store.
        UserError: there are no records, batches differ in shape or dtype, or a label exceeds 32 bits or is NaN.
    """
    with StagedStores(overwrite) as stores:
        return stage_store(stores, destination, batches, classes=classes, vocabulary=vocabulary)


def stage_store(
    stores: StagedStores,
    destination: str | os.PathLike[str],
    batches: Iterable[Sequence[Any]],
    *,
    classes: Sequence[str] = (),
    vocabulary: Sequence[str] = (),
    tokenizer: str = "",
) -> int:
    """Write one of several stores that appear together, and return its number of records."""
    with naming_destination(os.fspath(destination)):
        names: dict[str, list[str] | str] = {
            "classes": list(classes),
            "vocabulary": list(vocabulary),
            "tokenizer": tokenizer,
        }
        return _write_arrays(stores.stage(destination), iter(batches), names)


def _write_arrays(location: str, batches: Iterator[Sequence[Any]], names: Mapping[str, list[str] | str]) -> int:
    group = zarr.open_group(store=zarr_store(location, read_only=False), mode="w", zarr_format=3)
    group.attrs.put({"dsinga": CHECKSUMS_VERSION, "complete": False})
    columns: tuple[_ColumnWriter, _ColumnWriter | None] | None = None
    for batch in batches:
        if hasattr(batch, "shape"):  # of (x, y), or of x, in place of [(x, y)]
            raise UserError(WHOLE_ARRAYS)
        data, labels = _as_stored(batch[0], batch[1], columns[0].count if columns else 0)
        if columns is None:
            rows = chunk_rows(data.nbytes // max(len(data), 1))
            columns = (
                _ColumnWriter(group, "data", data, rows),
                None
                if labels is None
                else _ColumnWriter(group, "labels", labels, chunk_rows(4 * math.prod(labels.shape[1:]))),
            )
        columns[0].append(data)
        if (labels is None) != (columns[1] is None):
            raise UserError(f"record {columns[0].count - len(data)}: some records have a label and some have none")
        if labels is not None and columns[1] is not None:
            columns[1].append(labels)
    if columns is None or not columns[0].count:
        raise UserError("there are no records to write")
    written = [column for column in columns if column]
    attributes: dict[str, Any] = {"dsinga": CHECKSUMS_VERSION, "complete": True}
    attributes["digest"] = "-".join(column.close() for column in written)
    attributes.update({key: strings for key, strings in names.items() if strings})
    table = {column.name: to_text(column.checksums) for column in written}
    arrays = {column.name: column.array for column in written}
    attributes["checksums"] = {"metadata": metadata_checksum(attributes, arrays, table), **table}
    group.attrs.put(attributes)
    return columns[0].count


def _as_stored(data: Any, labels: Any, start: int) -> tuple[np.ndarray, np.ndarray | None]:
    data = as_records(as_numpy(data, "data"))
    if labels is None:
        return data, None
    labels = as_numpy(labels, "labels")
    if labels.dtype.kind not in "buif" or labels.shape[:1] != data.shape[:1] or labels.ndim > 2:
        raise UserError(
            "labels must be one number per record, or a row of numbers per record, not "
            f"{labels.dtype} {labels.shape} for {len(data)} records"
        )
    if labels.dtype.kind == "f":
        finite = np.isfinite(labels).all(axis=tuple(range(1, labels.ndim)))
        if not finite.all():
            record = start + int(np.argmin(finite))
            raise UserError(f"record {record}: its label is NaN or infinite; leave such records out")
        return data, as_labels(labels)
    limits = np.iinfo(np.int32)
    for label in (labels.min(), labels.max()) if labels.size else ():
        if not limits.min <= label <= limits.max:
            raise UserError(f"label {label} does not fit into 32 bits")
    return data, labels.astype(np.int32)


class _ColumnWriter:
    def __init__(self, group: zarr.Group, name: str, first: np.ndarray, rows: int):
        self.name = name
        self.dtype = first.dtype
        self.count = 0
        self.checksums: list[int] = []  # of the chunks
        self._buffer = np.empty((rows, *first.shape[1:]), first.dtype)
        self._filled = 0
        self._hash = hashlib.blake2b(f"{first.dtype.name} {first.shape[1:]}".encode(), digest_size=16)
        # Shuffling hardly compresses images of bytes and makes decoding twice as slow; numbers of four bytes gain.
        shuffle: Literal["noshuffle", "shuffle"] = "noshuffle" if first.dtype.itemsize == 1 else "shuffle"
        self.array = group.create_array(
            name,
            shape=self._buffer.shape,
            chunks=self._buffer.shape,
            dtype=first.dtype,
            compressors=[BloscCodec(cname="zstd", clevel=3, shuffle=shuffle)],
            config={"write_empty_chunks": True},  # so that a missing chunk always means damage
        )

    def append(self, values: np.ndarray) -> None:
        buffer = self._buffer
        if values.shape[1:] != buffer.shape[1:] or values.dtype != buffer.dtype:
            raise UserError(
                f"record {self.count}: {values.dtype} {values.shape[1:]} where the records before are "
                f"{buffer.dtype} {buffer.shape[1:]}"
            )
        while len(values):
            rows = min(len(buffer) - self._filled, len(values))
            buffer[self._filled : self._filled + rows] = values[:rows]
            values = values[rows:]
            self._filled += rows
            self.count += rows
            if self._filled == len(buffer):
                self._flush()

    def close(self) -> str:
        """Write the remaining rows, and return a hash of all rows."""
        self._flush()
        self._resize(self.count)
        return self._hash.hexdigest()

    def _flush(self) -> None:
        rows = self._buffer[: self._filled]
        start = self.count - self._filled
        if self.count > self.array.shape[0]:
            self._resize(2 * self.array.shape[0])  # doubled, since each resize lists all chunks
        if self._filled:
            self.array[start : self.count] = rows
            self._hash.update(rows.data)
            self.checksums.append(checksum(rows))
        self._filled = 0

    def _resize(self, count: int) -> None:
        self.array.resize((count, *self._buffer.shape[1:]))


@public
def write_csv(path: str | os.PathLike[str], batches: Iterable[np.ndarray], separator: str = ",") -> None:
    """Write batches (rows, ...) to a text file, a line for each row.

    An existing file is replaced when the new one is complete.
    """
    path = Path(path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with draft_folder(path) as draft:
            with open(draft / path.name, "w", encoding="utf-8") as file:
                file.writelines(_lines(batches, separator))
            os.replace(draft / path.name, path)
    except OSError as error:
        raise UserError(f"{path} cannot be written: {error}") from error


def _lines(batches: Iterable[np.ndarray], separator: str) -> Iterator[str]:
    for batch in batches:
        for row in batch.reshape(len(batch), -1).tolist():
            yield separator.join(map(repr, row)) + "\n"

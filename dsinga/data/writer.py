"""Writing a store: batches of records in, whole chunks out, in bounded memory, complete or not there."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import math
import os
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal

import numpy as np
import zarr
from zarr.codecs import BloscCodec

from dsinga.data.filesystem import absolute, exists, is_url, remove, zarr_store
from dsinga.data.store import is_store
from dsinga.data.store_format import VERSION, chunk_rows
from dsinga.errors import UserError


class DestinationExists(UserError):
    """Something lies at the destination and was not to be replaced."""


def write_store(
    destination: str | os.PathLike[str],
    batches: Iterable[Sequence[Any]],
    *,
    classes: Sequence[str] = (),
    vocabulary: Sequence[str] = (),
    overwrite: bool | Callable[[], bool] = False,
) -> int:
    """Write a store of records and return how many there are.

    On a local path the store is written beside the destination, as ``<name>.partial-<random>``, and renamed when it is
    complete. At a URL, which cannot be renamed, it is written in place and marked complete last; what an error leaves
    behind is removed.

    Args:
        destination: local path or fsspec URL.
        batches: pairs of data (n, *shape) and labels (n,) integers, or None throughout. Unsigned bytes and booleans are
            kept as uint8, int32 as int32, all other numbers as float32. n may differ from batch to batch. Records that
            are sequences may have a label for each step, (n, T), -1 after the end.
        classes: names of the labels 0, 1, ...
        vocabulary: what the codes 0, 1, ... stand for, of data that are codes.
        overwrite: whether a store that is there is replaced; a function is asked when all is written.

    Raises:
        DestinationExists: something is there; also if it is no store of records and ``overwrite`` is given.
        UserError: no records, batches that do not fit each other, labels beyond 32 bits.
    """
    destination = absolute(destination)
    allowed = overwrite if callable(overwrite) else lambda: bool(overwrite)
    check_destination(destination, allowed)
    staging = destination if is_url(destination) else f"{destination}.partial-{uuid.uuid4().hex[:8]}"
    try:
        if staging == destination:
            remove(destination)
        else:
            os.makedirs(os.path.dirname(destination), exist_ok=True)
        count = _write(staging, iter(batches), {"classes": list(classes), "vocabulary": list(vocabulary)})
        if staging != destination:
            _rename(staging, destination, allowed)
    except BaseException as error:
        with contextlib.suppress(OSError):  # the first error is the one to report
            remove(staging)
        if isinstance(error, OSError):
            raise UserError(f"{destination} cannot be written: {error}") from error
        raise
    return count


def check_destination(destination: str, allowed: Callable[[], bool]) -> None:
    """Raise DestinationExists if something is at ``destination`` that must stay."""
    if not exists(destination) or _is_empty_folder(destination):
        return
    if not is_store(destination):
        raise DestinationExists(f"{destination} exists and is no store of records; choose another destination")
    if not allowed():
        raise DestinationExists(f"{destination} exists; --overwrite replaces it")


def _is_empty_folder(location: str) -> bool:
    return not is_url(location) and os.path.isdir(location) and not os.listdir(location)


def _rename(staging: str, destination: str, allowed: Callable[[], bool]) -> None:
    """Move a complete store to its place; where several processes try, one wins and the others ask ``allowed``."""
    old = f"{staging}.old"
    try:
        while not _moved(staging, destination):
            remove(old)  # left of a turn that another process won
            if not allowed():
                raise DestinationExists(f"{destination} exists; --overwrite replaces it")
            if _moved(destination, old) and not is_store(old):  # looked at when no other process can change it
                raise DestinationExists(f"{destination} exists and is no store of records; choose another destination")
    finally:
        if not _moved(old, destination):  # what was taken goes back, unless something came in its place
            remove(old)


def _moved(source: str, destination: str) -> bool:
    """Rename a folder; False if the destination is taken, or the source is gone."""
    try:
        os.rename(source, destination)
    except OSError as error:
        gone = isinstance(error, FileNotFoundError) and os.path.isdir(os.path.dirname(destination))
        if not gone and error.errno not in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR):
            raise
        return False
    return True


def _write(location: str, batches: Iterator[Sequence[Any]], names: Mapping[str, list[str]]) -> int:
    group = zarr.open_group(store=zarr_store(location, read_only=False), mode="w", zarr_format=3)
    group.attrs.put({"dsinga": VERSION, "complete": False})
    columns: tuple[_ArrayWriter, _ArrayWriter | None] | None = None
    for batch in batches:
        data, labels = _batch(*batch[:2])
        if columns is None:
            rows = chunk_rows(data.nbytes // max(len(data), 1))
            columns = (
                _ArrayWriter(group, "data", data, rows),
                None
                if labels is None
                else _ArrayWriter(group, "labels", labels, chunk_rows(4 * math.prod(labels.shape[1:]))),
            )
        columns[0].append(data)
        if (labels is None) != (columns[1] is None):
            raise UserError(f"record {columns[0].count - len(data)}: some records have a label and some have none")
        if labels is not None and columns[1] is not None:
            columns[1].append(labels)
    if columns is None or not columns[0].count:
        raise UserError("there are no records to write")
    attributes: dict[str, Any] = {"dsinga": VERSION, "complete": True}
    attributes["digest"] = "-".join(column.close() for column in columns if column)
    attributes.update({name: given for name, given in names.items() if given})
    group.attrs.put(attributes)
    return columns[0].count


def _batch(data: Any, labels: Any) -> tuple[np.ndarray, np.ndarray | None]:
    data = np.asarray(data)
    if data.dtype.kind not in "buif":
        raise UserError(f"records are numbers, not {data.dtype}")
    kept = np.uint8 if data.dtype in (np.uint8, np.bool_) else np.int32 if data.dtype == np.int32 else np.float32
    try:
        with np.errstate(over="raise"):
            data = data.astype(kept, copy=False)
    except FloatingPointError:
        raise UserError("records have numbers beyond those of float32; scale them") from None
    if labels is None:
        return data, None
    labels = np.asarray(labels)
    limits = np.iinfo(np.int32)
    if labels.dtype.kind not in "bui" or labels.shape[:1] != data.shape[:1] or labels.ndim > 2:
        raise UserError(
            f"labels are one integer a record, or a row of integers a record that is a sequence, not {labels.dtype} "
            f"{labels.shape} for {len(data)} records"
        )
    for label in (labels.min(), labels.max()) if labels.size else ():
        if not limits.min <= label <= limits.max:
            raise UserError(f"label {label} does not fit into 32 bits")
    return data, labels.astype(np.int32)


class _ArrayWriter:
    """One array of a store in the making: rows come in, whole chunks go out, each written once."""

    def __init__(self, group: zarr.Group, name: str, first: np.ndarray, rows: int):
        self.name = name
        self.count = 0
        self._buffer = np.empty((rows, *first.shape[1:]), first.dtype)
        self._filled = 0
        self._hash = hashlib.blake2b(f"{first.dtype.name} {first.shape[1:]}".encode(), digest_size=16)
        # Bytes of images hardly shrink by shuffling and decode twice as slowly; four-byte numbers gain from it.
        shuffle: Literal["noshuffle", "shuffle"] = "noshuffle" if first.dtype.itemsize == 1 else "shuffle"
        self._array = group.create_array(
            name,
            shape=self._buffer.shape,
            chunks=self._buffer.shape,
            dtype=first.dtype,
            compressors=[BloscCodec(cname="zstd", clevel=3, shuffle=shuffle)],
            config={"write_empty_chunks": True},  # so that a missing chunk is a fault
        )

    def append(self, values: np.ndarray) -> None:
        buffer = self._buffer
        if values.shape[1:] != buffer.shape[1:] or values.dtype != buffer.dtype:
            raise UserError(
                f"record {self.count}: {values.dtype} {values.shape[1:]} where the records before are "
                f"{buffer.dtype} {buffer.shape[1:]}"
            )
        while len(values):
            taken = min(len(buffer) - self._filled, len(values))
            buffer[self._filled : self._filled + taken] = values[:taken]
            values = values[taken:]
            self._filled += taken
            self.count += taken
            if self._filled == len(buffer):
                self._flush()

    def close(self) -> str:
        """Write what is left, cut the array to its true length and return the hash of its rows."""
        self._flush()
        self._resize(self.count)
        return self._hash.hexdigest()

    def _flush(self) -> None:
        rows = self._buffer[: self._filled]
        start = self.count - self._filled
        if self.count > self._array.shape[0]:
            self._resize(2 * self._array.shape[0])  # doubling: a resize lists all chunks
        if self._filled:
            self._array[start : self.count] = rows
            self._hash.update(rows.data)
        self._filled = 0

    def _resize(self, count: int) -> None:
        self._array.resize((count, *self._buffer.shape[1:]))

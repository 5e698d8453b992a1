"""Reading records from a zarr store by row number."""

from __future__ import annotations

import math
import os
import uuid
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import zarr

from dsinga.data.chunk_cache import ChunkCache
from dsinga.data.filesystem import absolute, exists, join, zarr_store
from dsinga.data.store_format import CHUNK_BYTES, DTYPES, LABEL_ROWS, VERSION
from dsinga.errors import UserError

_cache = ChunkCache()


class RecordStore:
    """A store of records with optional labels, read by row number.

    Threads may share it. A pickle contains its location only.

    Attributes:
        location: absolute path or URL.
        shape: shape of one record.
        dtype: dtype of one record.
        chunk: rows of one chunk of data.
        block: rows that are read together: a chunk, or several small ones of a MiB together, since each call of zarr
            costs a millisecond.
        label_shape: (), or (T,) for sequences with a label for each step.
        classes: names of the labels, if known.
        vocabulary: words or characters that codes stand for, if known.
        digest: hash of the contents; empty if the writer gave none.

    Args:
        location: local path, or an fsspec URL such as ``memory://x`` or ``s3://bucket/x``.

    Raises:
        UserError: the store is missing, incomplete, or not a record store.
    """

    def __init__(self, location: str | os.PathLike[str]):
        self.location = absolute(location)
        group = _open_group(self.location)
        self._data = _column(group, "data", self.location)
        self._labels = _column(group, "labels", self.location) if "labels" in group else None
        self.shape = self._data.shape
        self.dtype = np.dtype(self._data.array.dtype)
        self.chunk, self.block = self._data.chunk, self._data.block
        attributes: dict[str, Any] = group.attrs.asdict()
        self.label_shape = self._labels.shape if self._labels is not None else ()
        self.classes: tuple[str, ...] = tuple(attributes.get("classes", ()))
        self.vocabulary: tuple[str, ...] = tuple(attributes.get("vocabulary", ()))
        self.digest: str = attributes.get("digest", "")
        self._cache_key = self.digest or uuid.uuid4().hex  # without a digest the same path may get other contents
        self._check()

    @property
    def record_bytes(self) -> int:
        """Bytes of one record in memory, without its label."""
        return math.prod(self.shape) * self.dtype.itemsize

    @property
    def has_labels(self) -> bool:
        """Whether every record has a label."""
        return self._labels is not None

    def __len__(self) -> int:
        return self._data.length

    def __repr__(self) -> str:
        labels = "with labels" if self.has_labels else "no labels"
        return f"<RecordStore {self.location}: {len(self)} records {self.dtype} {self.shape}, {labels}>"

    def __reduce__(self) -> tuple[type[RecordStore], tuple[str]]:
        return RecordStore, (self.location,)

    def read(self, rows: Any) -> tuple[np.ndarray, np.ndarray | None]:
        """Return the records of ``rows`` and their labels, in the order of ``rows``.

        Only the chunks that contain these rows are read; recently read chunks stay in memory.

        Args:
            rows: row numbers (n,), integers in [0, len(store)), in any order, with or without repetition.

        Returns:
            Data (n, *shape) in the store's dtype, and labels (n, *label_shape) int64, or None without labels. Both are
            new arrays, which the caller may change.

        Raises:
            IndexError: a row number is out of range.
            UserError: a chunk is missing or damaged.
        """
        return self._gather(self._data, rows, self.dtype), self.read_labels(rows)

    def read_labels(self, rows: Any) -> np.ndarray | None:
        """Return the labels (n, *label_shape) int64 of ``rows``, or None if the store has no labels."""
        if self._labels is None:
            return None
        return self._gather(self._labels, rows, np.dtype(np.int64))

    def label_range(self) -> tuple[int, int] | None:
        """Return the smallest and the largest label, or None if the store has no labels; reads all labels.

        The -1 that pads sequences does not count.
        """
        if self._labels is None or not len(self):
            return None
        starts = range(0, len(self), LABEL_ROWS)
        parts = [np.asarray(self._labels.array[start : start + LABEL_ROWS]) for start in starts]
        if self.label_shape:
            parts = [part[part != -1] for part in parts if (part != -1).any()] or [np.array([-1])]
        return int(min(part.min() for part in parts)), int(max(part.max() for part in parts))

    @property
    def raw_bytes(self) -> int:
        """Bytes of all records and labels in memory."""
        return sum(array.nbytes for array in self._arrays())

    @property
    def stored_bytes(self) -> int:
        """Bytes of all records and labels as stored on disk; looks up the size of every chunk."""
        return sum(array.nbytes_stored() for array in self._arrays())

    def _arrays(self) -> list[zarr.Array]:
        return [self._data.array] if self._labels is None else [self._data.array, self._labels.array]

    def _gather(self, column: _StoreColumn, rows: Any, dtype: np.dtype) -> np.ndarray:
        rows = np.asarray(rows, np.int64)
        shape = (len(rows), *column.shape)
        if not rows.size:
            return np.empty(shape, dtype)
        least, most = int(rows.min()), int(rows.max())
        if not 0 <= least <= most < len(self):
            raise IndexError(f"rows {least} to {most} are not all in the {len(self)} records of {self.location}")
        index = least // column.block
        if index == most // column.block:  # always so for a small store
            return self._read_block(column, index).take(rows - index * column.block, axis=0).astype(dtype, copy=False)
        out = np.empty(shape, dtype)
        order = np.argsort(rows, kind="stable")  # makes the rows of each block adjacent
        blocks, within = np.divmod(rows[order], column.block)
        ends = [*(np.flatnonzero(np.diff(blocks)) + 1).tolist(), len(rows)]
        for start, end in pairwise([0, *ends]):
            out[order[start:end]] = self._read_block(column, int(blocks[start]))[within[start:end]]
        return out

    def _read_block(self, column: _StoreColumn, index: int) -> np.ndarray:
        key = (self._cache_key, column.name, column.chunk, index)
        return _cache.get(key, lambda: self._load(column, index))

    def _load(self, column: _StoreColumn, index: int) -> np.ndarray:
        # Codecs raise errors of different classes, mostly RuntimeError. Zarr returns zeros for a missing chunk.
        array, chunk_rows, block_rows = column.array, column.chunk, column.block
        first = index * block_rows // chunk_rows
        try:
            block = np.asarray(array[index * block_rows : (index + 1) * block_rows])
        except (RuntimeError, ValueError) as error:
            where = _key(array, first) + ("" if block_rows == chunk_rows else " or a chunk after it")
            raise self._damaged(f"chunk {where} cannot be decoded ({error})") from error
        for number, start in enumerate(range(0, len(block), chunk_rows)):
            key = _key(array, first + number)
            if not block[start : start + chunk_rows].any() and not exists(join(self.location, key)):
                raise self._damaged(f"chunk {key} is missing")
        return block

    def _damaged(self, fault: str) -> UserError:
        return UserError(f"{self.location} is damaged: {fault}; import it again with --overwrite")

    def _check(self) -> None:
        array, labels = self._data.array, self._labels and self._labels.array
        if self.dtype.name not in DTYPES:
            raise UserError(f"{self.location} has data of dtype {self.dtype}; a store has one of {', '.join(DTYPES)}")
        if array.chunks[1:] != array.shape[1:] or self.chunk > LABEL_ROWS:
            raise UserError(
                f"{self.location} has chunks of shape {array.chunks}; chunk it along axis 0 only, with at most "
                f"{LABEL_ROWS} rows in a chunk"
            )
        if labels is not None and (labels.shape[:1] != array.shape[:1] or labels.chunks[1:] != labels.shape[1:]):
            raise self._damaged(f"{array.shape[0]} records but labels of shape {labels.shape}")
        if not len(self):
            raise UserError(f"{self.location} has no records; import it again with --overwrite")


class _StoreColumn(NamedTuple):
    """The data array or the label array of a store, with properties that zarr would compute anew for each batch.

    ``block`` rows are read together: whole chunks, of a MiB at least or all of them.
    """

    array: zarr.Array
    name: str
    length: int
    shape: tuple[int, ...]
    chunk: int
    block: int


def _column(group: zarr.Group, name: str, location: str) -> _StoreColumn:
    array = _array(group, name, location)
    length, shape, rows = array.shape[0], array.shape[1:], array.chunks[0]
    size = rows * math.prod(shape) * np.dtype(array.dtype).itemsize
    block = rows * max(1, min(CHUNK_BYTES // max(size, 1), -(-length // rows)))
    return _StoreColumn(array, name, length, shape, rows, block)


def _key(array: zarr.Array, index: int) -> str:
    """Return the key of a chunk: its path within the store."""
    return f"{array.basename}/{array.metadata.encode_chunk_key((index, *(0 for _ in array.shape[1:])))}"


def _zarr_group(location: str) -> zarr.Group | None:
    """Return the zarr group at ``location``, or None if there is none that zarr can open."""
    store = zarr_store(location, read_only=True)
    try:
        return zarr.open_group(store=store, mode="r", zarr_format=3)
    except (FileNotFoundError, NotADirectoryError, ValueError, KeyError):  # zarr's own errors are ValueErrors
        return None


def _open_group(location: str) -> zarr.Group:
    group = _zarr_group(location)
    if group is None and not exists(location):
        raise UserError(f"there is no store at {location}; make one with: dsinga data import KIND SOURCE {location}")
    if group is None:
        raise UserError(
            f"{location} is not a zarr v3 group; import it into a store with: "
            f"dsinga data import KIND {location} DESTINATION"
        )
    version = group.attrs.get("dsinga")
    if version is None:
        raise UserError(
            f"{location} is a zarr group, but not a record store (it lacks the attribute 'dsinga'); "
            "write one with dsinga.data.write_store or dsinga data import"
        )
    if version != VERSION:
        raise UserError(
            f"{location} has version {version!r} of the store format, but this dsinga reads version {VERSION}; import "
            "it again from its source, or upgrade dsinga"
        )
    if group.attrs.get("complete") is not True:
        raise UserError(f"{location} is incomplete: its import was interrupted; import it again with --overwrite")
    return group


def _array(group: zarr.Group, name: str, location: str) -> zarr.Array:
    array = group.get(name)
    if not isinstance(array, zarr.Array) or not array.ndim:
        raise UserError(f"{location} is damaged: it has no array {name!r}; import it again with --overwrite")
    return array


def is_store(location: str) -> bool:
    """Return whether there is a record store at ``location``, complete or not."""
    group = _zarr_group(location)
    return group is not None and "dsinga" in group.attrs


def is_complete(location: str) -> bool:
    """Return whether there is a complete record store at ``location``."""
    try:
        _open_group(location)
    except UserError:
        return False
    return True

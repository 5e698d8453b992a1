"""Reading records from a store."""

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
    """A complete store of records, read by row number; threads may share it, and a pickle holds its location only.

    ``shape`` and ``dtype`` are those of one record, ``chunk`` the rows of one chunk of data, ``block`` those that are
    read together: a chunk, or as many small ones as come to a MiB, for each call of zarr costs a millisecond, however
    little it brings; ``label_shape`` is () or, of sequences with a label for each step, (T,); ``classes`` are the names
    of the labels, and ``vocabulary`` what codes stand for, where these are known; ``digest`` is a hash of the contents,
    empty if the writer gave none.

    Args:
        location: local path, or an fsspec URL such as ``memory://x`` or ``s3://bucket/x``.

    Raises:
        UserError: what lies there is missing, not such a store, or not complete.
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
        self._cache_key = self.digest or uuid.uuid4().hex  # a store that others wrote may change under its name
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
        """Return the records of ``rows`` and their labels, in the order asked.

        Args:
            rows: row numbers (n,), integers in [0, len(store)), in any order, repeated or not.

        Returns:
            Data (n, *shape) in the store's dtype and labels (n, *label_shape) int64, or None where there are none;
            arrays of the caller's own. Only the chunks that hold one of the rows are read, and the last ones read stay
            in memory.

        Raises:
            IndexError: a row outside the store.
            UserError: a chunk is missing or damaged.
        """
        return self._gather(self._data, rows, self.dtype), self.read_labels(rows)

    def read_labels(self, rows: Any) -> np.ndarray | None:
        """Return the labels (n, *label_shape) int64 of ``rows`` alone, or None where there are none."""
        if self._labels is None:
            return None
        return self._gather(self._labels, rows, np.dtype(np.int64))

    def label_range(self) -> tuple[int, int] | None:
        """Return the smallest and the largest label, or None where there are none; all labels are read.

        The -1 after the end of a sequence is not one of them.
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
        """Bytes of all records and labels as they are stored; every chunk is looked at."""
        return sum(array.nbytes_stored() for array in self._arrays())

    def _arrays(self) -> list[zarr.Array]:
        return [self._data.array] if self._labels is None else [self._data.array, self._labels.array]

    def _gather(self, column: _StoredArray, rows: Any, dtype: np.dtype) -> np.ndarray:
        rows = np.asarray(rows, np.int64)
        shape = (len(rows), *column.shape)
        if not rows.size:
            return np.empty(shape, dtype)
        least, most = int(rows.min()), int(rows.max())
        if not 0 <= least <= most < len(self):
            raise IndexError(f"rows {least} to {most} asked of the {len(self)} records in {self.location}")
        index = least // column.block
        if index == most // column.block:  # as it is of a small store, always
            return self._read_block(column, index).take(rows - index * column.block, axis=0).astype(dtype, copy=False)
        out = np.empty(shape, dtype)
        order = np.argsort(rows, kind="stable")  # rows of one block side by side
        blocks, within = np.divmod(rows[order], column.block)
        ends = [*(np.flatnonzero(np.diff(blocks)) + 1).tolist(), len(rows)]
        for start, end in pairwise([0, *ends]):
            out[order[start:end]] = self._read_block(column, int(blocks[start]))[within[start:end]]
        return out

    def _read_block(self, column: _StoredArray, index: int) -> np.ndarray:
        key = (self._cache_key, column.name, column.chunk, index)
        return _cache.get(key, lambda: self._load(column, index))

    def _load(self, column: _StoredArray, index: int) -> np.ndarray:
        # The codecs raise what they like, RuntimeError above all. Zarr gives zeros for a chunk that is not there.
        array, rows, together = column.array, column.chunk, column.block
        first = index * together // rows
        try:
            block = np.asarray(array[index * together : (index + 1) * together])
        except (RuntimeError, ValueError) as error:
            where = _key(array, first) if together == rows else f"{_key(array, first)} or one of those after it"
            raise self._damaged(f"chunk {where} cannot be decoded ({error})") from error
        for number, start in enumerate(range(0, len(block), rows)):
            key = _key(array, first + number)
            if not block[start : start + rows].any() and not exists(join(self.location, key)):
                raise self._damaged(f"chunk {key} is missing")
        return block

    def _damaged(self, what: str) -> UserError:
        return UserError(f"{self.location} is damaged: {what}; import it again with --overwrite")

    def _check(self) -> None:
        array, labels = self._data.array, self._labels and self._labels.array
        if self.dtype.name not in DTYPES:
            raise UserError(f"{self.location}: data are {self.dtype}; a store holds one of {', '.join(DTYPES)}")
        if array.chunks[1:] != array.shape[1:] or self.chunk > LABEL_ROWS:
            raise UserError(
                f"{self.location}: chunks of {array.chunks}; they are to be cut along axis 0 only, "
                f"at most {LABEL_ROWS} rows each"
            )
        if labels is not None and (labels.shape[:1] != array.shape[:1] or labels.chunks[1:] != labels.shape[1:]):
            raise self._damaged(f"{array.shape[0]} records but labels of shape {labels.shape}")
        if not len(self):
            raise UserError(f"{self.location} holds no records")


class _StoredArray(NamedTuple):
    """The data or the labels of a store. What zarr works out at each question is asked once: a batch is quicker read.

    ``block`` rows are read together: whole chunks, of a MiB at least or all of them.
    """

    array: zarr.Array
    name: str
    length: int
    shape: tuple[int, ...]
    chunk: int
    block: int


def _column(group: zarr.Group, name: str, location: str) -> _StoredArray:
    array = _array(group, name, location)
    length, shape, rows = array.shape[0], array.shape[1:], array.chunks[0]
    size = rows * math.prod(shape) * np.dtype(array.dtype).itemsize
    block = rows * max(1, min(CHUNK_BYTES // max(size, 1), -(-length // rows)))
    return _StoredArray(array, name, length, shape, rows, block)


def _key(array: zarr.Array, index: int) -> str:
    """Return where a chunk lies in its store."""
    return f"{array.basename}/{array.metadata.encode_chunk_key((index, *(0 for _ in array.shape[1:])))}"


def _zarr_group(location: str) -> zarr.Group | None:
    """Return the group at ``location``, None if there is none, or none that zarr understands."""
    store = zarr_store(location, read_only=True)
    try:
        return zarr.open_group(store=store, mode="r", zarr_format=3)
    except (FileNotFoundError, NotADirectoryError, ValueError, KeyError):  # zarr's own errors are ValueErrors
        return None


def _open_group(location: str) -> zarr.Group:
    group = _zarr_group(location)
    if group is None and not exists(location):
        raise UserError(f"no store at {location}; make one with: dsinga data import KIND SOURCE {location}")
    if group is None:
        raise UserError(
            f"{location} is no zarr v3 group; make a store of it with: dsinga data import KIND {location} DESTINATION"
        )
    version = group.attrs.get("dsinga")
    if version is None:
        raise UserError(
            f"{location} is a zarr group, but not a store of records (it lacks the attribute 'dsinga'); "
            "write one with dsinga.data.write_store or dsinga data import"
        )
    if version != VERSION:
        raise UserError(
            f"{location} has store layout {version!r}, this dsinga reads layout {VERSION}; import it again from its "
            "source, or upgrade dsinga"
        )
    if group.attrs.get("complete") is not True:
        raise UserError(f"{location} is not complete: its import was interrupted; import it again with --overwrite")
    return group


def _array(group: zarr.Group, name: str, location: str) -> zarr.Array:
    array = group.get(name)
    if not isinstance(array, zarr.Array) or not array.ndim:
        raise UserError(f"{location} is damaged: it has no array {name!r}; import it again with --overwrite")
    return array


def is_store(location: str) -> bool:
    """Whether ``location`` holds a store of records, complete or not: what may be replaced when asked to."""
    group = _zarr_group(location)
    return group is not None and "dsinga" in group.attrs


def is_complete(location: str) -> bool:
    """Whether ``location`` holds a store of records that can be opened."""
    try:
        _open_group(location)
    except UserError:
        return False
    return True

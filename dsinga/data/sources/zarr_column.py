"""Reads records or labels from an array in a zarr store."""

from __future__ import annotations

import itertools
import math
import os
import threading
import uuid
from collections.abc import Callable, Hashable
from typing import Any, ClassVar
from weakref import WeakValueDictionary

import numpy as np
import zarr
from zarr.storage import MemoryStore

from dsinga.base.errors import UserError
from dsinga.base.redaction import redact, redacted_cause
from dsinga.data.column import Column
from dsinga.data.conversion import as_labels, as_records, label_dtype, record_dtype
from dsinga.data.missing_values import as_nan, missing_values
from dsinga.data.stores.chunk_files import RegionReader, version_of
from dsinga.data.stores.missing_chunks import MissingChunks
from dsinga.data.stores.store_format import MAX_BLOCK_BYTES, SMALL_BYTES, block_rows, chunk_rows


class ZarrColumn(Column):
    """Records or labels in an array of any zarr store; chunks that are not stored have the fill value.

    Up to 128 MiB, all rows may be decoded at once and kept.

    Args:
        array: the array, (length, *shape).
        is_label: whether the rows are labels (int64 or float32) rather than data (uint8, int32 or float32).

    Raises:
        UserError: the dtype is not numeric, there is no axis of rows, or one block needs more than 256 MiB.
    """

    def __init__(self, array: zarr.Array, location: str, is_label: bool, key: str | None = None):
        self.token = key or uuid.uuid4().hex
        self.from_files = not isinstance(array.store, MemoryStore)  # type: ignore[misc]
        self.array, self.location, self.is_label = array, location, is_label
        name = array.path or os.path.basename(location)
        try:
            dtype = (label_dtype if is_label else record_dtype)(array.dtype)
        except UserError as error:
            raise UserError(f"{location}: {name!r}: {error}") from None
        if not array.ndim:
            what = f"{'labels' if is_label else 'records'} need an axis along which they lie"
            raise UserError(f"{location}: {name!r} has the shape {array.shape}, but {what}; name another array")
        length, row_bytes = array.shape[0], math.prod(array.shape[1:]) * dtype.itemsize
        rows = block_rows(max(length, 1), row_bytes, array.chunks[0])
        super().__init__(name, length, array.shape[1:], dtype, rows, (self.token, name))
        block_bytes = self.block_bytes // dtype.itemsize * max(dtype.itemsize, array.dtype.itemsize)
        if rows > block_rows(length, row_bytes) and block_bytes > MAX_BLOCK_BYTES:
            raise UserError(
                f"{location}: {name!r} has chunks of shape {array.chunks}, so that {rows} rows are decoded together: "
                f"{block_bytes >> 20} MiB, more than {MAX_BLOCK_BYTES >> 20}; rechunk it along the first axis, for "
                f"instance in chunks of {(chunk_rows(row_bytes), *self.shape)}"
            )
        is_decoded_at_once = rows % array.chunks[0] and rows < length and length * row_bytes <= SMALL_BYTES
        self.missing_values = missing_values(array)
        self.missing_chunks = MissingChunks(array, is_label)
        self._reader = RegionReader(array, self.missing_chunks.check)
        self._version = version_of(array)
        self._all_rows = _AllRows.shared(self.key) if is_decoded_at_once else None
        self.reads_regions = self._all_rows is None

    def load(self, start: int, stop: int) -> np.ndarray:
        """Return the rows ``start`` to ``stop`` in the dtype of the column."""
        if self._all_rows is None:
            return self.read_rows(start, stop)
        return self._all_rows.get(lambda: self.read_rows(0, self.length))[start:stop]

    def read_rows(self, start: int, stop: int) -> np.ndarray:
        """Read only these rows, rather than all at once."""
        try:
            rows = self._reader.read((slice(start, stop), *self.index))
        except UserError:  # which names the chunk
            raise
        except Exception as error:  # of codecs, file systems, web servers: any class
            chunk = (self.array.shards or self.array.chunks)[0]
            ends = [start, *range((start // chunk + 1) * chunk, stop, chunk), stop]
            for part in itertools.pairwise(ends) if len(ends) > 2 else ():  # find the rows at fault
                self.read_rows(*part)
            fault = redact(f"{type(error).__name__}: {error}", self.location)
            raise UserError(
                f"{self.location}: rows {start} to {stop - 1} of {self.name!r} cannot be read ({fault}); write the "
                "array again, or see whether its chunks can be reached"
            ) from redacted_cause(error, self.location)
        if self._version is not None:
            self._version.check()
        self.warn_of_rounding(rows)
        try:
            return (as_labels if self.is_label else as_records)(as_nan(rows, self.missing_values))
        except UserError as error:
            raise UserError(f"{self.location}: {self.name!r}, rows {start} to {stop - 1}: {error}") from None


class _AllRows:
    """Shares all decoded rows of an array among its columns in a process."""

    _by_key: ClassVar[WeakValueDictionary[Hashable, _AllRows]] = WeakValueDictionary()
    _lock: ClassVar[threading.Lock] = threading.Lock()

    def __init__(self, key: Hashable) -> None:
        self._key = key
        self._own_lock = threading.Lock()
        self._rows: np.ndarray | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        return _AllRows.shared, (self._key,)

    @classmethod
    def shared(cls, key: Hashable) -> _AllRows:
        with cls._lock:
            return cls._by_key.setdefault(key, cls(key))

    def get(self, decode: Callable[[], np.ndarray]) -> np.ndarray:
        with self._own_lock:
            if self._rows is None:
                self._rows = decode()
            return self._rows

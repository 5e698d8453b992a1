"""Reads record stores, zarr groups in dsinga's own format, and checks them."""

from __future__ import annotations

import math
import os
import uuid
from collections.abc import Hashable, Sequence
from typing import Any

import numpy as np
import zarr

from dsinga.base.errors import UserError
from dsinga.base.redaction import redact, redacted_cause
from dsinga.data.column import Column
from dsinga.data.conversion import label_dtype
from dsinga.data.filesystem import is_file
from dsinga.data.locations import absolute, join
from dsinga.data.record_source import RecordSource
from dsinga.data.stores.chunk_files import RegionReader
from dsinga.data.stores.store_faults import chunk_checksums, chunk_key, damaged, open_arrays, open_group, zarr_group
from dsinga.data.stores.store_format import checksum, shared_block_rows


class RecordStore(RecordSource):
    """Reads records from a store that dsinga wrote, and checks each chunk.

    Attributes:
        chunk: rows of one chunk of data.
        tokenizer: a text's tokenizer.json, else "".
        has_checksums: whether changed chunks are noticed.

    Args:
        location: local path, or an fsspec URL such as ``memory://x`` or ``s3://bucket/x``.

    Raises:
        UserError: the store is missing, incomplete, damaged, or not a record store.
    """

    kind = "record store"

    def __init__(self, location: str | os.PathLike[str]):
        location = absolute(location)
        group, attributes = open_group(location)
        arrays = open_arrays(group, location)
        checksums = chunk_checksums(attributes, arrays, location)
        digest = attributes.get("digest", "")
        data, labels = arrays["data"], arrays.get("labels")
        data_column = StoreColumn(data, location, digest, data.dtype, checksums.get("data"))
        label_column = None
        if labels is not None:
            label_column = StoreColumn(labels, location, digest, label_dtype(labels.dtype), checksums.get("labels"))
        classes, vocabulary = attributes.get("classes", ()), attributes.get("vocabulary", ())
        super().__init__(location, data_column, label_column, classes=classes, vocabulary=vocabulary, digest=digest)
        self.tokenizer: str = attributes.get("tokenizer", "")
        self.chunk, self.has_checksums = data_column.chunk, bool(checksums)
        self._arrays = list(arrays.values())

    def __reduce__(self) -> tuple[Any, ...]:
        return RecordStore, (self.location,), self._pickled_changes()

    def storage(self) -> dict[str, Any]:
        """Return chunk rows, the number of data chunks, and the bytes in memory and on disk."""
        return {
            "chunk_rows": self.chunk,
            "chunks": -(-len(self) // self.chunk),
            "raw_bytes": sum(array.nbytes for array in self._arrays),
            "stored_bytes": stored_bytes(self._arrays),
        }


def is_store(location: str) -> bool:
    """Whether there is a record store at ``location``, complete or not."""
    try:
        group = zarr_group(location)
    except UserError:
        return False
    return group is not None and "dsinga" in group.attrs


def is_complete(location: str) -> bool:
    """Whether there is a complete record store with undamaged metadata at ``location``."""
    try:
        RecordStore(location)
    except UserError:
        return False
    return True


class StoreColumn(Column):
    """The data or label array of a record store; reads compare whole chunks with their checksums.

    Args:
        checksums: the checksums of its chunks, (chunks,) uint32; None for a store without checksums.
    """

    stays_cached = True

    def __init__(
        self, array: zarr.Array, location: str, digest: str, dtype: np.dtype, checksums: np.ndarray | None = None
    ):
        length, shape, self.chunk = array.shape[0], array.shape[1:], array.chunks[0]
        block = shared_block_rows(length, math.prod(shape) * np.dtype(array.dtype).itemsize, self.chunk)
        name = array.basename
        # Without a digest the same path may get other contents.
        key: Hashable = (digest or uuid.uuid4().hex, name, self.chunk)
        super().__init__(name, length, shape, dtype, block, key)
        self.array, self.location, self.checksums = array, location, checksums
        self._reader = RegionReader(array)

    @property
    def chunks(self) -> int:
        """How many chunks the array has."""
        return -(-self.length // self.chunk)

    def load(self, start: int, stop: int) -> np.ndarray:
        """Read the rows ``start`` to ``stop``, which are whole chunks, and check them."""
        try:
            block = self._reader.read((slice(start, stop),))
        except Exception as error:  # of codecs, file systems, web servers: any class
            first, last = start // self.chunk, (stop - 1) // self.chunk
            if first < last:  # find the chunk at fault
                for row in range(start, stop, self.chunk):
                    self.load(row, min(row + self.chunk, stop))
            key = chunk_key(self.array, first)
            fault = redact(f"chunk {key} cannot be read or decoded ({type(error).__name__}: {error})", self.location)
            raise damaged(self.location, fault) from redacted_cause(error, self.location)
        for index, row in enumerate(range(0, len(block), self.chunk), start // self.chunk):
            fault = self._fault(index, block[row : row + self.chunk])
            if fault:
                raise damaged(self.location, f"chunk {chunk_key(self.array, index)} {fault}")
        return block

    def _fault(self, index: int, rows: np.ndarray) -> str:
        if self.checksums is not None:
            if checksum(rows) == self.checksums[index]:
                return ""
        elif rows.any():
            return ""
        # Zarr returns zeros for a missing chunk.
        if not is_file(join(self.location, chunk_key(self.array, index))):
            return "is missing"
        return "" if self.checksums is None else "has other records than were written"


def stored_bytes(arrays: Sequence[zarr.Array]) -> int | None:
    """Return how many bytes of a store ``arrays`` need; None if files cannot be listed."""
    try:
        return sum(array.nbytes_stored() for array in arrays)
    except Exception:  # each package has classes of its own
        return None

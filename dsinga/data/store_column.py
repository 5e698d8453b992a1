"""The arrays of a record store as columns of records."""

from __future__ import annotations

import math
import uuid
from collections.abc import Hashable

import numpy as np
import zarr

from dsinga.data.column import Column
from dsinga.data.filesystem import is_file, join
from dsinga.data.reading_store import check_lengths
from dsinga.data.store_checksums import checksum
from dsinga.data.store_format import shared_block_rows
from dsinga.data.store_opening import chunk_key, damaged
from dsinga.redaction import redact, redacted_cause


class StoreColumn(Column):
    """The data array or the label array of a record store, where every chunk is written and none splits a record.

    Raises UserError in :meth:`load`, saying which chunk is missing or damaged.

    Args:
        array: the array, (length, *shape).
        location: path or URL of the store.
        digest: the hash of all records of the store; empty if it has none.
        dtype: the dtype in which rows are returned.
        checksums: of its chunks, (chunks,) uint32; None for a store without checksums.
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
        check_lengths(array)

    @property
    def chunks(self) -> int:
        """Number of chunks."""
        return -(-self.length // self.chunk)

    def load(self, start: int, stop: int) -> np.ndarray:
        """Return the rows ``start`` to ``stop``, whole chunks, in the dtype of the array."""
        try:
            block = np.asarray(self.array[start:stop])
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
        """Return what is wrong with the rows of the chunk ``index``; empty if nothing is."""
        if self.checksums is not None:
            if checksum(rows) == self.checksums[index]:
                return ""
        elif rows.any():
            return ""
        # Zarr returns zeros for a missing chunk.
        if not is_file(join(self.location, chunk_key(self.array, index))):
            return "is missing"
        return "" if self.checksums is None else "has other records than were written"

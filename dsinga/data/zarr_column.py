"""Columns of records that are arrays in a zarr store."""

from __future__ import annotations

import math
import uuid
from collections.abc import Hashable

import numpy as np
import zarr

from dsinga.data.filesystem import exists, join
from dsinga.data.record_source import Column
from dsinga.data.store_format import shared_block_rows
from dsinga.errors import UserError


class StoreColumn(Column):
    """The data array or the label array of a record store, where every chunk is written and none splits a record.

    Raises UserError in :meth:`load`, saying which chunk is missing or damaged.
    """

    def __init__(self, array: zarr.Array, name: str, location: str, digest: str, dtype: np.dtype):
        length, shape, self.chunk = array.shape[0], array.shape[1:], array.chunks[0]
        block = shared_block_rows(length, math.prod(shape) * np.dtype(array.dtype).itemsize, self.chunk)
        # Without a digest the same path may get other contents.
        key: Hashable = (digest or uuid.uuid4().hex, name, self.chunk)
        super().__init__(name, length, shape, dtype, block, key)
        self.array, self.location = array, location

    def load(self, start: int, stop: int) -> np.ndarray:
        """Return the rows ``start`` to ``stop``, whole chunks, in the dtype of the array."""
        first = start // self.chunk
        # Codecs raise errors of different classes, mostly RuntimeError. Zarr returns zeros for a missing chunk.
        try:
            block = np.asarray(self.array[start:stop])
        except (RuntimeError, ValueError) as error:
            where = chunk_key(self.array, first) + ("" if self.block == self.chunk else " or a chunk after it")
            raise damaged(self.location, f"chunk {where} cannot be decoded ({error})") from error
        for number, row in enumerate(range(0, len(block), self.chunk)):
            key = chunk_key(self.array, first + number)
            if not block[row : row + self.chunk].any() and not exists(join(self.location, key)):
                raise damaged(self.location, f"chunk {key} is missing")
        return block


def chunk_key(array: zarr.Array, index: int) -> str:
    """Return the path, within the group of ``array``, of its chunk number ``index`` along the rows."""
    return f"{array.basename}/{array.metadata.encode_chunk_key((index, *(0 for _ in array.shape[1:])))}"


def damaged(location: str, fault: str) -> UserError:
    """Return the error for a record store that was complete once."""
    return UserError(f"{location} is damaged: {fault}; import it again with --overwrite")

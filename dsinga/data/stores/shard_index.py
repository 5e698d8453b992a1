"""Reads chunks of zarr shards by the index of each shard, whose checksum is compared."""

from __future__ import annotations

import math
import os
from typing import Any, NamedTuple

import google_crc32c
import numpy as np
import zarr

from dsinga.base import buffers
from dsinga.base.regular_files import open_regular

ENTRY_BYTES, NOT_STORED = 16, (1 << 64) - 1  # of an index: an entry, and the offset of a chunk that the shard lacks
CHECKSUM_BYTES = 4
MOST_INDEXES, INDEXES_BYTES = 256, 16 << 20  # of one array, that are kept


class ShardFault(ValueError):
    """The error that a shard's index is damaged."""


class _Index(NamedTuple):
    """The index of a shard, (*chunks, 2) uint64: offset and length; and the file's time, inode and size."""

    entries: np.ndarray
    version: tuple[int, int, int]


class ShardReader:
    """Reads chunks of an array's shards in local files; it keeps the indexes of the shards.

    Args:
        array: an array whose indexes have a checksum (:func:`has_checked_index`).
        most_bytes: the most bytes of a shard.
    """

    def __init__(self, array: zarr.Array, most_bytes: int):
        self._begin, self._most_bytes = shard_index_begin(array) or 0, most_bytes
        self._shape = chunks_of_shard(array)
        self._nbytes = ENTRY_BYTES * math.prod(self._shape)
        self._most_indexes = min(MOST_INDEXES, INDEXES_BYTES // self._nbytes)
        self._indexes: dict[str, _Index] = {}

    def read(self, path: str, chunk: tuple[int, ...]) -> np.ndarray:
        """Return the bytes (n,), uint8, of a shard's chunk, by its number along each axis in the shard.

        Raises FileNotFoundError if the shard lacks the chunk, and ShardFault for a damaged index.
        """
        with open_regular(path, self._most_bytes, buffering=0) as file:
            status = os.fstat(file.fileno())
            version = status.st_mtime_ns, status.st_ino, status.st_size
            index = self._indexes.get(path)
            if index is None or index.version != version:
                index = _Index(self._entries(file.fileno(), status.st_size, path), version)
                if len(self._indexes) >= self._most_indexes:
                    self._indexes.clear()
                self._indexes[path] = index
            offset, length = index.entries[chunk].tolist()
            if offset == NOT_STORED:
                raise FileNotFoundError(path)
            if offset + length > status.st_size:
                raise ValueError(f"{path} ends at byte {status.st_size}, but its index says {offset + length}")
            data = buffers.empty((length,), dtype=np.uint8)
            if os.preadv(file.fileno(), [memoryview(data)], offset) != length:
                raise OSError(f"{path} has changed while it was read")
        return data

    def _entries(self, file: int, size: int, path: str) -> np.ndarray:
        begin = self._begin if self._begin >= 0 else max(0, size + self._begin)
        data = os.pread(file, self._nbytes + CHECKSUM_BYTES, begin)
        entries, checksum = data[: self._nbytes], data[self._nbytes :]
        if google_crc32c.value(entries).to_bytes(CHECKSUM_BYTES, "little") != checksum:
            raise ShardFault(f"the index of {path} is damaged: its checksum differs")
        return np.frombuffer(entries, "<u8").reshape(*self._shape, 2)


def shard_index_begin(array: zarr.Array) -> int | None:
    """Return where the index of each shard begins, from the end if negative; None for unknown encodings."""
    sharding = _sharding_of(array)
    codecs = [codec.to_dict() for codec in sharding.index_codecs]
    is_plain = codecs[0].get("configuration", {}).get("endian") == "little"
    if not is_plain or [codec["name"] for codec in codecs] not in (["bytes"], ["bytes", "crc32c"]):
        return None
    where = sharding.index_location
    if getattr(where, "value", where) == "start":  # zarr 3.4 has a text, older ones a member of an enum
        return 0
    return -ENTRY_BYTES * math.prod(chunks_of_shard(array)) - CHECKSUM_BYTES * (len(codecs) - 1)


def has_checked_index(array: zarr.Array) -> bool:
    """Whether the index of each shard is in a known encoding, and has a checksum."""
    return shard_index_begin(array) is not None and len(_sharding_of(array).index_codecs) == 2


def _sharding_of(array: zarr.Array) -> Any:
    metadata: Any = array.metadata  # of zarr's third format, the only one that has shards
    return metadata.codecs[0]


def chunks_of_shard(array: zarr.Array) -> tuple[int, ...]:
    """Return how many chunks each stored object has along each axis: 1 without shards."""
    return tuple(big // small for big, small in zip(array.shards or array.chunks, array.chunks, strict=True))

"""Defines the format of record stores, zarr v3 groups of records and labels, and their checksums.

The array ``data`` (N, *shape), uint8, int32 or float32, is chunked along axis 0 only, in chunks of about one MiB. The
optional array ``labels``, int32 or float32, is (N,), (N, K) for several labels of a record, or (N, T) for a label of
each step, padded with -1. Attributes of the group:

- ``dsinga``: the version of this format, 3; stores of versions 1 (integer labels) and 2 (float labels) have no
  checksums;
- ``complete``: true, written last;
- ``checksums``: of each chunk, and of the metadata;
- ``digest``: hash of all records and labels, their shape and dtype, the same for equal data;
- ``classes``: names of the labels 0, 1, ..., if known;
- ``vocabulary``: the words, characters or tokens that the codes 0, 1, ... stand for;
- ``tokenizer``: the content of the tokenizer.json with which a text was imported.

In ``checksums``, each array has the CRC-32C of the rows of each chunk before compression, four bytes little-endian
each, all together in base64. ``metadata`` is the BLAKE2b hash of everything else, including this table.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import google_crc32c
import numpy as np

if TYPE_CHECKING:
    import zarr

CHECKSUMS_VERSION = 3
LABEL_ROWS = 65536
CHUNK_BYTES = 1 << 20
MAX_CHUNK_BYTES = 8 << 20
SMALL_BYTES = 128 << 20  # a source of at most so many bytes has the blocks of a record store, whatever its chunks
MAX_BLOCK_BYTES = 256 << 20  # a sampler mixes eight blocks, so reading keeps up to ten times as much in memory
MIN_CHUNK_ROWS = 32
DTYPES = ("uint8", "int32", "float32")


def chunk_rows(record_bytes: int) -> int:
    """Return how many records to store in a chunk, for records of ``record_bytes``.

    A chunk has about one MiB, but at least 32 records and at most 8 MiB.
    """
    record_bytes = max(record_bytes, 1)
    min_rows = min(MIN_CHUNK_ROWS, max(MAX_CHUNK_BYTES // record_bytes, 1))
    return min(max(CHUNK_BYTES // record_bytes, min_rows), LABEL_ROWS)


def shared_block_rows(length: int, record_bytes: int, chunk: int) -> int:
    """Return how many rows of whole chunks to read and shuffle together: about a MiB."""
    return chunk * max(1, min(CHUNK_BYTES // max(chunk * record_bytes, 1), -(-length // chunk)))


def block_rows(length: int, record_bytes: int, chunk: int | None = None) -> int:
    """Return how many rows to read and shuffle together, from other sources than record stores.

    They are as many as for a record store, or a chunk if chunks are larger and all records exceed 128 MiB.
    ``record_bytes`` are a record's in the dtype of a record store. ``chunk`` are the rows of the source's chunks; None
    if rows can be read alone.
    """
    block = shared_block_rows(length, record_bytes, chunk_rows(record_bytes))
    if chunk is None or chunk <= block or length * record_bytes <= SMALL_BYTES:
        return block
    return chunk


# The attributes of the group that the hash of the metadata covers.
COVERED = ("dsinga", "complete", "digest", "classes", "vocabulary")
OPTIONAL = ("tokenizer",)  # where they are: stores without them keep the hash that they had before


def checksum(rows: np.ndarray) -> int:
    """Return the CRC-32C of a chunk's rows, to notice damage."""
    return int(google_crc32c.value(np.ascontiguousarray(rows)))


def to_text(checksums: Sequence[int]) -> str:
    """Write the checksums of an array's chunks as a text for an attribute."""
    return base64.b64encode(np.asarray(checksums, "<u4").tobytes()).decode()


def from_text(text: str) -> np.ndarray:
    """Read the checksums of an array's chunks, (chunks,) uint32. Raises ValueError for a malformed ``text``."""
    try:
        return np.frombuffer(base64.b64decode(text, validate=True), "<u4")
    except (binascii.Error, TypeError) as error:
        raise ValueError(str(error)) from None


def metadata_checksum(attributes: Mapping[str, Any], arrays: Mapping[str, zarr.Array], table: Mapping[str, Any]) -> str:
    """Return a hash of a store's metadata, to notice changes."""
    facts = {
        "attributes": {
            **{name: attributes.get(name) for name in COVERED},
            **{name: attributes[name] for name in OPTIONAL if name in attributes},
        },
        "arrays": {name: [array.shape, array.dtype.name, array.chunks] for name, array in arrays.items()},
        "checksums": {name: table[name] for name in arrays},
    }
    text = json.dumps(facts, sort_keys=True, separators=(",", ":"))
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()

"""The checksums of a record store: one for each chunk, and one for the shapes, dtypes and names that give it meaning.

They stand in the attribute ``checksums`` of the group, which is written last: for each array the CRC-32C of the rows of
each chunk as they were before compression, four bytes little-endian each, all together in base64; and as ``metadata``
the BLAKE2b hash of everything that the checksums of chunks do not cover, this table included. A chunk that is missing,
cut, changed, exchanged with another one, or decoded in another way has other rows, and so another checksum.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any

import google_crc32c
import numpy as np
import zarr

# The attributes of the group that the hash of the metadata covers.
COVERED = ("dsinga", "complete", "digest", "classes", "vocabulary")


def checksum(rows: np.ndarray) -> int:
    """Return the CRC-32C of the bytes of ``rows``, the rows of one chunk."""
    return int(google_crc32c.value(np.ascontiguousarray(rows)))


def to_text(checksums: Sequence[int]) -> str:
    """Return the checksums of the chunks of an array as they stand in the attribute."""
    return base64.b64encode(np.asarray(checksums, "<u4").tobytes()).decode()


def from_text(text: str) -> np.ndarray:
    """Return the checksums of the chunks of an array, (chunks,) uint32; raise ValueError if ``text`` has none."""
    try:
        return np.frombuffer(base64.b64decode(text, validate=True), "<u4")
    except (binascii.Error, TypeError) as error:
        raise ValueError(str(error)) from None


def metadata_checksum(attributes: Mapping[str, Any], arrays: Mapping[str, zarr.Array], table: Mapping[str, Any]) -> str:
    """Return the hash of the attributes of a store, the shapes, dtypes and chunks of its arrays, and their checksums.

    Args:
        attributes: those of the group.
        arrays: the arrays by name.
        table: the checksums of the chunks of each array, as text.
    """
    facts = {
        "attributes": {name: attributes.get(name) for name in COVERED},
        "arrays": {name: [array.shape, array.dtype.name, array.chunks] for name, array in arrays.items()},
        "checksums": {name: table[name] for name in arrays},
    }
    text = json.dumps(facts, sort_keys=True, separators=(",", ":"))
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()

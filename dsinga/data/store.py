"""The record store: a zarr group of records that dsinga wrote, checked when it is opened."""

from __future__ import annotations

import os
from typing import Any

from dsinga.data.conversion import label_dtype
from dsinga.data.filesystem import absolute
from dsinga.data.record_source import RecordSource
from dsinga.data.store_column import StoreColumn
from dsinga.data.store_opening import chunk_checksums, open_arrays, open_group, zarr_group
from dsinga.data.zarr_column import stored_bytes
from dsinga.errors import UserError


class RecordStore(RecordSource):
    """A zarr store of records in the format of :mod:`dsinga.data.store_format`.

    A pickle contains its location only.

    Attributes:
        location: absolute path or URL.
        chunk: rows of one chunk of data. ``block`` rows are read together: a chunk, or several small ones of a MiB
            together, since each call of zarr costs a millisecond.
        has_checksums: whether changed chunks are noticed; False for stores of versions that had no checksums.

    Args:
        location: local path, or an fsspec URL such as ``memory://x`` or ``s3://bucket/x``.

    Raises:
        UserError: the store is missing, incomplete, or not a record store; or its metadata are damaged.
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
        self.chunk, self.has_checksums = data_column.chunk, bool(checksums)
        self._arrays = list(arrays.values())

    def __reduce__(self) -> tuple[Any, ...]:
        return RecordStore, (self.location,), self._pickled_changes()

    def storage(self) -> dict[str, Any]:
        """Return rows of a chunk, the number of chunks of data, and the bytes of all arrays in memory and on disk."""
        return {
            "chunk_rows": self.chunk,
            "chunks": -(-len(self) // self.chunk),
            "raw_bytes": sum(array.nbytes for array in self._arrays),
            "stored_bytes": stored_bytes(self._arrays),
        }


def is_store(location: str) -> bool:
    """Return whether there is a record store at ``location``, complete or not."""
    try:
        group = zarr_group(location)
    except UserError:
        return False
    return group is not None and "dsinga" in group.attrs


def is_complete(location: str) -> bool:
    """Return whether there is a complete record store at ``location``, whose metadata are not damaged."""
    try:
        RecordStore(location)
    except UserError:
        return False
    return True

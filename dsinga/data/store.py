"""The record store: a zarr group of records that dsinga wrote, checked when it is opened."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import zarr

from dsinga.advice import option
from dsinga.data.conversion import label_dtype
from dsinga.data.filesystem import absolute, exists, zarr_store
from dsinga.data.record_source import RecordSource
from dsinga.data.store_format import DTYPES, FLOAT_LABELS_VERSION, LABEL_ROWS, VERSION
from dsinga.data.zarr_column import StoreColumn, damaged, stored_bytes
from dsinga.errors import UserError


class RecordStore(RecordSource):
    """A zarr store of records in the format of :mod:`dsinga.data.store_format`.

    A pickle contains its location only.

    Attributes:
        location: absolute path or URL.
        chunk: rows of one chunk of data. ``block`` rows are read together: a chunk, or several small ones of a MiB
            together, since each call of zarr costs a millisecond.

    Args:
        location: local path, or an fsspec URL such as ``memory://x`` or ``s3://bucket/x``.

    Raises:
        UserError: the store is missing, incomplete, or not a record store.
    """

    kind = "record store"

    def __init__(self, location: str | os.PathLike[str]):
        location = absolute(location)
        group = _open_group(location)
        arrays = [_array(group, name, location) for name in ("data", "labels") if name == "data" or name in group]
        _check(arrays, location)
        attributes: dict[str, Any] = group.attrs.asdict()
        digest = attributes.get("digest", "")
        data = StoreColumn(arrays[0], "data", location, digest, arrays[0].dtype)
        labels = None
        if len(arrays) > 1:
            labels = StoreColumn(arrays[1], "labels", location, digest, label_dtype(arrays[1].dtype))
        classes, vocabulary = attributes.get("classes", ()), attributes.get("vocabulary", ())
        super().__init__(location, data, labels, classes=classes, vocabulary=vocabulary, digest=digest)
        self.chunk = data.chunk
        self._arrays = arrays

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


def _check(arrays: Sequence[zarr.Array], location: str) -> None:
    """Raise UserError unless ``arrays``, the data and perhaps the labels, are as the format says."""
    data, labels = arrays[0], arrays[1] if len(arrays) > 1 else None
    if data.dtype.name not in DTYPES:
        raise UserError(f"{location} has data of dtype {data.dtype}; a store has one of {', '.join(DTYPES)}")
    if data.chunks[1:] != data.shape[1:] or data.chunks[0] > LABEL_ROWS:
        raise UserError(
            f"{location} has chunks of shape {data.chunks}; chunk it along axis 0 only, with at most "
            f"{LABEL_ROWS} rows in a chunk"
        )
    if labels is not None and (labels.shape[:1] != data.shape[:1] or labels.chunks[1:] != labels.shape[1:]):
        raise damaged(location, f"{data.shape[0]} records but labels of shape {labels.shape}")
    if labels is not None and labels.dtype.name not in ("int32", "float32"):
        raise damaged(location, f"labels are {labels.dtype}, not int32 or float32")
    if not data.shape[0]:
        raise UserError(f"{location} has no records; import it again with {option('overwrite')}")


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
            f"{location} is a zarr group, but not a record store (it lacks the attribute 'dsinga'); open it with "
            "dsinga.data.open_records, or write a record store with dsinga.data.write_store or dsinga data import"
        )
    if version not in (VERSION, FLOAT_LABELS_VERSION):
        raise UserError(
            f"{location} has version {version!r} of the store format, but this dsinga reads versions {VERSION} and "
            f"{FLOAT_LABELS_VERSION}; import it again from its source, or upgrade dsinga"
        )
    if group.attrs.get("complete") is not True:
        raise UserError(
            f"{location} is incomplete: its import was interrupted; import it again with {option('overwrite')}"
        )
    return group


def _array(group: zarr.Group, name: str, location: str) -> zarr.Array:
    array = group.get(name)
    if not isinstance(array, zarr.Array) or not array.ndim:
        raise damaged(location, f"it has no array {name!r}")
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

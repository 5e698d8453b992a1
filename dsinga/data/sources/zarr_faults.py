"""Finds what is damaged in a zarr store whose error names neither the array nor the chunk."""

from __future__ import annotations

import itertools
import json
import logging
import os
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import zarr

from dsinga.base.errors import UserError
from dsinga.base.redaction import redact, redacted_cause
from dsinga.base.registry import listed
from dsinga.data.file_version import FileVersion
from dsinga.data.filesystem import has_zarr_metadata, join, zarr_store
from dsinga.data.stores.chunk_files import RegionReader, axis_parts, local_folder, location_of
from dsinga.data.stores.store_faults import unreadable

MOST_POINTS = 1 << 36  # along an axis of an array
MOST_MEMBERS = 1000  # of a group that are looked at
MOST_REQUESTS = 16  # for metadata, at once
CONSOLIDATE = "consolidate them again: zarr.consolidate_metadata(path)"
logger = logging.getLogger(__name__)


def version_of(array: zarr.Array) -> FileVersion | None:
    """Return the version of the metadata of a local array, None of one at a URL."""
    folder = local_folder(array)
    if folder is None:
        return None
    name = ".zarray" if array.metadata.zarr_format == 2 else "zarr.json"
    return FileVersion(os.path.join(folder, array.path, name))


def check_group(group: zarr.Group, arrays: Iterable[zarr.Array]) -> None:
    """Raise UserError where the consolidated metadata of a group contradict its store, or those of arrays their chunks.

    They do where an array was written again, or its attributes were set, after the group was consolidated.

    Args:
        group: the group.
        arrays: the arrays of it that are read.
    """
    arrays = list(arrays)
    if arrays and group.metadata.consolidated_metadata is not None:
        with ThreadPoolExecutor(MOST_REQUESTS) as pool:
            list(pool.map(check_array, arrays))
        location = location_of(arrays[0])
        later = [name for name in _names(location) if name not in group and has_zarr_metadata(join(location, name))]
        if later:
            text = (
                f"{location}: {listed(map(repr, later))} came after the metadata were consolidated, and cannot be seen"
            )
            logger.warning(redact(f"{text}; {CONSOLIDATE}"))
    for array in arrays:
        check_extent(array)


def check_array(array: zarr.Array) -> None:
    """Raise UserError where an array that was opened has other metadata than its store, as of a consolidated group."""
    options: Any = {"store": array.store, "path": array.path, "zarr_format": array.metadata.zarr_format}
    try:
        stored = zarr.open_array(mode="r", **options)
    except FileNotFoundError:
        raise UserError(
            f"{location_of(array)}: {array.path!r} is in the consolidated metadata, but not in the store; {CONSOLIDATE}"
        ) from None
    except Exception as error:  # of damaged metadata, and of file systems: any class
        location = location_of(array)
        raise unreadable(location, f"the metadata of {array.path!r}", error) from redacted_cause(error, location)
    old, new = _facts(array), _facts(stored)
    for what in dict.fromkeys([*old, *new]):
        if json.dumps(old.get(what), default=str) != json.dumps(new.get(what), default=str):
            raise UserError(
                f"{location_of(array)}: {array.path!r} has the {what} {old.get(what)} by the consolidated metadata, "
                f"but {new.get(what)} by its own; {CONSOLIDATE}"
            )


def _facts(array: zarr.Array) -> dict[str, Any]:
    """Return what the metadata of an array say, by name."""
    plain = {what: getattr(array, what) for what in ("shape", "dtype", "chunks")}
    facts = dict(array.metadata.to_dict())
    attributes: Any = facts.pop("attributes", {})
    attributes = attributes if isinstance(attributes, dict) else {"": attributes}  # damaged
    return {**plain, **{f"attribute {name}": value for name, value in attributes.items()}, **facts, **plain}


def check_extent(array: zarr.Array, most: int = MOST_POINTS) -> None:
    """Raise UserError where a shape is senseless, or a local array has a chunk after the last one that it says."""
    folder, chunks = local_folder(array), array.shards or array.chunks
    if max(array.shape, default=0) > most or 0 in (*chunks, *array.chunks):
        raise UserError(
            f"{location_of(array)}: {array.path!r} has the shape {array.shape} in chunks {chunks} by its metadata, but "
            f"axes have up to {most:,} points, and chunks one or more; put back its metadata, or write the array again"
        )
    for axis in range(array.ndim) if folder is not None else ():
        index = [0] * array.ndim
        index[axis] = -(-array.shape[axis] // chunks[axis])
        key = join(array.path, array.metadata.encode_chunk_key(tuple(index)))
        if os.path.lexists(join(str(folder), key)):
            raise UserError(
                f"{folder}: there is a chunk {key} after the last of {array.path!r}, whose shape is {array.shape} by "
                "its metadata; write the array again, or put back its metadata"
            )


def chunk_fault(array: zarr.Array, region: Sequence[slice], error: Exception) -> UserError:
    """Return the error that names the chunk of a region which cannot be read; ``error`` was raised for the region."""
    reader = RegionReader(array)
    chunks = array.shards or array.chunks
    begins = [range(0, size, chunk or 1) for size, chunk in zip(array.shape, chunks, strict=True)]
    parts = list(itertools.product(*map(axis_parts, region, begins)))
    for part in parts:
        try:
            if len(parts) > 1:
                reader.read(tuple(axis.points for axis in part))
                continue
        except Exception as fault:  # of codecs and file systems: any class
            error = fault
        return _named(array, tuple(axis.number for axis in part), error)
    return UserError(f"{array.path!r} cannot be read ({type(error).__name__}: {error})")


def _named(array: zarr.Array, index: tuple[int, ...], error: Exception) -> UserError:
    """Return the error about a chunk, with the remedy that is true of it."""
    location, key = location_of(array), join(array.path, array.metadata.encode_chunk_key(index))
    remedy = "see whether every process can reach the data"
    if local_folder(array) is not None and os.path.lexists(join(location, key)):
        remedy = "write the array again, or put back a copy of this chunk"
    fault = redact(f"{type(error).__name__}: {error}", location)
    return UserError(redact(f"{location}: chunk {key} cannot be read or decoded ({fault}); {remedy}", location))


def check_members(location: str) -> None:
    """Raise UserError for the first array of a group whose metadata, or whose coordinates, cannot be read."""
    node = zarr.open(store=zarr_store(location, read_only=True), mode="r")
    if not isinstance(node, zarr.Group):
        return
    for name in itertools.islice(_names(location, node.store), MOST_MEMBERS):
        try:
            member = node[name]
        except KeyError:
            continue
        except Exception as error:  # of damaged metadata: any class
            fault = redact(f"{type(error).__name__}: {error}", location)
            raise UserError(
                f"{redact(location)}: the metadata of {name!r} cannot be read ({fault}); write it again, or put back a "
                "copy of its metadata"
            ) from redacted_cause(error, location)
        if isinstance(member, zarr.Array) and member.ndim == 1 and _is_coordinate(member, name):
            region = (slice(0, member.shape[0]),)
            try:
                member[region]
            except Exception as error:  # of codecs and file systems: any class
                raise chunk_fault(member, region, error) from redacted_cause(error, location)


def _names(location: str, store: Any = None) -> Iterator[str]:
    """Yield the names of what may be a member of a group."""
    if not os.path.isdir(location):  # a URL, or references
        keys = getattr(getattr(getattr(store, "_store", store), "fs", None), "references", ())
        yield from dict.fromkeys(key.partition("/")[0] for key in keys if key.find("/") > 0)
        return
    for entry in sorted(os.scandir(location), key=lambda entry: entry.name):
        if entry.is_dir():
            yield entry.name


def _is_coordinate(array: Any, name: str) -> bool:
    names = getattr(array.metadata, "dimension_names", None) or dict(array.attrs).get("_ARRAY_DIMENSIONS", ())
    return tuple(names) == (name,)

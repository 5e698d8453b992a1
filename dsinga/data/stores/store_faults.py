"""Opens record stores, and explains damage: which array or chunk, and what to do."""

from __future__ import annotations

import itertools
import json
import logging
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import zarr

from dsinga.base.advice import option
from dsinga.base.errors import UserError
from dsinga.base.redaction import redact, redacted_cause
from dsinga.base.registry import listed
from dsinga.base.regular_files import parse_json, read_json
from dsinga.data.filesystem import exists, has_zarr_metadata, import_command, is_file, zarr_store
from dsinga.data.locations import file_system, is_url, join
from dsinga.data.stores.chunk_files import RegionReader, axis_parts, local_folder, location_of
from dsinga.data.stores.store_format import CHECKSUMS_VERSION, DTYPES, LABEL_ROWS, from_text, metadata_checksum

logger = logging.getLogger(__name__)
_said: set[str] = set()  # locations of stores without checksums, of which the log has a line


def damaged(location: str, fault: str) -> UserError:
    """Return the error that a record store is damaged."""
    return UserError(f"{location} is damaged: {fault}; import it again with {option('overwrite')}")


def metadata_remedy(location: str, name: str = "") -> str:
    """Advise on a zarr.json that zarr cannot open; "" if not of zarr format 3."""
    try:
        if is_url(location):
            filesystem, path = file_system(join(location, name))
            content = parse_json(filesystem.cat_file(f"{path}/zarr.json"))
        else:
            content = read_json(os.path.join(location, name, "zarr.json"))
        if content["zarr_format"] != 3:
            return ""
    except Exception:  # of file systems: any class; of JSON and its types
        return ""
    if content.get("node_type") == "array" and content.get("chunk_grid", {}).get("name") == "rectilinear":
        return "its chunks have various sizes (rectilinear), which dsinga does not read; write it in equal chunks"
    return f"its zarr.json names what zarr {zarr.__version__} cannot read; install a newer zarr, or what it names"


def unreadable(location: str, what: str, error: Exception) -> UserError:
    """Return the error that a part of a store cannot be read."""
    return UserError(redact(f"{location}: {what} cannot be read ({type(error).__name__}: {error})", location))


def zarr_group(location: str) -> zarr.Group | None:
    """Open the zarr v3 group at ``location``; None if there is none."""
    store = zarr_store(location, read_only=True)
    try:
        return zarr.open_group(store=store, mode="r", zarr_format=3, use_consolidated=False)
    except (FileNotFoundError, NotADirectoryError, zarr.errors.ContainsArrayError):
        return None
    except Exception as error:  # metadata that are no JSON or have other types, and faults of disks and servers
        fault = unreadable(location, "zarr.json", error)
        remedy = (
            metadata_remedy(location) or "see whether it can be reached, else delete this store and import it again"
        )
        raise UserError(f"{fault}; {remedy}") from redacted_cause(error, location)


def open_group(location: str) -> tuple[zarr.Group, dict[str, Any]]:
    """Open a complete record store: return its group and attributes. Raises UserError without one."""
    group = zarr_group(location)
    if group is None and not exists(location):
        raise UserError(f"there is no store at {location}; make one with: {import_command(location)}")
    if group is None:
        raise UserError(
            f"{location} is not a zarr v3 group; import it into a store with: "
            f"dsinga data import KIND {location} DESTINATION"
        )
    attributes: dict[str, Any] = group.attrs.asdict()
    if "dsinga" not in attributes:
        raise UserError(
            f"{location} is a zarr group, but not a record store (it lacks the attribute 'dsinga'); open it with "
            "dsinga.data.open_records, or write a record store with dsinga.data.write_store or dsinga data import"
        )
    version = attributes["dsinga"]
    if type(version) is not int or not 1 <= version <= CHECKSUMS_VERSION:
        raise UserError(
            f"{location} has version {version!r} of the store format, but this dsinga reads versions 1 to "
            f"{CHECKSUMS_VERSION}; import it again from its source, or upgrade dsinga"
        )
    if attributes.get("complete") is not True:
        raise UserError(
            f"{location} is incomplete: its import was interrupted; import it again with {option('overwrite')}"
        )
    for name, kind in (("digest", str), ("classes", list), ("vocabulary", list), ("tokenizer", str)):
        if not isinstance(attributes.get(name, kind()), kind):
            raise damaged(location, f"its attribute {name!r} is {attributes[name]!r:.40}")
    return group, attributes


def open_arrays(group: zarr.Group, location: str) -> dict[str, zarr.Array]:
    """Open the arrays ``data`` and, if present, ``labels`` of a record store, and check their form."""
    arrays: dict[str, zarr.Array] = {}
    for name in ("data", "labels"):
        try:
            array = group.get(name)
        except Exception as error:  # as of zarr_group
            fault = str(unreadable(location, f"{name}/zarr.json", error)).removeprefix(f"{location}: ")
            raise damaged(location, fault) from redacted_cause(error, location)
        if isinstance(array, zarr.Array) and array.ndim:
            arrays[name] = array
        elif name == "data" or array is not None:
            raise damaged(location, f"it has no array {name!r}")
    _check_arrays(arrays["data"], arrays.get("labels"), location)
    return arrays


def _check_arrays(data: zarr.Array, labels: zarr.Array | None, location: str) -> None:
    if data.dtype.name not in DTYPES:
        raise UserError(f"{location} has data of dtype {data.dtype}; a store has one of {', '.join(DTYPES)}")
    if data.chunks[1:] != data.shape[1:] or not 1 <= data.chunks[0] <= LABEL_ROWS:
        raise UserError(
            f"{location} has chunks of shape {data.chunks}; chunk it along axis 0 only, with 1 to {LABEL_ROWS} rows in "
            "a chunk"
        )
    if labels is not None and (labels.shape[:1] != data.shape[:1] or labels.chunks[1:] != labels.shape[1:]):
        raise damaged(location, f"{data.shape[0]} records but labels of shape {labels.shape}")
    if labels is not None and labels.chunks[0] < 1:
        raise damaged(location, f"labels have chunks of shape {labels.chunks}")
    if labels is not None and labels.dtype.name not in ("int32", "float32"):
        raise damaged(location, f"labels are {labels.dtype}, not int32 or float32")
    if not data.shape[0]:
        raise UserError(f"{location} has no records; import it again with {option('overwrite')}")


def chunk_checksums(
    attributes: Mapping[str, Any], arrays: Mapping[str, zarr.Array], location: str
) -> dict[str, np.ndarray]:
    """Return the stored checksums of a record store's chunks, by array; empty for old versions."""
    table = attributes.get("checksums")
    if table is None and attributes["dsinga"] < CHECKSUMS_VERSION:
        _check_counts(arrays, location)
        if location not in _said:
            _said.add(location)
            logger.info(
                "%s was written by an earlier version of dsinga and has no checksums: changed bytes in it may go "
                "unnoticed; import it again to get them",
                redact(location),
            )
        return {}
    if not isinstance(table, dict) or not {"metadata", *arrays} <= set(table):
        raise damaged(location, "its attribute 'checksums' is not as it was written")
    try:
        checksums = {name: from_text(table[name]) for name in arrays}
    except ValueError as error:
        raise damaged(location, f"its attribute 'checksums' is not as it was written ({error})") from None
    if table["metadata"] != metadata_checksum(attributes, arrays, table):
        raise damaged(
            location, "the shapes, dtypes or attributes in its zarr.json files are not those that were written"
        )
    return checksums


def _check_counts(arrays: Mapping[str, zarr.Array], location: str) -> None:
    for array in arrays.values():
        last = -(-array.shape[0] // array.chunks[0]) - 1
        if not is_file(join(location, chunk_key(array, last))):
            raise damaged(location, f"chunk {chunk_key(array, last)}, the last one, is missing")
        if is_file(join(location, chunk_key(array, last + 1))):
            raise damaged(location, f"there is a chunk {chunk_key(array, last + 1)} after the last of its records")
        if array.fill_value != 0:
            raise damaged(location, f"{array.basename}/zarr.json has another fill value than 0")


def chunk_key(array: zarr.Array, index: int) -> str:
    """Return the path, within the group, of the chunk number ``index`` along the rows of an array."""
    return f"{array.basename}/{array.metadata.encode_chunk_key((index, *(0 for _ in array.shape[1:])))}"


MOST_POINTS = 1 << 36  # along an axis of an array
MOST_REQUESTS = 16  # for metadata, at once
CONSOLIDATE = "consolidate them again: zarr.consolidate_metadata(path)"


def check_group(group: zarr.Group | None, arrays: Iterable[zarr.Array]) -> None:
    """Raise UserError for a zarr group with outdated consolidated metadata."""
    arrays = list(arrays)
    known = group if group is not None and group.metadata.consolidated_metadata is not None else None
    if arrays and (known is not None or group is None or local_folder(arrays[0]) is not None):
        with ThreadPoolExecutor(MOST_REQUESTS) as pool:
            list(pool.map(check_array, arrays))
    if arrays and known is not None:
        location = location_of(arrays[0])
        later = [
            name for name in member_names(location) if name not in known and has_zarr_metadata(join(location, name))
        ]
        if later:
            text = (
                f"{location}: {listed(map(repr, later))} came after the metadata were consolidated, and cannot be seen"
            )
            logger.warning(redact(f"{text}; {CONSOLIDATE}"))
    for array in arrays:
        check_extent(array)


def check_equal_chunks(array: zarr.Array) -> None:
    """Refuse an array with chunks of various sizes, which only newer releases of zarr read."""
    try:
        _ = array.chunks
    except NotImplementedError:
        raise UserError(
            f"{location_of(array)}: the chunks of {array.path!r} have various sizes (rectilinear), which dsinga does "
            "not read; write it in equal chunks"
        ) from None


def check_array(array: zarr.Array) -> None:
    """Raise UserError if an opened array has outdated metadata, as from consolidated metadata."""
    check_equal_chunks(array)
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
    plain = {what: getattr(array, what) for what in ("shape", "dtype", "chunks")}
    facts = dict(array.metadata.to_dict())
    attributes: Any = facts.pop("attributes", {})
    attributes = attributes if isinstance(attributes, dict) else {"": attributes}  # damaged
    return {**plain, **{f"attribute {name}": value for name, value in attributes.items()}, **facts, **plain}


def check_extent(array: zarr.Array, most: int = MOST_POINTS) -> None:
    """Raise UserError for a shape that no array can have, or a local chunk outside the shape."""
    check_equal_chunks(array)
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
    """Find the chunk at which reading a region failed, and return the error that names it."""
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
    location, key = location_of(array), join(array.path, array.metadata.encode_chunk_key(index))
    remedy = "see whether every process can reach the data"
    if local_folder(array) is not None and os.path.lexists(join(location, key)):
        remedy = "write the array again, or put back a copy of this chunk"
    fault = redact(f"{type(error).__name__}: {error}", location)
    return UserError(redact(f"{location}: chunk {key} cannot be read or decoded ({fault}); {remedy}", location))


def member_names(location: str, store: Any = None) -> Iterator[str]:
    """Yield names that arrays in a group may have, for groups that cannot be listed."""
    if not os.path.isdir(location):  # a URL, or references
        keys = getattr(getattr(getattr(store, "_store", store), "fs", None), "references", ())
        yield from dict.fromkeys(key.partition("/")[0] for key in keys if key.find("/") > 0)
        return
    for entry in sorted(os.scandir(location), key=lambda entry: entry.name):
        if entry.is_dir():
            yield entry.name

"""Opens the group and the arrays of a record store, and checks all but the records."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

import numpy as np
import zarr

from dsinga.base.advice import option
from dsinga.base.errors import UserError
from dsinga.base.redaction import redact, redacted_cause
from dsinga.data.filesystem import exists, import_command, is_file, join, zarr_store
from dsinga.data.stores.store_format import CHECKSUMS_VERSION, DTYPES, LABEL_ROWS, from_text, metadata_checksum

logger = logging.getLogger(__name__)
_said: set[str] = set()  # locations of stores without checksums, of which the log has a line


def damaged(location: str, fault: str) -> UserError:
    """Return the error for a record store that was complete once."""
    return UserError(f"{location} is damaged: {fault}; import it again with {option('overwrite')}")


def unreadable(location: str, what: str, error: Exception) -> UserError:
    """Return the error for a part of a store, ``what``, that raised an error of zarr, a codec or the file system."""
    return UserError(redact(f"{location}: {what} cannot be read ({type(error).__name__}: {error})", location))


def zarr_group(location: str) -> zarr.Group | None:
    """Return the zarr v3 group at ``location``, or None if there is none; raise UserError if it cannot be read."""
    store = zarr_store(location, read_only=True)
    try:
        return zarr.open_group(store=store, mode="r", zarr_format=3, use_consolidated=False)
    except (FileNotFoundError, NotADirectoryError, zarr.errors.ContainsArrayError):
        return None
    except Exception as error:  # metadata that are no JSON or have other types, and faults of disks and servers
        fault = unreadable(location, "zarr.json", error)
        raise UserError(
            f"{fault}; see whether it can be reached, else delete this store and import it again"
        ) from redacted_cause(error, location)


def open_group(location: str) -> tuple[zarr.Group, dict[str, Any]]:
    """Return the group of the complete record store at ``location`` and its attributes; raise UserError if it is none.

    The arrays are not looked at.
    """
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
    """Return the arrays of a record store by name, ``data`` and perhaps ``labels``; raise UserError for others."""
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
    """Raise UserError unless the data and the labels are as the format says."""
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
    """Return the checksums of the chunks of each array of a store; nothing for a store of a version without them.

    Raises UserError if the metadata of the store are not those that were written.
    """
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
    """Raise UserError unless the arrays have as many chunks as their shapes say, judged by the last one."""
    for array in arrays.values():
        last = -(-array.shape[0] // array.chunks[0]) - 1
        if not is_file(join(location, chunk_key(array, last))):
            raise damaged(location, f"chunk {chunk_key(array, last)}, the last one, is missing")
        if is_file(join(location, chunk_key(array, last + 1))):
            raise damaged(location, f"there is a chunk {chunk_key(array, last + 1)} after the last of its records")
        if array.fill_value != 0:
            raise damaged(location, f"{array.basename}/zarr.json has another fill value than 0")


def chunk_key(array: zarr.Array, index: int) -> str:
    """Return the path, within the group of ``array``, of its chunk number ``index`` along the rows."""
    return f"{array.basename}/{array.metadata.encode_chunk_key((index, *(0 for _ in array.shape[1:])))}"

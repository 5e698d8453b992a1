"""Reads records from any zarr array or group, formats 2 and 3, without a copy."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping
from typing import Any

import zarr

from dsinga.base.errors import UserError
from dsinga.base.redaction import redact, redacted_cause
from dsinga.base.registry import nearest, register
from dsinga.data.filesystem import exists, import_command, zarr_store
from dsinga.data.locations import absolute, join
from dsinga.data.missing_values import missing_values
from dsinga.data.record_source import RecordSource
from dsinga.data.sources.arrays import DataAndLabels, Kind, Labels, Options, array_labels
from dsinga.data.sources.zarr_column import ZarrColumn
from dsinga.data.stores.chunk_files import local_folder, location_of
from dsinga.data.stores.record_store import RecordStore, stored_bytes
from dsinga.data.stores.store_faults import check_array, check_extent, check_group, metadata_remedy, unreadable


class ZarrSource(RecordSource):
    """Records, and optional labels, in any zarr group or array.

    Each worker reads only the chunks it needs.

    Args:
        location: local path or fsspec URL of an array or a group.
        data: path of the array of records in the group; None guesses, see :func:`find_arrays`.
        label: path of the array of labels; None guesses, "" means no labels.

    Raises:
        UserError: the arrays are not found, or cannot be records and labels.
    """

    def __init__(
        self,
        location: str | os.PathLike[str],
        data: str | None = None,
        label: str | None = None,
        key: str | None = None,
        length: int | None = None,
    ):
        location = absolute(location)
        node = open_zarr(location)
        records, labels = _records_and_labels(node, location, data, label)
        for array in (records, labels):
            if array is not None:
                _check_encoding(array, location)
        data_column = ZarrColumn(records, location, is_label=False, key=key)
        label_column = None if labels is None else ZarrColumn(labels, location, is_label=True, key=data_column.token)
        super().__init__(location, data_column, label_column)
        if length is not None and len(self) != length:
            raise UserError(
                f"{location} has {len(self)} records, but had {length} when it was opened: it was written again, or "
                "appended to; open it again when it is complete"
            )
        self.data_array, self.label_array = records, labels
        self.kind = f"zarr {records.metadata.zarr_format} {'group' if isinstance(node, zarr.Group) else 'array'}"
        is_group = isinstance(node, zarr.Group)
        names = [data_column.name, label_column.name if label_column else ""] if is_group else [None, None]
        self._arguments = (location, *names, data_column.token, len(self))

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), self._arguments, self._pickled_changes()

    def storage(self) -> dict[str, Any]:
        """Return names, dtypes and chunks of the arrays, and their total bytes in memory and as stored."""
        arrays = {"data": self.data_array, "label": self.label_array}
        facts: dict[str, Any] = {}
        for name, array in arrays.items():
            if array is not None:
                facts[f"{name}_array"] = f"{array.path or 'the array'} {array.shape} {array.dtype}"
                facts[f"{name}_chunks"] = array.chunks
        present = [array for array in arrays.values() if array is not None]
        facts["raw_bytes"] = sum(array.nbytes for array in present)
        facts["stored_bytes"] = stored_bytes(present)
        return facts


def open_record_store(location: str, data: str | None, label: str | None) -> Any:
    """Open ``location`` if dsinga wrote it as a record store; else return None."""
    if data not in (None, "", "data") or label not in (None, "", "labels"):
        return None
    node = open_zarr(location)
    if not isinstance(node, zarr.Group) or not _is_record_store(node):
        return None
    store = RecordStore(location)
    return store if label != "" else store.without_labels()


def open_zarr_records(
    location: str | os.PathLike[str], data: str | None = None, label: str | None = None
) -> RecordSource:
    """Open a record store, or the records in any other zarr array or group.

    ``data`` and ``label`` name arrays, as in :class:`ZarrSource`.
    """
    location = absolute(location)
    store: RecordSource | None = open_record_store(location, data, label)
    return ZarrSource(location, data or None, label) if store is None else store


def arrays_to_verify(location: str, data: str | None, label: str | None) -> list[zarr.Array]:
    """Return the arrays to check for damage: ``data`` and ``label``, or all arrays of a group."""
    node = open_zarr(location)
    every = list(_all_arrays(node)[0].values()) if isinstance(node, zarr.Group) and data is label is None else []
    pair: list[zarr.Array] = []
    with contextlib.suppress(*([UserError] if every else [])):  # of variables that are no records, or are stale
        pair = [each for each in _records_and_labels(node, location, data, label) if each is not None]
    if len({each.shape[:1] for each in pair}) > 1:
        names, lengths = [each.path for each in pair], [each.shape[0] for each in pair]
        raise UserError(
            f"{location} has {lengths[0]} records in {names[0]!r}, but {lengths[1]} labels in {names[1]!r}; give one "
            "label, or one row of labels, for each record"
        )
    arrays = every or pair
    if every:
        check_group(node, every)  # type: ignore[arg-type]
    for array in arrays:
        _check_attributes_of(array, location)
    return arrays


def _records_and_labels(
    node: zarr.Array | zarr.Group, location: str, data: str | None, label: str | None
) -> tuple[zarr.Array, zarr.Array | None]:
    if isinstance(node, zarr.Group):
        records, labels = find_arrays(node, location, data, label)
        check_group(node, [records] if labels is None else [records, labels])
        return records, labels
    if data or label:
        raise UserError(f"{location} is an array, not a group with arrays of the names in data: and label:")
    check_extent(node)
    return node, None


def open_zarr_labels(location: str | os.PathLike[str]) -> ZarrColumn:
    """Open the zarr array at ``location`` as labels (n, ...)."""
    location = absolute(location)
    node = open_zarr(location)
    if isinstance(node, zarr.Group):
        names = sorted(arrays_of(node))
        example = f"; give the path of one of its arrays, such as {join(location, names[0])}" if names else ""
        raise UserError(f"{location} is a group, but labels beside records are one zarr array{example}")
    return array_column(node, location, is_label=True)


def array_column(array: zarr.Array, location: str | None = None, is_label: bool = False) -> ZarrColumn:
    """Open a zarr array as records or labels; arrays in local files are opened again by path."""
    if location is None:
        check_array(array)
        if (folder := local_folder(array)) is not None:
            location = absolute(join(folder, array.path))
            array = open_zarr(location)  # type: ignore[assignment]
    location = location or location_of(array)
    check_extent(array)
    _check_encoding(array, location)
    return ZarrColumn(array, location, is_label)


def zarr_records(x: zarr.Array, y: Any, options: Options) -> DataAndLabels:
    """Open a zarr array (n, ...) as records that are read chunk by chunk."""
    column = array_column(x)
    return DataAndLabels(column.location, column, y)


def zarr_labels(y: zarr.Array, name: str, length: int, options: Options) -> Labels:
    """Open a zarr array (n, ...) as labels; strings become class indices."""
    if y.dtype.kind not in "biuf":
        return array_labels(y, name, length, options)
    return array_column(y, is_label=True), options.classes


@register("records", "zarr.Array")
def zarr_kind(value: zarr.Array) -> Kind:
    """Say how a zarr array is opened as records or labels."""
    return Kind("a zarr array", zarr_records, labels=zarr_labels)


def _is_record_store(group: zarr.Group) -> bool:
    return "dsinga" in group.attrs or {"complete", "digest"} <= set(group.attrs)


def _check_encoding(array: zarr.Array, location: str) -> None:
    _check_attributes_of(array, location)
    try:
        missing_values(array)
    except UserError as error:
        name = array.path or os.path.basename(location)
        raise UserError(
            f"{location}: {name!r} has {error}; open it with xarray and give that: xarray.open_zarr({location!r}), or "
            "name another array"
        ) from None


def _check_attributes_of(array: zarr.Array, location: str) -> None:
    try:
        _check_attributes(array)
    except TypeError as error:
        raise UserError(
            f"{location}: {array.path or 'the array'!r} cannot be opened ({error}); write it again"
        ) from None


def _check_attributes(node: zarr.Array | zarr.Group) -> None:
    """Raise TypeError if zarr attributes are not a JSON object, which zarr does not check."""
    if not isinstance(node.metadata.attributes, dict):
        raise TypeError(f"its attributes are {node.metadata.attributes!r:.40}, not an object")


def open_zarr(location: str) -> zarr.Array | zarr.Group:
    """Open the zarr array or group at ``location``. Raises UserError if zarr can open none."""
    try:
        node = zarr.open(store=zarr_store(location, read_only=True), mode="r")
        _check_attributes(node)
        return node
    except UserError:
        raise
    except (FileNotFoundError, NotADirectoryError):
        fault = ""
    except Exception as error:  # metadata that are no JSON, codecs that are not installed, refusals of a server
        fault = redact(f" ({type(error).__name__}: {error})", location)
    if not fault and not exists(location):
        raise UserError(f"there is no store at {location}; make one with: {import_command(location)}")
    remedy = f"import it into a store with: dsinga data import KIND {location} DESTINATION"
    if fault and exists(join(location, "zarr.json")):
        remedy = metadata_remedy(location) or "see whether its zarr.json can be read, else delete it and make it again"
    raise UserError(f"{location} is no zarr array or group that can be opened{fault}; {remedy}")


DATA_NAMES = ("data", "x", "image", "images", "feature", "features", "record", "records", "input", "inputs")
LABEL_NAMES = ("label", "labels", "y", "class", "classes", "target", "targets")
LISTED = 20  # the arrays that a message lists

ZarrArrays = Mapping[str, zarr.Array]


def find_arrays(
    group: zarr.Group, location: str, data: str | None = None, label: str | None = None
) -> tuple[zarr.Array, zarr.Array | None]:
    """Find the arrays of records and of labels in a zarr group, by name or by guessing.

    Arguments are as in :class:`ZarrSource`. Raises UserError, which lists the arrays, if none or several fit.
    """
    records = _named(group, data, "data", location) if data else _guess_data(group, location)
    if label is not None:
        return records, _named(group, label, "label", location) if label else None
    folder = records.path.removeprefix(group.path).strip("/").rpartition("/")[0]
    beside = arrays_of(group[folder] if folder else group)  # type: ignore[arg-type]
    names = [name for name in sorted(beside) if name.lower() in LABEL_NAMES and beside[name].path != records.path]
    if len(names) > 1:
        raise UserError(
            f"{location}: the labels may be {_either(names)}; name them in store_conf, as in "
            f'label: "{_joined(folder, names[0])}", or give label: "" for no labels{_listing(group)}'
        )
    return records, beside[names[0]] if names else None


def arrays_of(group: zarr.Group) -> dict[str, zarr.Array]:
    """Return the arrays directly in ``group``, by name, without xarray's coordinates.

    Empty if the group cannot be listed, as on some web servers.
    """
    try:
        arrays = dict(group.arrays())
    except Exception:  # each file system has error classes of its own; a message with a listing says which
        return {}
    return {name: array for name, array in arrays.items() if _dimensions(array) != (name,)}


def _guess_data(group: zarr.Group, location: str) -> zarr.Array:
    arrays = arrays_of(group)
    names = [name for name in sorted(arrays) if name.lower() in DATA_NAMES]
    if not names:
        names = [name for name in arrays if name.lower() not in LABEL_NAMES]
        if len(names) != 1:
            raise UserError(
                f"{location}: no array has a usual name of records ({', '.join(DATA_NAMES)}); name the records in "
                f'store_conf, as in data: "NAME" label: "NAME"{_listing(group)}'
            )
    if len(names) > 1:
        raise UserError(
            f"{location}: the records may be {_either(names)}; name them in store_conf, as in "
            f'data: "{names[0]}"{_listing(group)}'
        )
    return arrays[names[0]]


def _named(group: zarr.Group, name: str, field: str, location: str) -> zarr.Array:
    try:
        array = group[name.strip("/")]
    except (KeyError, ValueError):
        hint = nearest(name, _all_arrays(group)[0])
        raise UserError(f"{location} has no array {name!r}, which {field}: names{hint}{_listing(group)}") from None
    except Exception as error:  # each file system has error classes of its own
        raise unreadable(location, f"the array {name!r}", error) from redacted_cause(error, location)
    if not isinstance(array, zarr.Array):
        raise UserError(f"{location}: {field}: {name!r} is a group; name an array in it{_listing(group)}")
    return array


def _all_arrays(group: zarr.Group) -> tuple[ZarrArrays, str]:
    """Return all arrays below a zarr group, by path, and an error text."""
    try:
        members = dict(group.members(max_depth=None))
    except Exception as error:  # of metadata that are damaged, and of file systems: any class
        equal = "; write arrays in equal chunks" if "rectilinear" in str(error).lower() else ""
        return {}, f" ({type(error).__name__}: {error!s:.200}{equal})"
    return {name: member for name, member in sorted(members.items()) if isinstance(member, zarr.Array)}, ""


def _listing(group: zarr.Group) -> str:
    arrays, fault = _all_arrays(group)
    if not arrays:
        return f"; it has no arrays that can be listed{fault}"
    lines = [f"\n  {name} {array.shape} {array.dtype}" for name, array in list(arrays.items())[:LISTED]]
    more = f"\n  and {len(arrays) - LISTED} more" if len(arrays) > LISTED else ""
    return "; its arrays are" + "".join(lines) + more


def _dimensions(array: zarr.Array) -> tuple[str | None, ...]:
    attributes = array.metadata.attributes
    if not isinstance(attributes, dict):  # damaged: the array is refused if it is chosen
        return ()
    names = getattr(array.metadata, "dimension_names", None) or attributes.get("_ARRAY_DIMENSIONS", ())
    return tuple(names)  # type: ignore[arg-type]


def _either(names: list[str]) -> str:
    return " or ".join(map(repr, names))


def _joined(folder: str, name: str) -> str:
    return f"{folder}/{name}" if folder else name

"""Finds the arrays of a zarr group that are records and labels: by the names in a job, or by likely names."""

from __future__ import annotations

from collections.abc import Mapping

import zarr

from dsinga.base.errors import UserError
from dsinga.base.redaction import redacted_cause
from dsinga.base.registry import nearest
from dsinga.data.stores.store_faults import unreadable

DATA_NAMES = ("data", "x", "image", "images", "feature", "features", "record", "records", "input", "inputs")
LABEL_NAMES = ("label", "labels", "y", "class", "classes", "target", "targets")
LISTED = 20  # the arrays that a message lists

ZarrArrays = Mapping[str, zarr.Array]


def find_arrays(
    group: zarr.Group, location: str, data: str | None = None, label: str | None = None
) -> tuple[zarr.Array, zarr.Array | None]:
    """Return the array of records and that of labels, or None where there are no labels.

    Args:
        group: the group.
        location: its path or URL, for messages.
        data: path of the array of records within the group, such as "images" or "train/images"; None guesses.
        label: the same for the labels; None guesses among the arrays beside the records, "" means no labels.

    Raises:
        UserError: there is no array of this name, or none or several have a usual name; the message lists the arrays.
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
    """Return the arrays directly in ``group``, by name, without the coordinates that xarray writes beside its data.

    A coordinate is a vector named like its only dimension. Returns nothing where the group cannot be listed, as at some
    web servers.
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
    """Return the arrays in a group and in the groups within, by path, and why they cannot be listed, "" if they can."""
    try:
        members = dict(group.members(max_depth=None))
    except Exception as error:  # of metadata that are damaged, and of file systems: any class
        return {}, f" ({type(error).__name__}: {error!s:.200})"
    return {name: member for name, member in sorted(members.items()) if isinstance(member, zarr.Array)}, ""


def _listing(group: zarr.Group) -> str:
    """Return the lines of a message with the arrays of a group, their shapes and dtypes."""
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

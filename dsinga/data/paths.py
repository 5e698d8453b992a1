"""Looking up the paths that a job names, in the working directory and under root folders."""

from __future__ import annotations

import os
from collections.abc import Sequence

import zarr

from dsinga.advice import option
from dsinga.data.filesystem import absolute, exists, has_zarr_metadata, is_url, join, zarr_store
from dsinga.errors import UserError
from dsinga.registry import nearest_or_listed

# Stores that importers such as mnist, sentences and pairs write into a folder, which is their destination.
STORES_OF_A_FOLDER = (
    "train_data.zarr",
    "test_data.zarr",
    "source.zarr",
    "target.zarr",
    "words.zarr",
    "image_mean.zarr",
)


def import_command(location: str) -> str:
    """Return the command that makes the store at ``location``, for messages."""
    folder, name = os.path.split(location)
    other = f" (for mnist, sentences and other kinds that write several stores: {folder or '.'})"
    return f"dsinga data import KIND SOURCE {location}{other if name in STORES_OF_A_FOLDER else ''}"


def resolve(path: str | os.PathLike[str], roots: Sequence[str] = ()) -> str:
    """Return the absolute path or URL of an existing file, folder or store that a job names as ``path``.

    A relative path is looked up in the working directory, then under each of ``roots`` (folders or URLs). In each
    place the path itself comes first, then the store imported from it: ``train_data.zarr`` for ``train_data.bin``.

    Raises:
        UserError: ``path`` is in none of these places; the message lists them, or the arrays of the zarr group that it
            would be in. Or it is an archive.
    """
    text = os.path.expanduser(os.fspath(path))
    if not text:
        raise UserError("the path of a store is empty; give a path or a URL")
    if text.endswith(".zip"):
        raise UserError(f"{text} is a zip archive, which is not read in place; unpack it first, and give its folder")
    fixed = is_url(text) or os.path.isabs(text) or text.startswith(("file://", "local://"))
    places = [absolute(text)] if fixed else [absolute(join(root, text)) for root in ("", *roots)]
    for place in dict.fromkeys(places):
        for candidate in (place, imported_name(place)):
            if exists(candidate) or (is_url(candidate) and has_zarr_metadata(candidate)):  # a web server has no folders
                return candidate
    for place in dict.fromkeys(places):
        _check_group(place)
    lines = "".join(f"\n  {place}" for place in dict.fromkeys(places))
    store = imported_name(text)
    if not roots:  # not a path of a job
        destination = store if os.path.splitext(text)[1] else text
        raise UserError(f"{places[0]} was not found; make a store with: {import_command(destination)}")
    beside = f" (nor {os.path.basename(store)} beside it)" if store != text else ""
    raise UserError(
        f"{text} was not found{beside}; looked for{lines}\n"
        f"give the folder that contains the path with {option('data_root', 'FOLDER')}, or make a store with: "
        "dsinga data import KIND SOURCE DESTINATION"
    )


def _check_group(place: str) -> None:
    """Raise UserError, with the names of arrays, where the missing ``place`` would be in a zarr group."""
    folder, name = os.path.split(place)
    if has_zarr_metadata(folder):
        try:
            arrays = sorted(zarr.open_group(store=zarr_store(folder, read_only=True), mode="r").array_keys())
        except Exception:  # an array, damaged metadata, refusals of a server: the message is that of any missing path
            return
        raise UserError(f"{folder} has no array {name!r}{nearest_or_listed(name, arrays, 'its arrays are')}")


def imported_name(location: str) -> str:
    """Return the path of the store that is imported from ``location``: the same path with the suffix ``.zarr``."""
    stem, suffix = os.path.splitext(location)
    return location if suffix == ".zarr" else f"{stem}.zarr"

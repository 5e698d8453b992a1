"""Paths and fsspec URLs alike: operations of the stores on files, and looking up the paths that a job names."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Sequence
from typing import Any

import fsspec  # type: ignore[import-untyped]
import zarr
from fsspec.core import strip_protocol  # type: ignore[import-untyped]
from zarr.abc.store import Store
from zarr.storage import FsspecStore, LocalStore

from dsinga.base.advice import option
from dsinga.base.errors import UserError
from dsinga.base.redaction import redact
from dsinga.base.registry import nearest_or_listed
from dsinga.base.regular_files import name_fault
from dsinga.data.references import References
from dsinga.data.stores.checked_files import ReadingStore, is_transient, retry

# In a URL of object storage, "key:secret@" before the bucket.
KEYS_IN_URL = re.compile(r"\b(s3a?|gcs?|gs)://[^\s:/]+:[^\s:]+@")
ZARR_METADATA = ("zarr.json", ".zgroup", ".zarray", ".zmetadata")


def is_url(location: str) -> bool:
    """Return whether ``location`` is outside the local file system, such as ``memory://x`` or ``s3://bucket/x``."""
    return "://" in location and not location.startswith(("file://", "local://"))


def absolute(location: str | os.PathLike[str]) -> str:
    """Return a local path or ``file://`` URL as an absolute path with ``~`` expanded, and any other URL unchanged."""
    text = os.fspath(location)
    if is_url(text):
        return text.rstrip("/")
    local = strip_protocol(text) if "://" in text else os.path.expanduser(text)
    return os.path.abspath(local)


def join(root: str, path: str) -> str:
    """Return ``path`` below ``root``; an absolute path or a URL is returned unchanged, as by ``os.path.join``."""
    if is_url(path) or os.path.isabs(path) or not path:
        return path or root
    return f"{root.rstrip('/')}/{path}" if is_url(root) else os.path.join(root, path)


def exists(location: str) -> bool:
    """Return whether there is a file or folder at ``location``."""
    if is_url(location):
        filesystem, path = file_system(location)
        try:
            return retry(lambda: _exists(filesystem, path), location)
        except Exception as error:  # refusals of a server; each package has classes of its own
            raise UserError(
                redact(f"{location} cannot be reached: {type(error).__name__}: {error}", location)
            ) from None
    return os.path.exists(location)


def is_file(location: str) -> bool:
    """Return whether there is a file, and no folder, at ``location``."""
    return exists(location) if is_url(location) else os.path.isfile(location)


def has_zarr_metadata(location: str) -> bool:
    """Return whether there is a zarr array or group at ``location``, format 2 or 3."""
    return is_references(location) or any(exists(join(location, name)) for name in ZARR_METADATA)


def remove(location: str) -> None:
    """Delete the file or folder at ``location`` with its contents, if there is one."""
    if is_url(location):
        filesystem, path = file_system(location)
        if filesystem.exists(path):
            filesystem.rm(path, recursive=True)
    elif os.path.isdir(location):
        shutil.rmtree(location)
    elif os.path.exists(location):
        os.remove(location)


def zarr_store(location: str, read_only: bool) -> Store:
    """Return the zarr store for ``location``, which need not exist yet."""
    store: Store
    if is_references(location):
        store = _reference_store(location)
    elif not is_url(location):
        store = LocalStore(location, read_only=read_only)
    else:
        file_system(location)  # raises a clearer error than zarr if the protocol is unknown or its package is missing
        store = FsspecStore.from_url(location, read_only=read_only)
    return ReadingStore(store, location, not isinstance(store, LocalStore)) if read_only else store


def is_references(location: str) -> bool:
    """Whether a path or URL is that of a JSON file of references to the chunks of a zarr store in other files.

    kerchunk and VirtualiZarr write them; zarr's own metadata, zarr.json, are none.
    """
    return location.endswith(".json") and not location.endswith("zarr.json") and is_file(location)


def _reference_store(location: str) -> Store:
    """Return the zarr store that references describe. Raises UserError for a file that has none."""
    try:
        return FsspecStore(References(location), read_only=True)
    except Exception as error:  # of JSON, of the file, of packages for URLs: any class
        fault = getattr(error, "strerror", None) or f"{error}"
        raise UserError(redact(f"{location} has no references that can be read: {fault}", location)) from None


def _exists(filesystem: Any, path: str) -> bool:
    """Return whether there is something at ``path``; raise the error of a server that did not answer."""
    if "http" not in filesystem.protocol:
        return bool(filesystem.exists(path))
    try:  # fsspec's own method takes every error of a web server for a missing file
        filesystem.cat_file(path, start=0, end=1)
    except FileNotFoundError:
        return False
    except Exception as error:
        status = getattr(error, "status", None)
        if not isinstance(status, int) or is_transient(error):
            raise
        return status == 416  # an empty file has no first byte
    return True


def file_system(location: str) -> tuple[Any, str]:
    """Return the file system of fsspec for a URL, and the path there. Raises UserError where no package opens it."""
    if KEYS_IN_URL.search(location):
        raise UserError(
            f"{location}: URLs of object storage have no place for keys; give them to the driver and the workers by "
            "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, by ~/.aws/credentials, or by a file in ~/.config/fsspec"
        )
    try:
        filesystem, path = fsspec.core.url_to_fs(location)
    except (ImportError, ValueError) as error:  # fsspec's message names the missing package or the unknown protocol
        raise UserError(redact(f"{location} cannot be opened: {error}", location)) from None
    return filesystem, path


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
    folder_hint = f" (for mnist, sentences and other kinds that write several stores: {folder or '.'})"
    return f"dsinga data import KIND SOURCE {location}{folder_hint if name in STORES_OF_A_FOLDER else ''}"


class PathNotFound(UserError):
    """There is no file, folder or store at a path."""


def resolve(path: str | os.PathLike[str], roots: Sequence[str] = ()) -> str:
    """Return the absolute path or URL of an existing file, folder or store that a job names as ``path``.

    A relative path is looked up in the working directory, then under each of ``roots`` (folders or URLs). In each
    place the path itself comes first, then the store imported from it: ``train_data.zarr`` for ``train_data.bin``.

    Raises:
        PathNotFound: ``path`` is in none of these places, which the message lists.
        UserError: it is no array of the zarr group that it would be in. Or it is an archive.
    """
    text = os.path.expanduser(os.fspath(path))
    if not text:
        raise UserError("the path of a store is empty; give a path or a URL")
    if text.endswith(".zip"):
        raise UserError(f"{text} is a zip archive, which is not read in place; unpack it first, and give its folder")
    try:
        os.fsencode(text)
    except UnicodeEncodeError as error:
        raise UserError(name_fault(error)) from None
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
        raise PathNotFound(f"{places[0]} was not found; make a store with: {import_command(destination)}")
    beside = f" (nor {os.path.basename(store)} beside it)" if store != text else ""
    raise PathNotFound(
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

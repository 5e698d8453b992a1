"""File-system operations of the stores, for local paths and fsspec URLs alike."""

from __future__ import annotations

import os
import re
import shutil
from typing import Any

import fsspec  # type: ignore[import-untyped]
from fsspec.core import strip_protocol  # type: ignore[import-untyped]
from zarr.abc.store import Store
from zarr.storage import FsspecStore, LocalStore

from dsinga.data.reading_store import ReadingStore
from dsinga.data.retries import is_transient, retry
from dsinga.errors import UserError
from dsinga.redaction import redact

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
    return any(exists(join(location, name)) for name in ZARR_METADATA)


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
    if not is_url(location):
        store = LocalStore(location, read_only=read_only)
    else:
        file_system(location)  # raises a clearer error than zarr if the protocol is unknown or its package is missing
        store = FsspecStore.from_url(location, read_only=read_only)
    return ReadingStore(store, location, is_url(location)) if read_only else store


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

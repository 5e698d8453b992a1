"""Tells paths from URLs, and joins, opens and removes them."""

from __future__ import annotations

import os
import re
import shutil
from typing import Any

from dsinga.base.errors import UserError
from dsinga.base.redaction import redact

# In a URL of object storage, "key:secret@" before the bucket.
KEYS_IN_URL = re.compile(r"\b(s3a?|gcs?|gs)://[^\s:/]+:[^\s:]+@")


def is_url(location: str) -> bool:
    """Whether ``location`` is outside the local file system, such as ``memory://x`` or ``s3://bucket/x``."""
    return "://" in location and not location.startswith(("file://", "local://"))


def absolute(location: str | os.PathLike[str]) -> str:
    """Return a local path or ``file://`` URL as an absolute path, with ``~`` expanded; other URLs unchanged."""
    text = os.fspath(location)
    if is_url(text):
        return text.rstrip("/")
    if "://" not in text:
        return os.path.abspath(os.path.expanduser(text))
    from fsspec.core import strip_protocol  # type: ignore[import-untyped]  # which plain paths do not need

    return os.path.abspath(strip_protocol(text))


def join(root: str, path: str) -> str:
    """Return ``path`` below ``root``; an absolute path or a URL is returned unchanged."""
    if is_url(path) or os.path.isabs(path) or not path:
        return path or root
    return f"{root.rstrip('/')}/{path}" if is_url(root) else os.path.join(root, path)


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


def file_system(location: str) -> tuple[Any, str]:
    """Return the fsspec file system for a URL, and the path in it. Raises UserError if no package opens it."""
    if KEYS_IN_URL.search(location):
        raise UserError(
            f"{location}: URLs of object storage have no place for keys; give them to the driver and the workers by "
            "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, by ~/.aws/credentials, or by a file in ~/.config/fsspec"
        )
    from fsspec.core import url_to_fs

    try:
        filesystem, path = url_to_fs(location)
    except (ImportError, ValueError) as error:  # fsspec's message names the missing package or the unknown protocol
        raise UserError(redact(f"{location} cannot be opened: {error}", location)) from None
    return filesystem, path

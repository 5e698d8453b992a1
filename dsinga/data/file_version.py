"""Notices that a file, or the metadata of an array, was written again after it was opened."""

from __future__ import annotations

import logging
import os
from typing import Any

from dsinga.base.errors import UserError
from dsinga.base.regular_files import read_json

logger = logging.getLogger(__name__)


class FileVersion:
    """What is known of a local file when it is opened: when it was written, its size, and of JSON its content.

    A pickle has the path alone, since other hosts may have copies that were written at other times: the process that
    loads it notices what happens from then on.

    Args:
        path: the file: of an array of zarr that of its metadata, which whoever writes an array writes first.
    """

    def __init__(self, path: str):
        self.path = path
        self._status, self._content = _status(path), _content(path)

    def __reduce__(self) -> tuple[Any, ...]:
        return FileVersion, (self.path,)

    def check(self) -> None:
        """Raise UserError where the file was written again; called after numbers were read.

        An array of zarr that was appended to still has the same numbers, which the log says.
        """
        status = _status(self.path)
        if status == self._status:
            return
        content = _content(self.path)
        if not _is_appended(self._content, content):
            raise UserError(
                f"{self.path} was written again, or removed, after it was opened: numbers of before and after would be "
                "mixed; open it again when it is complete"
            )
        self._status, self._content = status, content
        logger.warning("%s was appended to after it was opened; what is there since is not read", self.path)


def _status(path: str) -> tuple[int, int] | None:
    try:
        status = os.stat(path)
    except OSError:
        return None
    return status.st_mtime_ns, status.st_size


def _content(path: str) -> Any:
    """Return the metadata of an array of zarr; None for other files."""
    if not path.endswith((".zarray", "zarr.json")):
        return None
    try:
        return read_json(path)
    except (OSError, ValueError):
        return None


def _is_appended(before: Any, after: Any) -> bool:
    """Whether the metadata of an array differ in its shape alone, which has grown."""
    if not isinstance(before, dict) or not isinstance(after, dict):
        return False
    old, new = before.get("shape"), after.get("shape")
    if not isinstance(old, list) or not isinstance(new, list) or len(old) != len(new) or old == new:
        return False
    same = {**before, "shape": None} == {**after, "shape": None}
    return same and all(last >= first for first, last in zip(old, new, strict=True))

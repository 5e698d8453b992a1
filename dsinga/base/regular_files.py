"""Opens only regular files for reading, because reading a pipe or a device may never end."""

from __future__ import annotations

import errno
import json
import os
import stat
from typing import Any, BinaryIO

# The most bytes of a file with metadata, such as a zarr.json or a setting.json, and of one with a table or an image.
METADATA_BYTES = 256 << 20
TABLE_BYTES = 4 << 30

_KINDS = {
    stat.S_IFIFO: "a pipe, not a file; write it to a file first",
    stat.S_IFSOCK: "a socket, not a file",
    stat.S_IFCHR: "a device, not a file",
    stat.S_IFBLK: "a device, not a file",
}


def open_regular(path: str | os.PathLike[str], most_bytes: int | None = None, buffering: int = -1) -> BinaryIO:
    """Open a file to read bytes, but only a regular one: reading a pipe may never end.

    Raises OSError, with the reason in ``strerror``, for other files, and for more than ``most_bytes``.
    """
    _check(path, os.stat(path), most_bytes)  # before it is opened, which may have an effect on a device
    file = open(path, "rb", buffering, opener=_open_without_waiting)
    try:
        _check(path, os.fstat(file.fileno()), most_bytes)  # another one may have taken its name meanwhile
    except OSError:
        file.close()
        raise
    return file


def read_regular(path: str | os.PathLike[str], most_bytes: int) -> bytes:
    """Read the bytes of a regular file. Raises OSError like :func:`open_regular`."""
    with open_regular(path, most_bytes) as file:
        content = file.read(most_bytes + 1)
    _check_size(path, len(content), most_bytes)  # it may have grown
    return content


def is_of_torch(path: str | os.PathLike[str]) -> bool:
    """Whether a file seems to be written by ``torch.save``, which writes a pickle, or a zip file of one."""
    try:
        with open_regular(path) as file:
            head = file.read(256)
    except OSError:
        return False
    return head.startswith(b"\x80\x02") or (head.startswith(b"PK\3\4") and b"/data.pkl" in head)


def read_regular_text(path: str | os.PathLike[str], most_bytes: int = METADATA_BYTES) -> str:
    """Read the UTF-8 text of a regular file. Raises OSError, and UnicodeDecodeError for other bytes."""
    return read_regular(path, most_bytes).decode("utf-8")


def read_json(path: str | os.PathLike[str], most_bytes: int = METADATA_BYTES) -> Any:
    """Return the JSON in a regular file. Raises OSError, or ValueError for other contents."""
    return parse_json(read_regular_text(path, most_bytes))


def parse_json(text: str | bytes) -> Any:
    """Parse JSON. Raises ValueError for other text, and for nesting that is too deep for Python."""
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def name_fault(error: UnicodeEncodeError) -> str:
    """Say why a text cannot be a file name in this process, with the remedy."""
    remedy = "rename it" if error.encoding == "utf-8" else "set LC_ALL=C.UTF-8"
    return f"{error.object!a} cannot be the name of a file here, where names are in {error.encoding}; {remedy}"


def _open_without_waiting(path: str, flags: int) -> int:
    return os.open(path, flags | getattr(os, "O_NONBLOCK", 0))


def _check(path: str | os.PathLike[str], status: os.stat_result, most_bytes: int | None) -> None:
    kind = stat.S_IFMT(status.st_mode)
    if kind == stat.S_IFDIR:
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), os.fspath(path))
    if kind != stat.S_IFREG:
        raise OSError(errno.EINVAL, f"it is {_KINDS.get(kind, 'something else than a file')}", os.fspath(path))
    if most_bytes is not None:
        _check_size(path, status.st_size, most_bytes)


def _check_size(path: str | os.PathLike[str], size: int, most_bytes: int) -> None:
    if size > most_bytes:
        fault = f"it has {size:,} bytes, and such a file at most {most_bytes:,}"
        raise OSError(errno.EFBIG, fault, os.fspath(path))

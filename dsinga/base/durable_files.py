"""Files that are complete on the disk or absent, also after a crash of the machine."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

from dsinga.base.errors import UserError


def replace_file(path: Path, text: str) -> None:
    """Replace the contents of the file ``path`` by ``text``: a process killed meanwhile leaves the old contents."""
    draft = path.with_name(path.name + ".draft")
    with open(draft, "w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    os.replace(draft, path)
    sync_folder(path.parent)


@contextlib.contextmanager
def explained_writing(folder: Path) -> Iterator[None]:
    """Raise UserError, naming ``folder``, in place of an OSError: a file in its way, no permission, a full disk."""
    try:
        yield
    except OSError as error:
        place = f" ({error.filename})" if error.filename not in (None, str(folder)) else ""
        reason = error.strerror or error
        raise UserError(f"{folder} cannot be written: {reason}{place}; name a folder that can be written") from error


def sync_folder(folder: Path) -> None:
    """Flush the entries of a folder to the disk, so that a rename in it lasts. Raises OSError."""
    if os.name == "nt":  # Windows opens no folders
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)

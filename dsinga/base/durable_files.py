"""Writes files and folders durably and atomically: even if the process is killed, each is complete or absent.

What takes the place of something older is written into a draft folder beside it and renamed. The next process that
writes there removes the drafts of processes that were killed.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import glob
import os
import shutil
import sys
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path

from dsinga.base.errors import UserError
from dsinga.base.redaction import redact

SAVED = ".saved"  # the folder with the files of a complete save, until each has taken the place of an older one
OLD = ".old"  # ends the name of what has been moved into a draft folder, where the system exchanges no folders
TAKEN = errno.ENOTEMPTY, errno.EEXIST  # of a rename to a folder that is there
FOLDER_OF_PROCESS, EXCHANGE = -100, 2  # Linux's AT_FDCWD and RENAME_EXCHANGE


def replace_file(path: Path, text: str) -> None:
    """Replace the contents of the file ``path`` by ``text``: a process killed meanwhile leaves the old contents."""
    with draft_folder(path) as draft:
        write_file(draft / path.name, text)
        os.replace(draft / path.name, path)
        sync_folder(path.parent)


def write_file(path: Path, text: str) -> None:
    """Write a file and flush it to the disk. Raises OSError."""
    with open(path, "w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())


@contextlib.contextmanager
def replaced_files(folder: Path, names: Iterable[str]) -> Iterator[Path]:
    """Give a temporary folder for new files, which then replace the files called ``names`` in ``folder`` in one step.

    That step is the renaming to SAVED. What has no file among the new ones is there no more; other files stay. Whoever
    reads the files calls :func:`finish_save` before, in case the process is killed before each is in its place.
    """
    is_new = not folder.exists()
    folder.mkdir(parents=True, exist_ok=True)
    try:
        with draft_folder(folder / SAVED[1:]) as draft:
            (files := draft / SAVED).mkdir()
            yield files
            for name in names:
                (files / name).touch()
            sync_folder(files)
            _commit(files, folder)
            finish_save(folder)
    except BaseException:
        with contextlib.suppress(OSError):  # there may be something else in it by now
            if is_new:
                folder.rmdir()
        raise


def _commit(files: Path, folder: Path) -> None:
    """Rename a folder of new files to SAVED, when an earlier save is finished."""
    while True:
        finish_save(folder)
        try:
            os.rename(files, folder / SAVED)
            break
        except OSError as error:  # another process saves there at the same time
            if error.errno not in TAKEN:
                raise
    sync_folder(folder)


def finish_save(folder: Path) -> None:
    """Move the files of a complete save to their places, if the saving process was killed before all were moved.

    Raises UserError where the folder cannot be written.
    """
    saved = folder / SAVED
    if not os.path.isdir(saved) or os.path.islink(saved):  # a link in a folder of others may lead anywhere
        return
    with explained_writing(folder), contextlib.suppress(FileNotFoundError):  # another process has finished it
        for file in [*saved.iterdir()]:
            with contextlib.suppress(FileNotFoundError):
                if file.is_dir() or file.stat().st_size:
                    os.replace(file, folder / file.name)
                else:  # stands for a file that is there no more
                    (folder / file.name).unlink(missing_ok=True)
                    file.unlink()
        with contextlib.suppress(OSError):  # a newer save may be there
            saved.rmdir()
        sync_folder(folder)


def local_folder(path: str | os.PathLike[str]) -> Path:
    """Return a local path to save to or load from. Raises UserError for a URL."""
    if "://" in os.fspath(path):
        raise UserError(f"{redact(os.fspath(path))} is a URL; save to and load from a local path, and copy that")
    return Path(path)


def holds_files(folder: Path) -> bool:
    """Return whether a folder has any contents other than the leftovers of an interrupted save."""
    finish_save(folder)
    return any(not path.name.startswith(SAVED) for path in folder.iterdir())


def replace_folder(draft: Path, path: Path) -> None:
    """Exchange the names of the folders ``draft`` and ``path``, in one step where the system can, as on Linux.

    Elsewhere a process killed between two renames leaves the old folder in the draft folder that ``draft`` is in, from
    which the next :func:`draft_folder` moves it back. Raises OSError.
    """
    exchange = getattr(ctypes.CDLL(None), "renameat2", None) if sys.platform == "linux" else None
    names = FOLDER_OF_PROCESS, os.fsencode(draft), FOLDER_OF_PROCESS, os.fsencode(path)
    if exchange is None or exchange(*names, EXCHANGE):
        old = draft.with_name(path.name + OLD)
        os.rename(path, old)
        os.rename(draft, path)
        os.rename(old, draft)


@contextlib.contextmanager
def draft_folder(path: Path) -> Iterator[Path]:
    """Give a new folder beside ``path`` in which to prepare a replacement of ``path``, and remove it at the end.

    Those that processes have left which were killed are removed, too; a process locks its own.
    """
    prefix = f".{path.name}.draft-"
    for left in path.parent.glob(f"{glob.escape(prefix)}*"):
        with contextlib.suppress(OSError), locked_folder(left) as is_locked:
            if is_locked:
                _remove(left)
    with contextlib.ExitStack() as stack:
        draft = None
        while draft is None:
            draft = Path(tempfile.mkdtemp(prefix=prefix, dir=path.parent))
            try:
                stack.enter_context(locked_folder(draft))
                os.stat(draft)
            except (BlockingIOError, FileNotFoundError):  # another process takes it for one that was left
                draft = None
        stack.callback(_remove, draft)
        yield draft


def _remove(draft: Path) -> None:
    """Remove a draft folder; move back what was moved there from a place that is empty now."""
    for old in draft.glob(f"*{OLD}"):
        path = draft.parent / old.name.removesuffix(OLD)
        if not path.exists():
            with contextlib.suppress(OSError):
                os.rename(old, path)
    shutil.rmtree(draft, ignore_errors=True)


@contextlib.contextmanager
def locked_folder(folder: Path) -> Iterator[bool]:
    """Hold the system's lock of a folder, which ends with the process; give False where there are no such locks.

    Raises BlockingIOError where it is held already, OSError where the folder cannot be opened.
    """
    try:
        import fcntl
    except ImportError:  # on Windows
        yield False
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise
        except OSError:  # the file system has no such locks
            yield False
        else:
            yield True
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def explained_writing(folder: Path) -> Iterator[None]:
    """Raise UserError, naming ``folder``, in place of an OSError, such as no permission or a full disk."""
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

"""Writes files and folders durably and atomically: complete or absent, even if killed.

A replacement is written into a draft folder next to the original and renamed. The next process that writes there
removes the drafts of killed processes.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import glob
import os
import shutil
import stat
import sys
import tempfile
from collections.abc import Callable, Collection, Iterable, Iterator
from pathlib import Path
from typing import TypeVar

from dsinga.base.errors import UserError
from dsinga.base.redaction import redact

SAVED = ".saved"  # the folder with the files of a complete save, until each has taken the place of an older one
COMPLETE = ".complete"  # a file in SAVED, which says that a save has written all that is there
OLD = ".old"  # ends the name of what has been moved into a draft folder, where the system exchanges no folders
OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH
AGAIN = 100  # times, while other processes replace the same files
TAKEN = errno.ENOTEMPTY, errno.EEXIST  # of a rename to a folder that is there
T = TypeVar("T")
FOLDER_OF_PROCESS, EXCHANGE = -100, 2  # Linux's AT_FDCWD and RENAME_EXCHANGE


def cache_folder() -> Path:
    """Return this user's folder for files that can be made again; RuntimeError without a home."""
    if sys.platform == "win32":
        base = os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local"
    elif sys.platform == "darwin":
        base = Path.home() / "Library" / "Caches"
    else:
        base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "dsinga"


def replace_file(path: Path, content: str | bytes) -> None:
    """Replace a file's contents, so that a kill meanwhile leaves the old ones."""
    with draft_folder(path) as draft:
        write_file(draft / path.name, content)
        os.replace(draft / path.name, path)
        sync_folder(path.parent)


def write_file(path: Path, content: str | bytes) -> None:
    """Write a file, text as UTF-8, and flush it to the disk."""
    with open(path, "wb") as file:
        file.write(content.encode() if isinstance(content, str) else content)
        file.flush()
        os.fsync(file.fileno())


@contextlib.contextmanager
def replaced_files(folder: Path, names: Collection[str]) -> Iterator[Path]:
    """Replace several files in one step: give a temporary folder for new ones, which then replace ``names``.

    That step is the renaming to SAVED. Names without a new file are deleted. Read the files with :func:`read_saved` or
    :func:`current_file`, since a killed process may leave files in SAVED. Raises UserError if SAVED exists and is no
    save of this user.
    """
    is_new = not folder.exists()
    folder.mkdir(parents=True, exist_ok=True)
    try:
        with draft_folder(folder / SAVED[1:]) as draft:
            (files := draft / SAVED).mkdir()
            files.chmod(files.stat().st_mode & ~OTHERS_WRITE)
            yield files
            for name in (*names, COMPLETE):
                (files / name).touch()
            sync_folder(files)
            descriptor = os.open(files, os.O_RDONLY)
            try:
                _commit(files, folder, names)
                _move(descriptor, folder, names)
            finally:
                os.close(descriptor)
    except BaseException:
        with contextlib.suppress(OSError):  # there may be something else in it by now
            if is_new:
                folder.rmdir()
        raise


def _commit(files: Path, folder: Path, names: Collection[str]) -> None:
    """Make a folder of new files the current save, after finishing an earlier one."""
    in_the_way = 0
    while in_the_way < AGAIN:  # another process may begin and end a save between any two lines
        in_the_way += not finish_save(folder, names)
        try:
            os.rename(files, folder / SAVED)
            return sync_folder(folder)
        except OSError as error:
            if error.errno not in TAKEN:
                raise
    raise UserError(
        f"{folder / SAVED} is in the way: it is not a save of yours that was cut off; move it away, "
        "or save to another folder"
    )


def finish_save(folder: Path, names: Collection[str]) -> bool:
    """Finish a save that a killed process had left half done: move its files to their places.

    Only this user's saves are finished, because in a folder such as /tmp anybody can create SAVED. Returns False if
    SAVED stays.
    """
    with explained_writing(folder), _open_own(folder / SAVED) as descriptor:
        return not os.path.lexists(folder / SAVED) if descriptor is None else _move(descriptor, folder, names)


def _move(descriptor: int, folder: Path, names: Iterable[str]) -> bool:
    """Move the files of an open SAVED to ``folder``: all of a complete save, else ``names``. Return if none is left."""
    files = os.listdir(descriptor)
    for name in files if COMPLETE in files else {*files} & {*names}:
        with contextlib.suppress(FileNotFoundError):  # another process has moved it
            status = os.stat(name, dir_fd=descriptor, follow_symlinks=False)
            if stat.S_ISDIR(status.st_mode) or status.st_size:
                os.replace(name, folder / name, src_dir_fd=descriptor)
            elif name != COMPLETE:  # stands for a file that is there no more
                (folder / name).unlink(missing_ok=True)
                os.unlink(name, dir_fd=descriptor)
    with contextlib.suppress(OSError):
        if os.listdir(descriptor) == [COMPLETE]:
            os.unlink(COMPLETE, dir_fd=descriptor)
        (folder / SAVED).rmdir()  # a newer save may be there
    sync_folder(folder)
    return not os.listdir(descriptor)


@contextlib.contextmanager
def _open_own(folder: Path) -> Iterator[int | None]:
    """Open a folder of this user that nobody else can write to; None for others and links."""
    try:
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    except OSError as error:
        if error.errno not in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.EACCES):
            raise
        yield None
        return
    try:
        status = os.fstat(descriptor)
        yield descriptor if status.st_uid == os.geteuid() and not status.st_mode & OTHERS_WRITE else None
    finally:
        os.close(descriptor)


def current_file(path: Path) -> Path:
    """Return where to read a file that was last saved as ``path``.

    The result is no file if the last save removed ``path``.
    """
    with contextlib.suppress(UserError):
        finish_save(path.parent, [path.name])
    saved, newer = path.parent / SAVED, path.parent / SAVED / path.name
    with contextlib.suppress(OSError):
        status, owners = os.lstat(saved), (os.geteuid(), os.stat(path.parent).st_uid)
        if stat.S_ISDIR(status.st_mode) and status.st_uid in owners and not status.st_mode & OTHERS_WRITE:
            return newer if newer.stat().st_size else newer / "removed"
    return path


def read_saved(folder: Path, names: Collection[str], read: Callable[[Callable[[str], Path]], T]) -> T:
    """Read files that belong together, ``names`` of one save: return ``read(place)``.

    ``place(name)`` is a file's path. ``read`` is called again if another process has replaced files meanwhile.
    """
    for _ in range(AGAIN):
        before = _states(folder, names)
        try:
            result = read(lambda name: current_file(folder / name))
        except (UserError, OSError):
            if before == _states(folder, names):
                raise
        else:
            if before == _states(folder, names):
                return result
    raise UserError(f"{folder} is written to all the time by another process; load it when that has ended")


def read_saved_file(path: Path, read: Callable[[Path], T]) -> T:
    """Read one file of a save by ``read``, like :func:`read_saved`."""
    return read_saved(path.parent, [path.name], lambda place: read(place(path.name)))


def _states(folder: Path, names: Iterable[str]) -> list[tuple[object, ...] | None]:
    states: list[tuple[object, ...] | None] = []
    for place in (current_file(folder / name) for name in names):
        try:
            status = os.stat(place)
            states.append((place, status.st_ino, status.st_size, status.st_mtime_ns))
        except OSError:
            states.append(None)
    return states


def local_folder(path: str | os.PathLike[str]) -> Path:
    """Return the path to save to or load from, as a Path. Raises UserError for a URL."""
    if "://" in os.fspath(path):
        raise UserError(f"{redact(os.fspath(path))} is a URL; save to and load from a local path, and copy that")
    return Path(path)


def holds_files(folder: Path, names: Collection[str]) -> bool:
    """Whether a folder has files other than leftovers of an interrupted save of ``names``."""
    finish_save(folder, names)
    return any(not path.name.startswith(SAVED) for path in folder.iterdir())


def replace_folder(draft: Path, path: Path) -> None:
    """Put a new folder in place of an old one by exchanging names, in one step on Linux.

    Elsewhere a kill between two renames leaves the old folder next to ``draft``; the next :func:`draft_folder` moves it
    back.
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
    """Give a new folder next to ``path``, to prepare a replacement for it."""
    prefix = f".{path.name}.draft-"
    for left in path.parent.glob(f"{glob.escape(prefix)}*"):
        with contextlib.suppress(OSError), _open_own(left) as descriptor:
            if descriptor is not None and _lock(descriptor):
                _remove(left, descriptor)
    with contextlib.ExitStack() as stack:
        while True:
            draft = Path(tempfile.mkdtemp(prefix=prefix, dir=path.parent))
            # Another process may take it for one that was left.
            with contextlib.suppress(BlockingIOError, FileNotFoundError):
                stack.callback(os.close, open_draft := os.open(draft, os.O_RDONLY))
                _lock(open_draft)
                os.stat(draft)
                break
        stack.callback(_remove, draft, open_draft)
        yield draft


def _remove(draft: Path, descriptor: int) -> None:
    """Remove an open draft folder, but first move old folders in it back."""
    for old in (name for name in os.listdir(descriptor) if name.endswith(OLD)):
        path = draft.parent / old.removesuffix(OLD)
        if not path.exists():
            with contextlib.suppress(OSError):
                os.rename(old, path, src_dir_fd=descriptor)
    shutil.rmtree(draft, ignore_errors=True)


@contextlib.contextmanager
def locked_folder(folder: Path) -> Iterator[bool]:
    """Lock a folder for this process within the context; give False where locks are unsupported.

    Raises BlockingIOError if another process has locked it.
    """
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        yield _lock(descriptor)
    finally:
        os.close(descriptor)


def _lock(descriptor: int) -> bool:
    """Lock an open folder until it is closed; return False where locks are unsupported."""
    try:
        import fcntl

        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise
    except (ImportError, OSError):  # Windows, or a file system without such locks
        return False
    return True


@contextlib.contextmanager
def explained_writing(folder: Path) -> Iterator[None]:
    """Turn an OSError, such as a full disk, into a UserError that names ``folder``."""
    try:
        yield
    except OSError as error:
        place = f" ({error.filename})" if error.filename not in (None, str(folder)) else ""
        reason = error.strerror or error
        raise UserError(f"{folder} cannot be written: {reason}{place}; name a folder that can be written") from error


def sync_folder(folder: Path) -> None:
    """Flush the names in a folder to the disk, so that a rename survives a crash."""
    if os.name == "nt":  # Windows opens no folders
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)

"""Writes stores so that all appear complete at their destinations, or none after an error."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from types import TracebackType
from typing import Any

from zarr.core.sync import sync

from dsinga.base.durable_files import draft_folder, replace_folder
from dsinga.base.errors import UserError
from dsinga.base.redaction import redact, redacted_cause
from dsinga.data.filesystem import exists
from dsinga.data.locations import absolute, is_url, remove
from dsinga.data.stores.record_store import is_store

WAITING = "wait for writes"  # the name of a task


class DestinationExists(UserError):
    """Raised instead of replacing a store or another file at a destination."""


class StagedStores:
    """Writes several stores in a ``with`` block, so that an error leaves none of them.

    On a local path, a store is written into a draft folder next to its destination. When the block ends, each draft is
    renamed, replacing an older store in one step. A URL cannot be renamed, so the store is written in place. After an
    exception, all stores and the folders created for them are removed.

    Each rename is atomic, but not all together.

    Args:
        overwrite: whether existing stores are replaced; a function is called when all records are written.
    """

    def __init__(self, overwrite: bool | Callable[[], bool] = False):
        self._may_replace = overwrite if callable(overwrite) else lambda: bool(overwrite)
        self._stagings: dict[str, str] = {}  # by destination
        self._folders: list[str] = []  # that were created, a folder before the one that it is in
        self._drafts = contextlib.ExitStack()

    def __enter__(self) -> StagedStores:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        is_complete = False
        try:
            if error is None:
                destinations = [name for name, staging in self._stagings.items() if staging != name]
                for destination in destinations:
                    self.check(destination)
                for destination in destinations:
                    with naming_destination(destination):
                        _rename(self._stagings[destination], destination, self._may_replace)
                is_complete = True
        finally:
            if not is_complete:
                self._remove_all()
            self._drafts.close()

    def check(self, destination: str) -> None:
        """Raise DestinationExists if something at ``destination`` may not be replaced."""
        if not exists(destination) or _is_empty_folder(destination):
            return
        if _is_taken_by_another_kind(destination):
            raise DestinationExists(f"{destination} exists and is not a record store; choose another destination")
        if not self._may_replace():
            raise DestinationExists(f"{destination} exists; --overwrite (overwrite=True in Python) replaces it")

    def stage(self, destination: str | os.PathLike[str]) -> str:
        """Return where to write the store for ``destination``: next to it, or in place at a URL."""
        destination = absolute(destination)
        self.check(destination)
        if is_url(destination):
            self._stagings[destination] = destination
            remove(destination)
        else:
            folder, name = os.path.split(destination)
            self._folders = [*_missing_folders(folder), *self._folders]
            os.makedirs(folder, exist_ok=True)
            draft = self._drafts.enter_context(draft_folder(Path(destination)))
            self._stagings[destination] = str(draft / name)
        return self._stagings[destination]

    def _remove_all(self) -> None:
        try:
            _finish_writes()
        finally:
            for staging in self._stagings.values():
                with contextlib.suppress(OSError):
                    remove(staging)
            self._drafts.close()
            for folder in self._folders:
                with contextlib.suppress(OSError):  # it may have something else in it by now
                    os.rmdir(folder)


@contextlib.contextmanager
def naming_destination(destination: str) -> Iterator[None]:
    """Turn errors of a file system into a UserError that names the destination of a store."""
    try:
        yield
    except OSError as error:
        fault = redact(f"{destination} cannot be written: {error}", destination)
        raise UserError(fault) from redacted_cause(error, destination)


def _finish_writes() -> None:
    """Wait for files that zarr's event loop still writes after an interrupt."""

    async def wait() -> None:
        if (task := asyncio.current_task()) is not None:
            task.set_name(WAITING)
        tasks = [task for task in asyncio.all_tasks() if task.get_name() != WAITING]  # of another thread's call of this
        await asyncio.gather(*tasks, return_exceptions=True)

    sync(wait())


def _missing_folders(folder: str) -> list[str]:
    missing = []
    while not os.path.exists(folder):
        missing.append(folder)
        folder = os.path.dirname(folder)
    return missing


def _is_empty_folder(location: str) -> bool:
    try:
        return not is_url(location) and not os.listdir(location)
    except (FileNotFoundError, NotADirectoryError):
        return False


def _is_taken_by_another_kind(destination: str) -> bool:
    """Whether a destination has something that may not be replaced, because it is no record store."""
    if is_url(destination):
        return not is_store(destination)
    while (identity := _identity(destination)) is not None and not is_store(destination):
        if identity == _identity(destination):
            return True
    return False


def _identity(path: str) -> tuple[int, int] | None:
    """Return numbers that change when a file or folder is replaced; None without one."""
    try:
        status = os.lstat(path)
    except OSError:
        return None
    return status.st_ino, status.st_ctime_ns


def _rename(staging: str, destination: str, may_replace: Callable[[], bool]) -> None:
    """Move a complete store to its destination, where another process may have written one meanwhile."""
    while not _attempt(os.rename, staging, destination):
        if not may_replace():
            raise DestinationExists(f"{destination} exists; --overwrite (overwrite=True in Python) replaces it")
        if _attempt(replace_folder, staging, destination):
            if is_store(staging):  # the old one: checked after the exchange, when no other process can change it
                return
            _attempt(replace_folder, staging, destination)
            raise DestinationExists(f"{destination} exists and is not a record store; choose another destination")


def _attempt(rename: Callable[[Any, Any], None], source: str, destination: str) -> bool:
    try:
        rename(Path(source), Path(destination))
    except OSError as error:
        gone = isinstance(error, FileNotFoundError) and os.path.isdir(os.path.dirname(destination))
        if not gone and error.errno not in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR):
            raise
        return False
    return True

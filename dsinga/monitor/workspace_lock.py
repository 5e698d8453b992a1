"""Lets only one run write a workspace at a time.

The lock is a system lock on the folder, which ends with its process; ``running.json`` names the holder. Without such
locks (NFS, Windows), that file is the lock: only one process can create it. A killed process leaves it, but a dead
holder on this host does not count.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import platform
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from dsinga.base.advice import short_path
from dsinga.base.durable_files import locked_folder
from dsinga.base.errors import WorkspaceHeld
from dsinga.base.regular_files import open_regular, parse_json

HOLDER = "running.json"

Holder = dict[str, Any]


class WorkspaceLock:
    """The lock that keeps other runs out of a workspace while this process writes it."""

    def __init__(self, workspace: Path, holder: Holder):
        self._workspace, self._holder = workspace, holder
        self._status = os.stat(workspace)

    def is_in_place(self) -> bool:
        """Whether the workspace's path still leads to the folder that was locked."""
        try:
            status = os.stat(self._workspace)
        except OSError as error:
            return error.errno not in (errno.ENOENT, errno.ENOTDIR, errno.ESTALE)
        # Some network file systems give a folder another number from time to time.
        return os.path.samestat(status, self._status) or _read(self._workspace / HOLDER) == self._holder


@contextlib.contextmanager
def locked_workspace(workspace: Path) -> Iterator[WorkspaceLock]:
    """Create a workspace's folder, and keep other runs out of it within the context.

    Raises WorkspaceHeld, with host, process and time, if another run holds the lock.
    """
    workspace.mkdir(parents=True, exist_ok=True)
    path = workspace / HOLDER
    with contextlib.ExitStack() as stack:
        if _lock_folder(workspace, stack) or has_ended(_read(path)):
            path.unlink(missing_ok=True)  # left by a process that was killed
        try:
            holder = {"host": platform.node(), "pid": os.getpid(), "since": time.time()}
            with open(path, "x", encoding="utf-8") as file:
                json.dump(holder, file)
        except FileExistsError:
            raise workspace_held(workspace, _read(path), file=path) from None
        lock = WorkspaceLock(workspace, holder)
        try:
            yield lock
        finally:
            with contextlib.suppress(OSError):  # the folder is gone, or the disk
                if lock.is_in_place():  # else the file may be that of another run
                    path.unlink()


def parse_holder(text: bytes) -> Holder:
    """Read which process writes a workspace, from ``running.json``; empty if another program wrote it."""
    try:
        holder = parse_json(text)
    except ValueError:
        return {}
    return holder if isinstance(holder, dict) else {}


def has_ended(holder: Holder) -> bool:
    """Whether the process in ``running.json`` was one of this host and has ended."""
    if holder.get("host") != platform.node():
        return False
    try:
        os.kill(holder.get("pid"), 0)  # type: ignore[arg-type]
    except (ProcessLookupError, OverflowError):
        return True
    except (OSError, TypeError):  # a process of another user; a file that another program wrote
        return False
    return False


def workspace_held(workspace: Path | str, holder: Holder, file: Path | str = "") -> WorkspaceHeld:
    """Return the error that another run writes to a workspace."""
    who = ""
    if isinstance(holder.get("pid"), int) and isinstance(holder.get("since"), (int, float)):
        with contextlib.suppress(OverflowError, ValueError, OSError):  # a time that is none
            since = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(holder["since"]))
            who = f": process {holder['pid']} on {holder.get('host')}, since {since}"
    advice = f"; if that process has ended, delete {short_path(file)}" if file else ""
    return WorkspaceHeld(
        f"another run is writing to the workspace {short_path(workspace)}{who}; give another workspace, or wait until "
        f"that ends{advice}"
    )


def _lock_folder(workspace: Path, stack: contextlib.ExitStack) -> bool:
    """Lock the folder until ``stack`` ends; False if the system has no such locks."""
    try:
        return stack.enter_context(locked_folder(workspace))
    except BlockingIOError:
        raise workspace_held(workspace, _read(workspace / HOLDER)) from None


def _read(path: Path) -> Holder:
    try:
        with open_regular(path) as file:
            return parse_holder(file.read(1 << 12))
    except OSError:
        return {}

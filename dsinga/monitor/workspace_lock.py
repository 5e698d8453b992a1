"""Locks a workspace for the run that writes it, so that no other run writes there at the same time."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

from dsinga.errors import UserError


@contextlib.contextmanager
def locked_workspace(workspace: Path) -> Iterator[None]:
    """Create the folder ``workspace``, and hold a lock on it; the system releases the lock of a process that dies.

    File systems without locks of folders, such as NFS, and systems without ``fcntl`` lock nothing. Raises UserError
    where another run, of this or another process of the machine, holds the lock.
    """
    workspace.mkdir(parents=True, exist_ok=True)
    try:
        import fcntl
    except ImportError:  # on Windows
        yield
        return
    folder = os.open(workspace, os.O_RDONLY)
    try:
        try:
            fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UserError(
                f"another run is writing to the workspace {workspace}; give another workspace, or wait until that ends"
            ) from None
        except OSError:  # the file system has no such locks
            pass
        yield
    finally:
        os.close(folder)

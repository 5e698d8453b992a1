"""Keeps checkpoints and workspaces at URLs of fsspec, through local copies.

Object stores cannot rename folders. Therefore ``checkpoint.json``, which has names and checksums of all other files, is
copied last and removed first: a folder without it is no checkpoint.
"""

from __future__ import annotations

import contextlib
import posixpath
import shutil
import tempfile
import weakref
from collections.abc import Iterator
from pathlib import Path

from dsinga.base.errors import RunError, UserError
from dsinga.base.redaction import redact
from dsinga.checkpoint.metadata import METADATA, STEP
from dsinga.data.locations import file_system


class RemoteFolder:
    """A folder at a URL, used through a local copy of its files.

    Args:
        url: such as ``s3://bucket/run``.

    Attributes:
        local: the local folder, which is removed with this object.
    """

    def __init__(self, url: str):
        self.url = url.rstrip("/")
        self._files, self._root = file_system(self.url)
        self._root = self._root.rstrip("/")
        self.local = Path(tempfile.mkdtemp(prefix="dsinga-"))
        self._copied: dict[str, tuple[int, int]] = {}  # size and time of each local file when it was copied, by path
        weakref.finalize(self, shutil.rmtree, self.local, ignore_errors=True)

    def names(self) -> list[str]:
        """Return the paths of all files below the folder."""
        with self._explained(UserError, "read"):
            self._files.invalidate_cache()  # others may have written there
            if not self._files.exists(self._root):
                return []
            if self._files.isfile(self._root):
                return [""]
            return [path[len(self._root) :].lstrip("/") for path in self._files.find(self._root)]

    def download(self, names: list[str]) -> None:
        """Copy files from the URL to the local folder."""
        with self._explained(UserError, "read"):
            for name in names:
                target = self.local / (name or posixpath.basename(self._root))
                target.parent.mkdir(parents=True, exist_ok=True)
                self._files.get_file(self._path(name), str(target))
                self._copied[name] = _state(target)

    def read(self, name: str) -> bytes:
        """Return the contents of a file at the URL, empty if it has gone."""
        with self._explained(UserError, "read"), contextlib.suppress(FileNotFoundError):
            return bytes(self._files.cat_file(self._path(name)))
        return b""

    def upload(self) -> None:
        """Copy changed local files to the URL, and remove deleted ones there."""
        local = {path.relative_to(self.local).as_posix(): path for path in self.local.rglob("*") if path.is_file()}
        with self._explained(RunError, "written"):
            states = {name: _state(path) for name, path in local.items()}
            changed = [name for name, state in states.items() if self._copied.get(name) != state]
            gone = self._copied.keys() - local.keys()
            for name in sorted(gone.union(filter(_is_metadata, changed)), key=_is_metadata, reverse=True):
                self.remove(name)
            for name in sorted(changed, key=_is_metadata):
                self._files.makedirs(posixpath.dirname(self._path(name)), exist_ok=True)
                self._files.put_file(str(local[name]), self._path(name))
                self._copied[name] = states[name]

    def move(self, names: list[str], folder: str) -> None:
        """Move files at the URL to a folder below this one."""
        with self._explained(RunError, "written"):
            for name in sorted(names, key=_is_metadata, reverse=True):
                target = self._path(f"{folder}/{name}")
                self._files.makedirs(posixpath.dirname(target), exist_ok=True)
                self._files.mv(self._path(name), target)

    def remove(self, name: str) -> None:
        """Remove a file at the URL, if it exists."""
        with contextlib.suppress(FileNotFoundError):
            self._files.rm_file(self._path(name))
        self._copied.pop(name, None)

    def name_url(self, error: UserError | RunError) -> None:
        """Put the URL in place of the local folder in an error's message."""
        error.args = tuple(str(part).replace(str(self.local), redact(self.url)) for part in error.args)

    def _path(self, name: str) -> str:
        return f"{self._root}/{name}" if name else self._root

    @contextlib.contextmanager
    def _explained(self, kind: type[UserError] | type[RunError], verb: str) -> Iterator[None]:
        """Turn exceptions of the protocol's package into an error of ``kind``."""
        try:
            yield
        except (UserError, RunError):
            raise
        except Exception as error:
            text = f"{self.url} cannot be {verb}: {type(error).__name__}: {error}"
            raise kind(redact(text, self.url)) from None


def complete_steps(names: list[str]) -> list[str]:
    """Find the folders of complete checkpoints among file paths, newest first."""
    folders = {posixpath.dirname(name) for name in names if posixpath.basename(name) == METADATA}
    steps = [folder for folder in folders if STEP.fullmatch(posixpath.basename(folder))]
    return sorted(steps, key=lambda folder: int(posixpath.basename(folder)[4:]), reverse=True)


def fetch_checkpoint(folder: RemoteFolder) -> Path:
    """Download a checkpoint, a workspace's newest, or a file of params; return the local path."""
    names = folder.names()
    if names == [""]:
        folder.download(names)
        return folder.local / posixpath.basename(folder.url)
    if METADATA in names:
        folder.download([name for name in names if "/" not in name])
        return folder.local
    steps = [step for step in complete_steps(names) if posixpath.dirname(step) in ("", "checkpoint")]
    if not steps:
        raise UserError(f"there is no checkpoint at {redact(folder.url)}")
    folder.download([name for name in names if posixpath.dirname(name) == steps[0]])
    return folder.local / steps[0]


def _is_metadata(name: str) -> bool:
    return posixpath.basename(name) == METADATA


def _state(path: Path) -> tuple[int, int]:
    status = path.stat()
    return status.st_size, status.st_mtime_ns

"""Keeps workspaces at a URL through a local folder, and finds trained params in a workspace."""

from __future__ import annotations

import itertools
import logging
import os
from pathlib import Path
from typing import TYPE_CHECKING

from dsinga.api.jobs_with_data import Result
from dsinga.base.advice import option
from dsinga.base.arrays import NamedParams
from dsinga.base.errors import RunError, UserError
from dsinga.base.redaction import redact
from dsinga.checkpoint import latest, params_of, read_params
from dsinga.checkpoint.remote import RemoteFolder, complete_steps
from dsinga.data.locations import is_url, join, remove
from dsinga.job import Job
from dsinga.monitor.run_monitor import RUN_FILES
from dsinga.monitor.standard_streams import error_stream
from dsinga.monitor.workspace_lock import HOLDER, has_ended, parse_holder, workspace_held

if TYPE_CHECKING:
    from dsinga.base.arrays import ParamArrays

_log = logging.getLogger(__name__)


class RemoteWorkspace:
    """Keeps a run's files at a URL, such as ``s3://bucket/run``: a local folder, copied after each checkpoint.

    ``running.json`` names the process that writes, since object stores have no locks.

    Attributes:
        local: the folder in which the run writes its files.
        unsaved: why files could not be copied at the end of the run, else "".
    """

    def __init__(self, url: str):
        self._folder = RemoteFolder(url)
        self.url, self.local = self._folder.url, self._folder.local
        self.unsaved = ""
        self._resumes = self._has_begun = False

    def find_checkpoint(self) -> bool:
        """Whether the workspace has a complete checkpoint."""
        return bool(_checkpoints(self._folder.names()))

    def fetch(self) -> None:
        """Copy checkpoints, and other files that a resumed run needs, to the local folder."""
        names = self._folder.names()
        steps = _checkpoints(names)
        files = [name for name in _run_files(names) if not name.startswith("checkpoint/")]
        files += [name for name in names if name.rpartition("/")[0] in steps]
        self._folder.download(files)
        self._resumes = True

    def begin(self) -> None:
        """Claim the workspace for this run, and move an earlier run's files to ``run-1``, ``run-2``, ....

        Raises UserError if another run is writing there. A resumed run moves no files.
        """
        names = self._folder.names()
        if HOLDER in names:
            holder = parse_holder(self._folder.read(HOLDER))
            if not has_ended(holder):
                raise workspace_held(self.url, holder, f"{self.url}/{HOLDER}")
        files = _run_files(names)
        if files and not self._resumes:
            taken = {name.partition("/")[0] for name in names}
            folder = next(name for n in itertools.count(1) if (name := f"run-{n}") not in taken)
            self._folder.move(files, folder)
            _log.info("the earlier run in %s is kept in %s/%s", self.url, self.url, folder)
        self._folder.upload()
        self._has_begun = True

    def save(self) -> None:
        """Copy changed files to the URL. Raises RunError if copying fails."""
        self._folder.upload()

    def __enter__(self) -> RemoteWorkspace:
        return self

    def __exit__(self, *failure: object) -> None:
        """Copy the remaining files to the URL, if the run has begun."""
        if self._has_begun:
            try:
                self._folder.upload()
            except RunError as error:
                self.unsaved = str(error)
                _log.warning("%s", error)
        if isinstance(failure[1], (UserError, RunError)):
            self._folder.name_url(failure[1])


def has_checkpoint(workspace: Path | str) -> bool:
    """Whether a workspace has a checkpoint, perhaps a damaged one."""
    if is_url(str(workspace)):
        return RemoteWorkspace(str(workspace)).find_checkpoint()
    return latest(Path(workspace) / "checkpoint") is not None


def remove_checkpoints(workspace: Path | str) -> None:
    """Remove all checkpoints in a workspace. Raises RunError if that fails."""
    is_remote = is_url(str(workspace))
    folder = join(str(workspace), "checkpoint") if is_remote else str(Path(workspace) / "checkpoint")
    try:
        remove(folder)
    except Exception as error:  # fsspec's packages have their own errors
        reason = f"{type(error).__name__}: {error}"
        raise RunError(
            redact(f"{folder} cannot be removed: {reason}; remove it, or the next run there goes on from it", folder)
        ) from None


def _checkpoints(names: list[str]) -> list[str]:
    return [step for step in complete_steps(names) if step.rpartition("/")[0] == "checkpoint"]


def _run_files(names: list[str]) -> list[str]:
    return [name for name in names if name.partition("/")[0] in RUN_FILES]


def default_workspace(job: Job) -> Path | str:
    """Return the folder or URL where a job writes: its workspace, else ``<name>-workspace``."""
    named = (job.cluster.workspace if job.cluster else None) or f"{job.name}-workspace"
    return named if is_url(named) else Path(named)


def trained_params(
    job: Job, params: ParamArrays | Result | str | os.PathLike[str] | None, roots: list[str]
) -> ParamArrays:
    """Find trained params: given ones, a result's, or a checkpoint's, by default the newest in the job's workspace.

    Without a checkpoint there, the job's ``checkpoint_path`` counts. A line on standard error names the default. Raises
    UserError if there are neither.
    """
    if params is not None:
        return params_of(params.params if isinstance(params, Result) else params)
    workspace = default_workspace(job)
    newest: Path | str | None
    if isinstance(workspace, str):
        newest = workspace if has_checkpoint(workspace) else None
    else:
        newest = latest(workspace / "checkpoint")
    if newest is None and not job.checkpoint_path:
        raise UserError(
            f"there are no trained params: there is no checkpoint in {workspace}, and the job has no checkpoint_path; "
            f"train first, or give {option('checkpoint', 'PATH', python='params=PATH')}"
        )
    paths: list[str | Path] = [newest] if newest else [*job.checkpoint_path]
    others = ["not of the job's checkpoint_path"] if newest and job.checkpoint_path else []
    if newest and isinstance(workspace, Path) and (best := workspace / "best.safetensors").exists():
        others.append(f"the best ones are in {best}")
    remark = f" ({'; '.join(others)})" if others else ""
    print(redact(f"params of {', '.join(map(str, paths))}{remark}"), file=error_stream())
    read = [read_params(path, roots) for path in paths]
    values = {name: value for params in read for name, value in params.items()}
    return NamedParams(values, {name: names for params in read for name, names in getattr(params, "names", {}).items()})

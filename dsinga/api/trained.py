"""Finding the params of a job: those that the caller gives, or those of its newest checkpoint."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from dsinga.advice import option
from dsinga.api.remote_workspace import RemoteWorkspace
from dsinga.api.result import Result
from dsinga.checkpoint import latest, read_params
from dsinga.data.filesystem import is_url
from dsinga.errors import UserError
from dsinga.job import Job
from dsinga.redaction import redact

if TYPE_CHECKING:
    from dsinga.cluster import Arrays


def default_workspace(job: Job) -> Path | str:
    """Return the workspace that the job names, a URL as text, else ``<name>-workspace``, the command line's."""
    named = (job.cluster.workspace if job.cluster else None) or f"{job.name}-workspace"
    return named if is_url(named) else Path(named)


def trained_params(job: Job, params: Arrays | Result | str | os.PathLike[str] | None, roots: list[str]) -> Arrays:
    """Return params by name: those given, those of a result, or those at the path of a checkpoint.

    For None they are those of the newest checkpoint in the job's workspace or, where there is none, of its
    ``checkpoint_path``; a line on standard error says which. Raises UserError where there are neither.
    """
    if isinstance(params, Result):
        return params.params
    if isinstance(params, Mapping):
        return dict(params)
    if params is not None:
        return read_params(params)
    workspace = default_workspace(job)
    newest: Path | str | None
    if isinstance(workspace, str):
        newest = workspace if RemoteWorkspace(workspace).find_checkpoint() else None
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
    print(redact(f"params of {', '.join(map(str, paths))}{remark}"), file=sys.stderr)
    return {name: value for path in paths for name, value in read_params(path, roots).items()}

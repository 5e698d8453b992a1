"""Finding the params of a job: those that the caller gives, or those of its newest checkpoint."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from dsinga.advice import option
from dsinga.api.result import Result
from dsinga.checkpoint import latest, read_params
from dsinga.errors import UserError
from dsinga.job import Job
from dsinga.redaction import redact

if TYPE_CHECKING:
    from dsinga.cluster import Arrays


def default_workspace(job: Job) -> Path:
    """Return the workspace that the job names, else ``<name>-workspace``, which is the command line's."""
    return Path((job.cluster.workspace if job.cluster else None) or f"{job.name}-workspace")


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
    newest = latest(workspace / "checkpoint")
    if newest is None and not job.checkpoint_path:
        raise UserError(
            f"there are no trained params: there is no checkpoint in {workspace}, and the job has no checkpoint_path; "
            f"train first, or give {option('checkpoint', 'PATH', python='params=PATH')}"
        )
    paths: list[str | Path] = [newest] if newest else [*job.checkpoint_path]
    others = ["not of the job's checkpoint_path"] if newest and job.checkpoint_path else []
    if newest and (best := workspace / "best.safetensors").exists():
        others.append(f"the best ones are in {best}")
    remark = f" ({'; '.join(others)})" if others else ""
    print(redact(f"params of {', '.join(map(str, paths))}{remark}"), file=sys.stderr)
    return {name: value for path in paths for name, value in read_params(path, roots).items()}

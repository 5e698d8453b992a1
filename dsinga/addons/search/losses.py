"""Distinguishes runs ended by a cluster or another program from settings that fail."""

from __future__ import annotations

from typing import Any, TypeGuard

from dsinga.base.errors import Diverged, RunError, TooFewWorkers, UserError, WorkerLost, WorkspaceHeld


def is_of_cluster(error: BaseException | None) -> TypeGuard[Exception]:
    """Whether the cluster or another program ended a run, and not its setting."""
    if isinstance(error, (RunError, TooFewWorkers, WorkspaceHeld)):
        return not isinstance(error, Diverged)
    return isinstance(error, Exception) and type(error).__module__.partition(".")[0] == "distributed"


def may_start_again(error: BaseException | None) -> bool:
    """Whether a restart may help: a worker was lost, or another program used the folder."""
    if isinstance(error, (WorkerLost, WorkspaceHeld)) or type(error).__module__.startswith("distributed."):
        return True
    return error is not None and may_start_again(error.__cause__)


def describe_error(error: Any) -> str:
    """Describe an error in one sentence; errors of user code with their type."""
    return str(error) if isinstance(error, (UserError, RunError)) else f"{type(error).__name__}: {error}"

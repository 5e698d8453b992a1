"""The exceptions that dsinga raises: faults of input; failed, cancelled and diverged runs."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Any

from dsinga.base.redaction import redact

# A word, such as a value that a message repeats, of which a message has no more than the beginning.
_LONG_WORD = re.compile(r"(\S{80})\S{920,}+")


def _redacted(arguments: Iterable[Any]) -> Iterator[Any]:
    return (redact(_LONG_WORD.sub(r"\1...", part)) if isinstance(part, str) else part for part in arguments)


class UserError(ValueError):
    """A fault in the user's input: a job, a store, a checkpoint, an option.

    The message names the file, line, layer or field, and the remedy. The command line prints it without a traceback and
    exits with status 2. It shows no secrets: see :func:`dsinga.base.redaction.redact`.
    """

    def __init__(self, *arguments: Any):
        super().__init__(*_redacted(arguments))


class PathNotFound(UserError):
    """The error that a path has no file, folder or store."""


class WorkspaceHeld(UserError):
    """Another run is writing to a workspace. The workspace is free when that run has ended."""


class OtherRecords(UserError):
    """The error that records mean something else than in training; the message names the setting."""


class TooFewWorkers(UserError):
    """A Dask cluster is too small for a run. A run waits if more Dask workers may come."""


class RunError(RuntimeError):
    """A run with valid input failed, for instance because a worker was lost or a wait timed out.

    The message says what happened and how to continue, without secrets. The command line exits with status 1.
    """

    def __init__(self, *arguments: Any):
        super().__init__(*_redacted(arguments))


class Diverged(RunError):
    """Training produced NaN or infinity. The message names the step and the layer or param with it.

    No worker sends the gradients of such a step. ``train_on_batch`` and ``LocalNet`` leave the params unchanged.

    A gradient may be NaN although the loss is finite, for example the gradient of a root at 0. The message then names
    the function or layer that computed it, or the param that it reached if the net is cut over workers. On a GPU,
    ``fit`` does not check gradients: the loss or the params show the fault.

    Params that are not finite are neither written to a checkpoint nor returned. Loading or setting params with NaN is
    refused. Tests and validations that are not finite only log a warning.
    """


class Cancelled(RunError):
    """A run was cancelled by its user, while waiting for workers or training."""


class Terminated(KeyboardInterrupt):
    """The process got a signal that ends it, such as SIGTERM of a batch system. The command line exits with 75.

    :data:`dsinga.base.termination.TERMINATIONS` lists these signals. It is a KeyboardInterrupt, so that clean-up after
    Ctrl-C also runs here.
    """


class WorkerLost(RunError):
    """A worker, server or connection of a run was lost; its work can be computed again."""


class ClusterNotReady(RunError):
    """A run's Dask workers or scheduler have not come in time; a later attempt may find them.

    The command line exits with status 75, at which batch scripts queue their job again.
    """


class SchedulerLost(RunError):
    """The Dask scheduler of a run was lost, with everything the run had on the cluster."""

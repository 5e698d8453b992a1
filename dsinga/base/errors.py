"""The exceptions that dsinga raises: for faults of input, and for failed, cancelled and diverged runs."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from dsinga.base.redaction import redact

# A word, such as a value that a message repeats, of which a message has no more than the beginning.
_LONG_WORD = re.compile(r"(\S{80})\S{920,}+")


def _redacted(arguments: Iterable[Any]) -> list[Any]:
    # A list: a tuple that grows from an iterator fails if another thread lists all objects meanwhile.
    return [redact(_LONG_WORD.sub(r"\1...", part)) if isinstance(part, str) else part for part in arguments]


class UserError(ValueError):
    """Raised for a fault in the user's input: a job, a store, a checkpoint, an option.

    The message names the file, line, layer or field, and the remedy. The command line prints it without a traceback and
    exits with status 2.
    """

    def __init__(self, *arguments: Any):
        super().__init__(*_redacted(arguments))


class PathNotFound(UserError):
    """Raised if a path has no file, folder or store."""


class WorkspaceHeld(UserError):
    """Raised if another run is writing to a workspace."""


class OtherRecords(UserError):
    """Raised if records mean something else than in training; the message names the setting."""


class TooFewWorkers(UserError):
    """Raised if a Dask cluster is too small for a run; the run waits if more Dask workers may come."""


class RunError(RuntimeError):
    """Raised if a run with valid input failed, for instance because a worker was lost.

    The message says how to continue. The command line exits with status 1.
    """

    def __init__(self, *arguments: Any):
        super().__init__(*_redacted(arguments))


class Diverged(RunError):
    """Raised if training produced NaN or infinity; the message names the step and the layer or param.

    No worker sends the gradients of such a step. ``train_on_batch`` and ``LocalNet`` leave the params unchanged.

    A gradient may be NaN although the loss is finite, for example the gradient of a root at 0. On a GPU, ``fit`` does
    not check gradients: the loss or the params show the fault.

    Params that are not finite are neither written to a checkpoint nor returned. Tests and validations that are not
    finite only log a warning.
    """


class Cancelled(RunError):
    """Raised if a user cancelled a run, while it waited for workers or trained."""


class Terminated(KeyboardInterrupt):
    """Raised on a signal that ends the process, such as SIGTERM of a batch system; the command line exits with 75.

    It is a KeyboardInterrupt, so that clean-up after Ctrl-C also runs here.
    """


class WorkerLost(RunError):
    """Raised if a run lost a worker, a server or a connection; the work can be computed again."""


class ClusterNotReady(RunError):
    """Raised if a run's Dask workers or scheduler have not come in time; a later attempt may find them.

    The command line exits with status 75, at which batch scripts queue their job again.
    """


class SchedulerLost(RunError):
    """Raised if a run lost its Dask scheduler, and with it everything on the cluster."""

"""The exceptions that dsinga raises: a fault in the user's input, a failed run, a diverged training."""

from __future__ import annotations


class UserError(ValueError):
    """A fault in the user's input: a job, a store, a checkpoint, an option.

    The message names the file, line, layer or field, and the remedy. The command line prints it without a traceback
    and exits with status 2.
    """


class RunError(RuntimeError):
    """A run with valid input failed, for instance because a worker was lost or a wait timed out.

    The message says what was waited for and how to continue. The command line exits with status 1.
    """


class Diverged(RunError):
    """Training produced NaN or infinity. The message names the step and the layer or param that they were found in."""

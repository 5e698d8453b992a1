"""The kinds of failure that dsinga tells apart; the floor every room stands on."""

from __future__ import annotations


class UserError(ValueError):
    """A fault in what the user gave: a job, a store, a checkpoint, an option.

    The message names the file, line, layer or field, and what would be right. The command line prints it without
    a traceback and exits with status 2.
    """


class RunError(RuntimeError):
    """A run could not go on although its input was sound: a lost worker, a wait that reached its end.

    The message says what was waited for and how to go on. The command line exits with status 1.
    """


class Diverged(RunError):
    """Training has come to numbers that are not finite. The message names the step and where they began."""

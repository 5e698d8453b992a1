"""Phrases advice in error messages as command-line options for a command, as keyword arguments for Python."""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from dsinga.base.redaction import redact

# The options of a command that name a cluster.
CLUSTER_OPTIONS = ("scheduler", "scheduler_file", "tls_ca_file", "tls_cert", "tls_key")
# The program and the arguments of the command that runs, none in Python.
_command_lines: list[tuple[Sequence[str], Sequence[str]]] = []


@contextlib.contextmanager
def command_line(arguments: Sequence[str], program: Sequence[str] = ("dsinga",)) -> Iterator[None]:
    """Word advice in messages for the command ``program arguments`` within the context."""
    _command_lines.append((program, arguments))
    try:
        yield
    finally:
        _command_lines.pop()


def is_command() -> bool:
    """Return whether a dsinga command is running, not a user's Python program."""
    return bool(_command_lines)


def in_notebook() -> bool:
    """Return whether this process is the kernel of a notebook, without importing IPython."""
    ipython = sys.modules.get("IPython")
    shell: Any = ipython.get_ipython() if ipython else None
    return shell is not None and hasattr(shell, "kernel")


def short_path(path: Path | str) -> Path | str:
    """Return a path relative to the working directory if below it; others and URLs unchanged."""
    with contextlib.suppress(ValueError, OSError):  # elsewhere; a working directory that was deleted
        return Path(path).relative_to(Path.cwd())
    return path


def how_to_resume() -> str:
    """Return how to resume from the last checkpoint: the command, or the Python argument.

    A path behind ``--resume`` is dropped, to resume from the newest checkpoint; ``--resume auto`` stays.
    """
    if not _command_lines:
        return "resume=True"
    program, arguments = _command_lines[-1]
    words: list[str] = []
    for word in join_resume(arguments):
        words += ["--resume", "auto"] if word == "--resume=auto" else [re.sub("^--resume=.*", "--resume", word)]
    return redact(shlex.join([*program, *words, *([] if "--resume" in words else ["--resume"])]))


def join_resume(arguments: Sequence[str]) -> list[str]:
    """Return a command's arguments, with ``--resume WORD`` joined to ``--resume=WORD``.

    The word is the value if it is ``auto``, a folder, or the name of a checkpoint; else it is the job file.
    """
    words: list[str] = []
    for word in arguments:
        is_checkpoint = os.path.isdir(word) or re.fullmatch(r"step\d+", os.path.basename(os.path.normpath(word)))
        if words and words[-1] == "--resume" and (is_checkpoint or word == "auto"):
            words[-1] = f"--resume={word}"
        else:
            words.append(word)
    return words


def option(argument: str, value: str = "", python: str = "") -> str:
    """Return an argument as the user writes it: ``--argument value`` in a command, ``argument=value`` in Python.

    ``python`` is its Python form if it differs.
    """
    if _command_lines:
        return f"--{argument.replace('_', '-')} {value}".strip()
    return python or f"{argument}={value or 'True'}"


def job_field(field: str, value: str) -> str:
    """Return a field of a job as the user gives it: ``--set field=value`` in a command, ``field=value`` in Python."""
    return f"{'--set ' if _command_lines else ''}{field}={value}"

"""Words advice in errors as command-line options if a command runs, as keyword arguments in Python."""

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
    """Word advice in messages as options of the command ``program arguments`` within the context."""
    _command_lines.append((program, arguments))
    try:
        yield
    finally:
        _command_lines.pop()


def is_command() -> bool:
    """Whether a dsinga command is running, not a user's Python program."""
    return bool(_command_lines)


def in_notebook() -> bool:
    """Whether this process is the kernel of a notebook."""
    ipython = sys.modules.get("IPython")
    shell: Any = ipython.get_ipython() if ipython else None
    return shell is not None and hasattr(shell, "kernel")


def short_path(path: Path | str) -> Path | str:
    """Shorten a path for messages: relative to the working directory if it is below."""
    with contextlib.suppress(ValueError, OSError):  # elsewhere; a working directory that was deleted
        return Path(path).relative_to(Path.cwd())
    return path


def how_to_resume() -> str:
    """Return how to resume from the last checkpoint, for a message: the command, or the Python argument."""
    if not _command_lines:
        return "resume=True"
    program, arguments = _command_lines[-1]
    words: list[str] = []
    for word in join_resume(arguments):
        words += ["--resume", "auto"] if word == "--resume=auto" else [re.sub("^--resume=.*", "--resume", word)]
    return redact(shlex.join([*program, *words, *([] if "--resume" in words else ["--resume"])]))


def join_resume(arguments: Sequence[str]) -> list[str]:
    """Join ``--resume WORD`` to ``--resume=WORD``, so that the word is not the job file.

    Only ``auto``, a folder and the name of a checkpoint are joined.
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
    """Return an argument as users write it: ``--argument value`` in a command, ``argument=value`` in Python."""
    if _command_lines:
        return f"--{argument.replace('_', '-')} {value}".strip()
    return python or f"{argument}={value or 'True'}"


def job_field(field: str, value: str) -> str:
    """Return a job's field as users give it: ``--set field=value`` in a command, else ``field=value``."""
    return f"{'--set ' if _command_lines else ''}{field}={value}"

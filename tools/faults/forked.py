"""Runs functions in processes forked from this one, several at once; one that takes too long is killed."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import NamedTuple


class Ended(NamedTuple):
    """How the process of a task ended: its exit status (negative: the signal), None if it was killed as too slow.

    ``processor_seconds`` are those of all its threads, which do not depend on what else the machine does.
    """

    number: int
    status: int | None
    seconds: float
    peak_bytes: int
    output: str
    processor_seconds: float = 0.0


class _Running(NamedTuple):
    number: int
    output: Path
    started: float
    deadline: float


def run_forked(
    tasks: Iterable[tuple[int, Callable[[], int]]], folder: Path, seconds: float, processes: int
) -> Iterator[Ended]:
    """Yield how each task ended, in the order of their ends. A task is a number and a function that returns a status.

    This process must have no threads. ``folder`` is for files with the output of the processes.
    """
    waiting = iter(tasks)
    running: dict[int, tuple[int, _Running]] = {}  # by descriptor of the process: its id, and the rest
    while True:
        while len(running) < processes and (task := next(waiting, None)) is not None:
            number, function = task
            output = folder / f"output{number}"
            pid = _fork(function, output)
            now = time.monotonic()
            running[os.pidfd_open(pid)] = pid, _Running(number, output, now, now + seconds)
        if not running:
            return
        left = min(case.deadline for _, case in running.values()) - time.monotonic()
        ended, _, _ = select.select(list(running), [], [], max(left, 0))
        for descriptor in list(running):
            pid, case = running[descriptor]
            late = time.monotonic() > case.deadline
            if descriptor not in ended and not late:
                continue
            with contextlib.suppress(ProcessLookupError):  # also processes that the task has started
                os.killpg(pid, signal.SIGKILL)
            _, status, usage = os.wait4(pid, 0)
            os.close(descriptor)
            del running[descriptor]
            output = case.output.read_text(encoding="utf-8", errors="replace")
            case.output.unlink()
            code = None if late and descriptor not in ended else os.waitstatus_to_exitcode(status)
            took, processor = time.monotonic() - case.started, usage.ru_utime + usage.ru_stime
            yield Ended(case.number, code, took, usage.ru_maxrss << 10, output, processor)


def _fork(function: Callable[[], int], output: Path) -> int:
    sys.stdout.flush()
    sys.stderr.flush()
    pid = os.fork()
    if pid:
        with contextlib.suppress(OSError):  # the child does the same; whoever is first
            os.setpgid(pid, pid)
        return pid
    status = 70
    try:
        with contextlib.suppress(OSError):
            os.setpgid(0, 0)
        descriptor = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(descriptor, 1)
        os.dup2(descriptor, 2)
        null = os.open(os.devnull, os.O_RDONLY)
        os.dup2(null, 0)
        status = function()
    except BaseException:
        traceback.print_exc()
    finally:
        with contextlib.suppress(Exception):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(status)

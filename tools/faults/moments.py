"""The moments at which a process gets a signal: one kit for all programs and tests that lose processes.

Before a function is called (:class:`BeforeCall`), after a step of a run (:class:`AfterStep`), before an operation on
files (:func:`before_file_operation`), a while after another event (:class:`Killer`). In a pass of a layer:
:mod:`tools.faults.passes`.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

from dsinga.extensions import AtEnd, EverySteps, Extension, LoopView, Trigger
from tools.chaos.faults import CausedFault

PACKAGE = "dsinga."
# Events of operations on files, before any of which a process may end.
FILE_EVENTS = {"open", "os.rename", "os.remove", "os.rmdir", "os.mkdir", "shutil.rmtree"}
# Seconds between two looks for the first of two kills.
CHECK_SECONDS = 0.005


def owner_of(path: str) -> tuple[Any, str]:
    """Return the module or class of a function in dsinga, and the function's name in it."""
    names = path.split(".")
    for count in range(len(names) - 1, 0, -1):
        with contextlib.suppress(ModuleNotFoundError):
            owner = importlib.import_module(PACKAGE + ".".join(names[:count]))
            for name in names[count:-1]:
                owner = getattr(owner, name)
            return owner, names[-1]
    raise LookupError(path)


class BeforeCall:
    """A context in which a process gets a signal before a function of dsinga is called here.

    Args:
        function: its path below ``dsinga``.
        pid: the process.
        number: the signal.
        calls: how many calls of the function nothing happens before.

    Attributes:
        at: when it was sent, by ``time.monotonic``; 0 before.
    """

    def __init__(self, function: str, pid: int, number: int, calls: int = 0):
        self.at = 0.0
        self._owner, self._name = owner_of(function)
        self._function: Callable[..., Any] = getattr(self._owner, self._name)
        self._left, self._pid, self._number = calls, pid, number

    def __enter__(self) -> BeforeCall:
        self._patch = mock.patch.object(self._owner, self._name, self._call())
        self._patch.start()
        return self

    def _call(self) -> Callable[..., Any]:
        def call(*arguments: Any, **options: Any) -> Any:  # a function, so that it becomes a method of its class
            if self._left == 0:
                self.at = time.monotonic()
                os.kill(self._pid, self._number)
            self._left -= 1
            return self._function(*arguments, **options)

        return call

    def __exit__(self, *_: Any) -> None:
        self._patch.stop()


class AfterStep(Extension):
    """Sends a signal to this process, once, when so many steps of a run are done.

    Attributes:
        number: the signal, 0 for none and when it was sent.
    """

    def __init__(self, step: int, number: int = 0):
        self.trigger = EverySteps(1)
        self.number, self._step = number, step

    def run(self, loop: LoopView) -> None:
        """Send the signal if it is time."""
        self.look(loop.step)

    def look(self, step: int) -> None:
        """Send the signal if a run that has done ``step`` steps has done enough."""
        number = self.number
        if number and step >= self._step:
            self.number = 0
            os.kill(os.getpid(), number)


def before_file_operation(folder: Path, count: int) -> None:
    """End this process by SIGKILL before its operation number ``count`` on files of a folder."""
    left = count

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        nonlocal left
        if event in FILE_EVENTS and str(arguments[0]).startswith(str(folder)):
            left -= 1
            if left < 0:
                os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(hook)


class Killer:
    """Sends signals to processes from the driver's, by their ids, and notes when."""

    def __init__(self, pids: Sequence[int], number: int):
        self.faults: list[CausedFault] = []
        self._pids, self._number = pids, number
        self._threads: list[threading.Thread] = []
        self._ended = threading.Event()

    def kill_later(self, worker: int, delay: float) -> None:
        """Kill the process of a Dask worker ``delay`` seconds from now."""
        self._start(self._kill, worker, delay)

    def kill_after(self, happened: Callable[[], object], worker: int, delay: float) -> None:
        """Kill the process of a Dask worker ``delay`` seconds after another, killed here or as ``happened`` says."""
        self._start(self._wait, happened, worker, delay)

    def end(self) -> None:
        """Kill nothing any more."""
        self._ended.set()
        for thread in self._threads:
            thread.join()

    def _start(self, action: Any, *arguments: Any) -> None:
        self._threads.append(threading.Thread(target=action, args=arguments, daemon=True))
        self._threads[-1].start()

    def _wait(self, happened: Callable[[], object], worker: int, delay: float) -> None:
        while not self.faults and not happened():
            if self._ended.wait(CHECK_SECONDS):
                return
        self._kill(worker, delay)

    def _kill(self, worker: int, delay: float) -> None:
        if not self._ended.wait(delay):
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._pids[worker], self._number)
            self.faults.append(CausedFault("kill", str(worker), time.monotonic()))


class KillAt(Extension):
    """Kills the process of a Dask worker soon after a pause of training has begun, once."""

    def __init__(self, trigger: Trigger, killer: Killer, worker: int, delay: float):
        self.trigger = trigger
        self._killer, self._worker, self._delay = killer, worker, delay
        self._is_done = False

    def run(self, loop: LoopView) -> None:
        if not self._is_done:
            self._is_done = True
            self._killer.kill_later(self._worker, self._delay)


class KillSoon(Extension):
    """Kills the process of a Dask worker a while after training has begun."""

    pauses = False

    def __init__(self, killer: Killer, worker: int, delay: float):
        self.trigger = AtEnd()
        self._killer, self._worker, self._delay = killer, worker, delay

    def start(self, loop: LoopView) -> None:
        self._killer.kill_later(self._worker, self._delay)

    def run(self, loop: LoopView) -> None: ...

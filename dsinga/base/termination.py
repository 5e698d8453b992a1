"""Turns signals such as SIGTERM into exceptions, so that a run can write a checkpoint before its process ends."""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import logging
import os
import select
import signal
import sys
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from dsinga.base.advice import in_notebook
from dsinga.base.errors import Terminated

_log = logging.getLogger(__name__)

# The signals by which queues, shells and limits end a process: SIGTERM by all; SIGHUP by terminals that are closed;
# SIGUSR1 by SGE and SLURM's --signal, SIGUSR2 by LSF's run limit and SGE; SIGXCPU by limits of CPU time;
# SIGQUIT by the quit key and containers; SIGALRM by wrappers that limit time. Windows has SIGTERM only.
NAMES = ("SIGTERM", "SIGHUP", "SIGUSR1", "SIGUSR2", "SIGQUIT", "SIGXCPU", "SIGALRM")
TERMINATIONS = [getattr(signal, name) for name in NAMES if hasattr(signal, name)]
# A program's own handlers for these end it. Those for the others may do anything, such as showing where it stands.
ENDING = [number for number in TERMINATIONS if signal.Signals(number).name in ("SIGTERM", "SIGHUP")]
# More than the bytes of the C structure ``sigaction``, whose first field is the handler.
SIGACTION_BYTES = 512

# What these signals set besides raising Terminated, and those that raise it now.
_events: list[threading.Event] = []
_raised: list[int] = []

_lock = threading.Lock()
_pipe_events: list[threading.Event] = []  # of the contexts
_open: list[SignalPipes] = []  # the pipes while there are contexts


class SignalPipes:
    """Notices signals through pipes, which works from any thread."""

    def __init__(self, numbers: Iterable[int]):
        self.received: list[int] = []
        self._writing: dict[int, int] = {}  # by signal, the end of its pipe that the handler writes to
        reading: dict[int, int] = {}
        for number in numbers:
            read, self._writing[number] = os.pipe()
            reading[read] = number
            faulthandler.register(number, file=self._writing[number], all_threads=False)
        self._thread = threading.Thread(target=self._read, args=(reading,), name="dsinga-signals", daemon=True)
        self._thread.start()

    def _read(self, reading: dict[int, int]) -> None:
        """Set the events of all waiting contexts when a signal comes."""
        while reading:
            for end in select.select([*reading], [], [])[0]:
                if not os.read(end, 1 << 16):
                    os.close(end)
                    del reading[end]
                elif not self.received:
                    self.received.append(reading[end])
                    name = signal.Signals(reading[end]).name
                    _log.warning("%s: training in threads ends after the rounds in flight", name)
                    for event in [*_pipe_events]:
                        event.set()

    def uninstall(self) -> None:
        """Restore the signals' earlier handlers."""
        for number, end in self._writing.items():
            faulthandler.unregister(number)
            os.close(end)
        self._writing = {}

    def close(self) -> None:
        """Restore the signals' earlier handlers, and end the process by the first signal that has come."""
        self.uninstall()
        self._thread.join(5)  # a process that was forked by code in C may have a pipe, too
        for number in self.received:
            signal.raise_signal(number)


@contextlib.contextmanager
def seen_signals(numbers: Iterable[int], event: threading.Event) -> Iterator[None]:
    """Let signals set ``event`` within the context; after the last such context they end the process."""
    with _lock:
        if not _open:
            _open.append(SignalPipes(numbers))
        _pipe_events.append(event)
        pipes = _open[0]
        if pipes.received:
            event.set()
    try:
        yield
    except BaseException as error:
        if pipes.received:
            _log.warning("the run is ended: %s", error)
        raise
    finally:
        with _lock:
            _pipe_events.remove(event)
            if not _pipe_events:
                _open.pop().close()


def _uninstall_in_child() -> None:
    for pipes in _open:
        pipes.uninstall()


if hasattr(os, "register_at_fork"):  # a process that is forked meanwhile is ended by its signals
    os.register_at_fork(after_in_child=_uninstall_in_child)


@contextlib.contextmanager
def installed_handler(numbers: Iterable[int], handler: Callable[[int, Any], Any]) -> Iterator[None]:
    """Handle signals by ``handler`` within the context, except in forked processes."""
    process, earlier = os.getpid(), {number: signal.getsignal(number) for number in numbers}

    def handle(number: int, frame: Any) -> None:
        if os.getpid() == process:
            handler(number, frame)
        else:
            signal.signal(number, earlier[number])
            os.kill(os.getpid(), number)

    for number in earlier:
        signal.signal(number, handle)
    try:
        yield
    finally:
        for number, previous in earlier.items():
            signal.signal(number, previous)


@contextlib.contextmanager
def raised_terminations() -> Iterator[list[int]]:
    """Raise Terminated when a signal of TERMINATIONS arrives; give the list of signals so far.

    Python discards exceptions raised in finalizers, so Terminated is raised at the end of the context at the latest.

    Signals that the program handles or ignores, as after ``nohup``, are left to it. This does nothing in a notebook or
    outside the main thread.
    """
    applies = threading.current_thread() is threading.main_thread() and not in_notebook()
    numbers = [number for number in TERMINATIONS if applies and _ends_process(number)]
    received: list[int] = []
    propagating: weakref.WeakSet[Terminated] = weakref.WeakSet()  # a discarded exception leaves it

    def terminate(number: int, frame: Any) -> None:
        received.append(number)
        for event in _events:
            event.set()
        if propagating:
            return  # it must not cut off what cleans up
        error = Terminated()
        propagating.add(error)
        try:
            raise error
        finally:
            del error  # else this frame keeps it alive

    with installed_handler(numbers, terminate), _noted(numbers):
        try:
            yield received
        except BaseException as error:
            if received and not isinstance(error, Terminated):
                raise Terminated(str(error)) from error
            raise
        if received:
            raise Terminated("the run was complete")


@contextlib.contextmanager
def _noted(numbers: list[int]) -> Iterator[None]:
    earlier = [*_raised]
    _raised.extend(numbers)
    try:
        yield
    finally:
        _raised[:] = earlier


def ending_signals() -> set[int]:
    """Return the signals that end the program now, so that a caller can write a checkpoint first."""
    return {*_raised, *ENDING}


@contextlib.contextmanager
def deferred_terminations(cancelled: threading.Event) -> Iterator[None]:
    """Let a signal of TERMINATIONS end the work within the context first, then the process.

    ``cancelled`` is set then, for other threads and for code that missed the exception.
    """
    received: list[int] = []
    _events.append(cancelled)
    in_thread = threading.current_thread() is not threading.main_thread()
    multiprocessing = sys.modules.get("multiprocessing")  # a process that it has started has it imported
    is_child = multiprocessing is not None and multiprocessing.parent_process() is not None
    is_program = not is_child and not in_notebook() and hasattr(faulthandler, "register")
    seen = seen_signals(filter(_ends_process, TERMINATIONS), cancelled) if in_thread and is_program else None
    try:
        with seen or contextlib.nullcontext(), raised_terminations() as received:
            yield
    except Terminated as terminated:
        if received:
            _log.warning("the run is ended: %s", str(terminated) or signal.Signals(received[0]).name)
            for stream in (sys.stdout, sys.stderr):
                with contextlib.suppress(OSError, ValueError):  # a closed terminal or stream
                    stream.flush()
            signal.raise_signal(received[0])
        raise
    finally:
        _events.remove(cancelled)


def ignore_terminations() -> None:
    """Ignore signals that would end the process, because it is about to exit."""
    for number in TERMINATIONS:
        if _ends_process(number):
            signal.signal(number, signal.SIG_IGN)


def _ends_process(number: int) -> bool:
    """Whether a signal would end the process, because neither Python nor a C library handles it."""
    if signal.getsignal(number) != signal.SIG_DFL:
        return False
    if not hasattr(signal, "pthread_kill"):
        return True  # Windows, where there is nobody to ask
    action = (ctypes.c_void_p * (SIGACTION_BYTES // ctypes.sizeof(ctypes.c_void_p)))()
    failed = ctypes.CDLL(None).sigaction(number, None, action)
    return bool(failed) or not action[0]  # a null pointer is SIG_DFL

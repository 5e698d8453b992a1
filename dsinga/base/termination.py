"""SIGTERM and SIGHUP as exceptions, so that what runs in the main thread ends in order before they end the process."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import sys
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from dsinga.base.advice import in_notebook
from dsinga.base.errors import Terminated

_log = logging.getLogger(__name__)

# The signals by which batch systems and terminals that are closed end a process. Windows has no SIGHUP.
TERMINATIONS = [getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name)]

# What SIGTERM and SIGHUP set besides raising Terminated.
_events: list[threading.Event] = []


@contextlib.contextmanager
def installed_handler(numbers: Iterable[int], handler: Callable[[int, Any], Any]) -> Iterator[None]:
    """Handle signals by ``handler`` within the context; processes that are forked there keep the earlier handlers."""
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
    """Raise Terminated where SIGTERM or SIGHUP comes within the context; give the list of those that have come.

    Python discards exceptions that are raised in finalizers and callbacks of the garbage collector. The events of
    :func:`deferred_terminations` are set, too, and Terminated is raised at the end of the context at the latest.

    A signal for which the program has a handler, or which it ignores, as after ``nohup``, is left to it. In other
    threads than the main one, which gets the signals, and in a notebook, whose kernel is ended by others, this does
    nothing.
    """
    applies = threading.current_thread() is threading.main_thread() and not in_notebook()
    numbers = [number for number in TERMINATIONS if applies and signal.getsignal(number) == signal.SIG_DFL]
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

    with installed_handler(numbers, terminate):
        try:
            yield received
        except BaseException as error:
            if received and not isinstance(error, Terminated):
                raise Terminated(str(error)) from error
            raise
        if received:
            raise Terminated("the run was complete")


@contextlib.contextmanager
def deferred_terminations(cancelled: threading.Event) -> Iterator[None]:
    """On SIGTERM or SIGHUP, end the code in the context in order, then end the process by the same signal.

    ``cancelled`` is set then, for code that has missed the exception. The log says what has been done by then. See
    :func:`raised_terminations` for when this does nothing.
    """
    received: list[int] = []
    _events.append(cancelled)
    try:
        with raised_terminations() as received:
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

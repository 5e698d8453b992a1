"""SIGTERM and SIGHUP as exceptions, so that what runs in the main thread ends in order before they end the process."""

from __future__ import annotations

import contextlib
import logging
import signal
import sys
import threading
from collections.abc import Iterator
from typing import Any

from dsinga.advice import in_notebook
from dsinga.errors import Terminated

_log = logging.getLogger(__name__)

# The signals by which batch systems and terminals that are closed end a process. Windows has no SIGHUP.
TERMINATIONS = [getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name)]


@contextlib.contextmanager
def raised_terminations() -> Iterator[list[int]]:
    """Raise Terminated where SIGTERM or SIGHUP comes within the context; give the list of those that have come.

    A signal for which the program has a handler, or which it ignores, as after ``nohup``, is left to it. In other
    threads than the main one, which gets the signals, and in a notebook, whose kernel is ended by others, this does
    nothing.
    """
    applies = threading.current_thread() is threading.main_thread() and not in_notebook()
    numbers = [number for number in TERMINATIONS if applies and signal.getsignal(number) == signal.SIG_DFL]
    received: list[int] = []

    def terminate(number: int, frame: Any) -> None:
        for each in numbers:
            signal.signal(each, signal.SIG_IGN)  # another one must not cut off what cleans up
        received.append(number)
        raise Terminated

    for number in numbers:
        signal.signal(number, terminate)
    try:
        yield received
    finally:
        for number in numbers:
            signal.signal(number, signal.SIG_DFL)


@contextlib.contextmanager
def deferred_terminations() -> Iterator[None]:
    """Let SIGTERM and SIGHUP end what runs within the context in order, and then the process, as they do without it.

    The log says what has been done by then. See :func:`raised_terminations` for when this does nothing.
    """
    received: list[int] = []
    try:
        with raised_terminations() as received:
            yield
    except Terminated as terminated:
        if received:
            _log.warning("the run is ended: %s", str(terminated) or signal.Signals(received[0]).name)
            for stream in (sys.stdout, sys.stderr):
                with contextlib.suppress(OSError, ValueError):  # the terminal is gone, or the program has closed it
                    stream.flush()
            signal.raise_signal(received[0])
        raise

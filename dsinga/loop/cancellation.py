"""Ends a run in order, with a checkpoint, when another thread or a signal cancels it."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import threading
from collections.abc import Callable, Iterator
from typing import Any

from dsinga.base.advice import is_command
from dsinga.base.errors import Cancelled, RunError
from dsinga.base.termination import ending_signals, installed_handler

_log = logging.getLogger(__name__)

# Why training has stopped where its user has cancelled it.
CANCELLED = "the run was cancelled"
# Exit status of a command that a second SIGINT has ended.
INTERRUPTED_STATUS = 130

Handler = Callable[[int, Any], Any]


class Cancellation:
    """A request to end a run, made by another thread or a signal.

    Attributes:
        event: set if the run is to end.
        ends_in_order: whether the training loop stops by itself and keeps the result.
        ending: how it keeps the result, for the log: "with a checkpoint".
    """

    def __init__(self, event: threading.Event | None = None):
        self.event = event or threading.Event()
        self.ends_in_order = False
        self.ending = "with a checkpoint"

    def check(self) -> None:
        """Raise Cancelled if the run must end at once, rather than in order."""
        if not self.ends_in_order:
            self.check_idle()

    def check_idle(self) -> None:
        """Raise Cancelled if the run must end, where there is no training to end in order."""
        if self.event.is_set():
            raise Cancelled(CANCELLED)


@contextlib.contextmanager
def deferred_interrupts(cancellation: Cancellation) -> Iterator[None]:
    """Let Ctrl-C and SIGTERM end training in order first, with a checkpoint, and then take effect.

    Afterwards the program's handler is called. Python's raises KeyboardInterrupt, with a text on how to go on. A second
    SIGINT, and a signal at another time, take effect at once. A second signal of TERMINATIONS is ignored: batch systems
    send it to several processes, which may pass it on.

    Signals without a Python handler are left alone. Outside the main thread this does nothing.
    """
    deferred: list[int] = []
    raised: list[int] = []
    handlers: dict[int, Handler] = {}

    def handle(number: int, frame: Any) -> None:
        if deferred and number != signal.SIGINT:
            return
        if deferred and is_command():
            os._exit(INTERRUPTED_STATUS)  # the end in order waits for threads, perhaps in a step that takes minutes
        if deferred or not cancellation.ends_in_order:
            try:
                handlers[number](number, frame)
            except BaseException:
                raised.append(number)
                cancellation.event.set()  # ends the run where Python discards the exception, as in a finalizer
                raise
            return
        deferred.append(number)
        cancellation.event.set()
        name = signal.Signals(number).name
        ending = cancellation.ending
        _log.warning("%s: training ends after the rounds in flight, %s; Ctrl-C ends it at once", name, ending)

    if threading.current_thread() is threading.main_thread():
        numbers = {signal.SIGINT, *ending_signals()}
        handlers = {number: handler for number in numbers if callable(handler := _python_handler(number))}
    failure: RunError | None = None
    with installed_handler(handlers, handle):
        try:
            yield
        except RunError as error:
            if not (deferred or raised):
                raise
            failure = error
    for number in (deferred or raised)[:1]:
        _take_effect(handlers[number], number, str(failure or "the run was complete").removeprefix(f"{CANCELLED}; "))
    if failure:
        raise failure


def _python_handler(number: int) -> Any:
    handler = signal.getsignal(number)
    return None if isinstance(handler, int) else handler


def _take_effect(handler: Handler, number: int, failure: str) -> None:
    """Call the handler of a signal that was deferred; ``failure`` says how the run ended."""
    try:
        handler(number, None)
    except KeyboardInterrupt as interrupt:
        raise type(interrupt)(failure) from None
    except SystemExit:  # as Ctrl-C ends a program that has imported dask_jobqueue
        _log.warning("the run is ended: %s", failure)
        raise

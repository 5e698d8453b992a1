"""Signals that would end the process, for threads other than the main one, which alone runs Python's handlers."""

from __future__ import annotations

import contextlib
import faulthandler
import logging
import os
import select
import signal
import threading
from collections.abc import Iterable, Iterator

_log = logging.getLogger(__name__)

_lock = threading.Lock()
_events: list[threading.Event] = []  # of the contexts
_open: list[SignalPipes] = []  # the pipes while there are contexts


class SignalPipes:
    """Pipes to which signals are written: the handlers of ``faulthandler``, in C, may be installed by any thread.

    Attributes:
        received: the signals that have come.
    """

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
        """Set the events of all contexts when a signal comes, until the pipes are closed."""
        while reading:
            for end in select.select([*reading], [], [])[0]:
                if not os.read(end, 1 << 16):
                    os.close(end)
                    del reading[end]
                elif not self.received:
                    self.received.append(reading[end])
                    name = signal.Signals(reading[end]).name
                    _log.warning("%s: training in threads ends after the rounds in flight", name)
                    for event in [*_events]:
                        event.set()

    def uninstall(self) -> None:
        """Let the signals do what they did before."""
        for number, end in self._writing.items():
            faulthandler.unregister(number)
            os.close(end)
        self._writing = {}

    def close(self) -> None:
        """Let the signals do what they did before, and end the process by the first that has come."""
        self.uninstall()
        self._thread.join(5)  # a process that was forked by code in C may have a pipe, too
        for number in self.received:
            signal.raise_signal(number)


@contextlib.contextmanager
def seen_signals(numbers: Iterable[int], event: threading.Event) -> Iterator[None]:
    """Set ``event`` when one of some signals comes; it ends the process when no such context is left in any thread."""
    with _lock:
        if not _open:
            _open.append(SignalPipes(numbers))
        _events.append(event)
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
            _events.remove(event)
            if not _events:
                _open.pop().close()


def _uninstall_in_child() -> None:
    for pipes in _open:
        pipes.uninstall()


if hasattr(os, "register_at_fork"):  # a process that is forked meanwhile is ended by its signals
    os.register_at_fork(after_in_child=_uninstall_in_child)

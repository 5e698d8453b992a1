"""An iteration that halts between its segments, so that each can be a task of its own: graph grain.

The algorithm that runs is the same as in a round; only its mail is another. What it sends is kept for the task to hand
on, what it receives the task has brought, and after the last thing that a segment sends (or, where it sends nothing,
before what the next one receives) the iteration halts until the next task comes. It runs in the partition's own thread,
which is idle whenever no task of the partition runs.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from typing import Any, NamedTuple

from dsinga.errors import RunError
from dsinga.layers.context import Peers
from dsinga.serial_executor import SerialExecutor

Iterate = Callable[[Peers], Any]


class Halt(NamedTuple):
    """Where a segment has ended: what it sends, by key, and the outcome of the iteration if that has ended too."""

    sends: dict[str, Any]
    outcome: Any = None


class Stepper:
    """Runs iterations segment by segment; a :class:`Peers` to what runs within, used by one task at a time."""

    def __init__(self, thread: SerialExecutor):
        self._thread = thread
        self._go, self._halted = threading.Semaphore(0), threading.Semaphore(0)
        self._running: Future[Any] | None = None
        self._letters: dict[str, Any] = {}
        self._sends: dict[str, Any] = {}
        self._left = 0
        self._closed: str | None = None

    def begin(self, iterate: Iterate) -> None:
        """Make ``iterate`` the present iteration; it starts with the first segment."""
        assert self._running is None, "the iteration before has not ended"
        self._check_open()
        self._running = self._thread.submit(self._run, iterate)
        self._running.add_done_callback(lambda _: self._halted.release())

    def advance(self, letters: Mapping[str, Any], sends: int, last: bool) -> Halt:
        """Run the next segment, which receives ``letters`` and halts after so many sends; the last runs to the end.

        One without sends halts at the first thing it has not received. Raises what the iteration raises, and what
        :meth:`close` was given after that.
        """
        assert self._running is not None, "no iteration has begun"
        self._check_open()
        self._letters.update(letters)
        self._sends, self._left = {}, -1 if last else sends
        self._go.release()
        self._halted.acquire()
        if not self._running.done():
            self._check_open()
            return Halt(self._sends)
        running, self._running = self._running, None
        outcome = running.result()
        if not last:
            raise RunError("the iteration ended before its last segment: graph grain is for back-propagation alone")
        return Halt(self._sends, outcome)

    def send(self, location: int, key: str, array: Any) -> None:
        """Keep an array, which the task hands to the receiver's task; halt after the last send of the segment."""
        self._sends[key] = array
        self._left -= 1
        if not self._left:
            self._halt()

    def receive(self, key: str) -> Any:
        """Return an array that the task has received; halt if it belongs to the next segment."""
        if key not in self._letters and not self._left:
            self._halt()
        if key not in self._letters:
            raise RunError(f"{key!r} is wanted by a segment that does not receive it: graph grain is for kBP alone")
        return self._letters.pop(key)

    def close(self, message: str) -> None:
        """End an iteration that has halted: it raises RunError(``message``), as later calls do."""
        self._closed = message
        self._go.release()

    def _run(self, iterate: Iterate) -> Any:
        self._take_turn()
        return iterate(self)

    def _halt(self) -> None:
        self._halted.release()
        self._take_turn()

    def _take_turn(self) -> None:
        self._go.acquire()
        self._check_open()

    def _check_open(self) -> None:
        if self._closed:
            raise RunError(self._closed)

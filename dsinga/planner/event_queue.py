"""A queue of events in simulated time, with processes that wait for events or for time to pass."""

from __future__ import annotations

import heapq
import itertools
from collections import defaultdict
from collections.abc import Callable, Generator, Hashable

Process = Generator["float | Event", None, None]  # yields the seconds, or the event, that it waits for


class Event:
    """Something that happens once; ``waiting`` are called when it does."""

    def __init__(self) -> None:
        self.done = False
        self.waiting: list[Callable[[], None]] = []


class EventQueue:
    """Runs processes and actions in the order of simulated time; ``now`` is that time in seconds."""

    def __init__(self) -> None:
        self.now = 0.0
        self._actions: list[tuple[float, int, Callable[[], None]]] = []
        self._count = itertools.count()
        self._events: dict[Hashable, Event] = defaultdict(Event)

    def at(self, time: float, action: Callable[[], None]) -> None:
        """Call ``action`` at a time."""
        heapq.heappush(self._actions, (time, next(self._count), action))

    def event(self, key: Hashable) -> Event:
        """Return the event of a key."""
        return self._events[key]

    def fire(self, key: Hashable) -> None:
        """Mark the event of a key as done and resume the processes that wait for it."""
        event = self._events[key]
        event.done = True
        waiting, event.waiting = event.waiting, []
        for resume in waiting:
            resume()

    def resume(self, process: Process) -> None:
        """Run a process until it waits for time to pass, or for an event that is not done."""
        for awaited in process:
            if isinstance(awaited, float):
                self.at(self.now + awaited, lambda: self.resume(process))
                return
            if not awaited.done:
                awaited.waiting.append(lambda: self.resume(process))
                return

    def run(self) -> None:
        """Run until nothing is left to do."""
        while self._actions:
            self.now, _, action = heapq.heappop(self._actions)
            action()
        waiting = any(event.waiting for event in self._events.values())
        assert not waiting, "a process waits for an event that never happens"

"""Messages and collectives between the workers of a group that are threads, for one iteration.

A deadlock fails at once: where all workers that are not done wait for something that is not there, the error says what
each of them waits for.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

TIMEOUT_SECONDS = 10.0  # for one wait in an iteration of a small net


class Deadlock(AssertionError):
    """Every worker waits for something that no worker will send."""


class ThreadGroup:
    """The state that ``size`` workers share during one iteration."""

    def __init__(self, size: int):
        self.changed = threading.Condition()
        self.size = size
        self.running = set(range(size))
        self.waits: dict[int, tuple[str, Callable[[], bool]]] = {}
        self.messages: dict[tuple[int, str], Any] = {}
        self.sent: set[tuple[int, str]] = set()
        self.shares: dict[str, dict[int, Any]] = {}
        self.broken = False

    def until(self, worker: int, arrived: Callable[[], bool], what: str) -> None:
        """Wait, holding the lock, until ``arrived()``; raise Deadlock if that cannot happen any more."""
        self.waits[worker] = what, arrived
        self.changed.notify_all()
        while not arrived():
            if self.broken or self.deadlocked():
                self.broken = True
                self.changed.notify_all()
                raise Deadlock("; ".join(f"worker {k} waits for {wait}" for k, (wait, _) in sorted(self.waits.items())))
            assert self.changed.wait(TIMEOUT_SECONDS), f"worker {worker} has waited {TIMEOUT_SECONDS} s for {what}"
        del self.waits[worker]

    def deadlocked(self) -> bool:
        """Whether all workers that still run wait for something that is not there."""
        return all(worker in self.waits and not self.waits[worker][1]() for worker in self.running)

    def finish(self, worker: int, succeeded: bool) -> None:
        """Record that a worker is done. If it failed, the others fail too."""
        with self.changed:
            self.running.discard(worker)
            self.broken |= not succeeded
            self.changed.notify_all()

    def gather(self, worker: int, key: str, array: Any) -> list[Any]:
        """Return the arrays of all workers for ``key``, in the order of the workers."""
        with self.changed:
            shares = self.shares.setdefault(key, {})
            assert worker not in shares, f"worker {worker} gathers {key!r} twice"
            shares[worker] = array
            self.changed.notify_all()
            self.until(worker, lambda: len(shares) == self.size, f"the others' share of {key!r}")
            return [shares[number] for number in range(self.size)]


class ThreadPeers:
    """What one worker sends to the others and receives from them (``dsinga.layers.context.Peers``)."""

    def __init__(self, group: ThreadGroup, worker: int):
        self.group, self.worker = group, worker

    def send(self, location: int, key: str, array: Any) -> None:
        with self.group.changed:
            assert location != self.worker, f"worker {location} sends {key!r} to itself"
            assert (location, key) not in self.group.sent, f"{key!r} is sent to {location} twice"
            self.group.sent.add((location, key))
            self.group.messages[location, key] = array
            self.group.changed.notify_all()

    def receive(self, key: str) -> Any:
        messages, place = self.group.messages, (self.worker, key)
        with self.group.changed:
            self.group.until(self.worker, lambda: place in messages, f"the message {key!r}")
            return messages.pop(place)

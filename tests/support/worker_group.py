"""What the workers of a group share in one iteration, when they are threads: mail, and sums over the partitions.

It knows who waits for what. When all that are not yet done wait for something that is not there, nothing can come any
more: that fails at once and names everybody's wish.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

PATIENCE = 10.0  # seconds that one iteration of a small net may take


class Stuck(AssertionError):
    """Every worker waits for something that nobody is going to send."""


class Group:
    """What ``size`` workers have in common during one iteration."""

    def __init__(self, size: int):
        self.changed = threading.Condition()
        self.size = size
        self.running = set(range(size))
        self.wishes: dict[int, tuple[str, Callable[[], bool]]] = {}
        self.letters: dict[tuple[int, str], Any] = {}
        self.sent: set[tuple[int, str]] = set()
        self.shares: dict[str, dict[int, Any]] = {}
        self.broken = False

    def until(self, worker: int, there: Callable[[], bool], what: str) -> None:
        """Wait, holding the lock, until ``there()``; raise Stuck if that cannot happen any more."""
        self.wishes[worker] = what, there
        self.changed.notify_all()
        while not there():
            if self.broken or self.hopeless():
                self.broken = True
                self.changed.notify_all()
                raise Stuck("; ".join(f"worker {k} waits for {wish}" for k, (wish, _) in sorted(self.wishes.items())))
            assert self.changed.wait(PATIENCE), f"worker {worker} has waited {PATIENCE} s for {what}"
        del self.wishes[worker]

    def hopeless(self) -> bool:
        """Whether all that still run wait for something that is not there."""
        return all(worker in self.wishes and not self.wishes[worker][1]() for worker in self.running)

    def finish(self, worker: int, well: bool) -> None:
        """Note that a worker is done; one that failed takes the others with it."""
        with self.changed:
            self.running.discard(worker)
            self.broken |= not well
            self.changed.notify_all()

    def meet(self, worker: int, key: str, array: Any) -> list[Any]:
        """Return the arrays that all workers give under ``key``, in their order."""
        with self.changed:
            shares = self.shares.setdefault(key, {})
            assert worker not in shares, f"worker {worker} gives {key!r} twice"
            shares[worker] = array
            self.changed.notify_all()
            self.until(worker, lambda: len(shares) == self.size, f"the others' share of {key!r}")
            return [shares[other] for other in range(self.size)]


class WorkerMail:
    """The mail of one worker (``dsinga.layers.context.Peers``)."""

    def __init__(self, group: Group, worker: int):
        self.group, self.worker = group, worker

    def send(self, location: int, key: str, array: Any) -> None:
        with self.group.changed:
            assert location != self.worker, f"worker {location} sends {key!r} to itself"
            assert (location, key) not in self.group.sent, f"{key!r} is sent to {location} twice"
            self.group.sent.add((location, key))
            self.group.letters[location, key] = array
            self.group.changed.notify_all()

    def receive(self, key: str) -> Any:
        letters, own = self.group.letters, (self.worker, key)
        with self.group.changed:
            self.group.until(self.worker, lambda: own in letters, f"the letter {key!r}")
            return letters.pop(own)

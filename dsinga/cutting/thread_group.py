"""Runs one iteration of a cut net in threads of this process, one for each worker, without servers.

Collectives and messages are dictionaries behind one lock. A deadlock raises an error at once, which says what each
worker waits for.
"""

from __future__ import annotations

import contextlib
import functools
import operator
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor, wait
from typing import Any, TypeVar

from dsinga.base.errors import RunError
from dsinga.cutting.partitioned import PartitionedNet
from dsinga.layers import Context, Rows
from dsinga.layers.interface.context import cut_evenly
from dsinga.ops import Ops

T = TypeVar("T")

TIMEOUT_SECONDS = 60.0  # of one wait for another worker


class Deadlock(RunError):
    """Raised when all workers wait for arrays that no worker will send."""


def run_in_threads(
    net: PartitionedNet, ops: Ops, compute: Callable[[int, Context], T], *, seed: int = 0, step: int = 0,
    rows: Sequence[Rows] | None = None, pool: Executor | None = None,
) -> list[T]:  # fmt: skip
    """Run ``compute(worker, ctx)`` for all workers of a cut net at once; return the results in order.

    ``rows`` are each worker's rows, by default even ones. ``pool`` has at least as many idle threads as workers; by
    default this call starts them.

    Raises Deadlock, RunError if two workers disagree on what is sent, and the error of the first worker that fails.
    """
    size = len(net.locals)
    total = net.whole.nodes[0].layer.shape[0]
    rows = rows or cut_evenly(total, size)
    group = _ThreadGroup(size)

    def work(worker: int) -> T:
        ctx = Context(
            ops,
            net.whole.phase,
            rows[worker],
            seed,
            step,
            all_reduce=lambda key, array: functools.reduce(operator.add, group.gather(worker, key, array)),
            all_gather=lambda key, array: ops.xp.concatenate(group.gather(worker, key, array)),
            peers=_ThreadPeers(group, worker),
        )
        try:
            result = compute(worker, ctx)
        except BaseException:
            group.finish(worker, succeeded=False)
            raise
        group.finish(worker, succeeded=True)
        return result

    with contextlib.nullcontext(pool) if pool else ThreadPoolExecutor(size) as threads:
        futures = [threads.submit(work, worker) for worker in range(size)]
        wait(futures)
    failures = [error for future in futures if (error := future.exception())]
    for error in sorted(failures, key=lambda error: isinstance(error, Deadlock)):
        raise error
    if group.messages:
        raise RunError(f"no worker has received {', '.join(repr(key) for _, key in sorted(group.messages))}")
    return [future.result() for future in futures]


class _ThreadGroup:
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
        """Wait, holding the lock, until ``arrived()`` is true; raise Deadlock if it never can be."""
        self.waits[worker] = what, arrived
        self.changed.notify_all()
        while not arrived():
            if self.broken or self.deadlocked():
                self.broken = True
                self.changed.notify_all()
                raise Deadlock("; ".join(f"worker {k} waits for {wait}" for k, (wait, _) in sorted(self.waits.items())))
            if not self.changed.wait(TIMEOUT_SECONDS):
                raise RunError(f"worker {worker} has waited {TIMEOUT_SECONDS:g} s for {what}")
        del self.waits[worker]

    def deadlocked(self) -> bool:
        return all(worker in self.waits and not self.waits[worker][1]() for worker in self.running)

    def finish(self, worker: int, succeeded: bool) -> None:
        """Record that a worker is done; if it failed, the others fail, too."""
        with self.changed:
            self.running.discard(worker)
            self.broken |= not succeeded
            self.changed.notify_all()

    def gather(self, worker: int, key: str, array: Any) -> list[Any]:
        """Share an array under ``key`` with all workers; return theirs, in order."""
        with self.changed:
            shares = self.shares.setdefault(key, {})
            if worker in shares:
                raise RunError(f"worker {worker} gathers {key!r} twice")
            shares[worker] = array
            self.changed.notify_all()
            self.until(worker, lambda: len(shares) == self.size, f"the others' share of {key!r}")
            return [shares[number] for number in range(self.size)]


class _ThreadPeers:
    """Lets a worker exchange arrays with the other workers of its group."""

    def __init__(self, group: _ThreadGroup, worker: int):
        self._group, self._worker = group, worker

    def send(self, location: int, key: str, array: Any) -> None:
        """Send an array to the worker ``location``."""
        group = self._group
        with group.changed:
            if location == self._worker or (location, key) in group.sent:
                raise RunError(f"worker {self._worker} sends {key!r} to worker {location}: to itself, or twice")
            group.sent.add((location, key))
            group.messages[location, key] = array
            group.changed.notify_all()

    def receive(self, key: str) -> Any:
        """Wait for an array sent to this worker under ``key``, and return it."""
        group, place = self._group, (self._worker, key)
        with group.changed:
            group.until(self._worker, lambda: place in group.messages, f"the message {key!r}")
            return group.messages.pop(place)

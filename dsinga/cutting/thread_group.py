"""Runs one iteration of a cut net in threads of this process, one for each worker, without servers.

Collectives and messages are dictionaries behind one lock. Workers may take turns, so that no more compute at a time
than there are cores. A deadlock raises an error at once, which says what each worker waits for. The threads may be some
of the workers only, such as the blocks of one Dask worker: then the group takes part in collectives as one.
"""

from __future__ import annotations

import contextlib
import functools
import operator
import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor, wait
from typing import Any, NoReturn, TypeVar

from dsinga.base.errors import RunError
from dsinga.cutting.partitioned import PartitionedNet
from dsinga.layers import Context, Rows
from dsinga.layers.interface.context import cut_evenly, single_worker
from dsinga.ops import Array, Ops
from dsinga.ops.block_sums import add_in_tree

T = TypeVar("T")
Collective = Callable[[str, Array], Array]  # of a key and a worker's array

TIMEOUT_SECONDS = 60.0  # of one wait for another worker


class Deadlock(RunError):
    """Raised when all workers wait for arrays that no worker will send."""


def run_in_threads(
    net: PartitionedNet, ops: Ops, compute: Callable[[int, Context], T], *, seed: int = 0, step: int = 0,
    rows: Sequence[Rows] | None = None, pool: Executor | None = None, at_once: int | None = None, in_tree: bool = False,
    in_memory: int | None = None,
) -> list[T]:  # fmt: skip
    """Run ``compute(worker, ctx)`` for all workers of a cut net at once; return the results in order.

    ``rows`` are each worker's rows, by default even ones. The other arguments are as for :func:`run_group`.
    """
    size = len(net.locals)
    total = net.whole.nodes[0].layer.shape[0]
    rows = rows or cut_evenly(total, size)

    def work(worker: int, peers: ThreadPeers) -> T:
        return compute(worker, peers.join(Context(ops, net.whole.phase, rows[worker], seed, step)))

    return run_group(range(size), work, pool=pool, at_once=at_once, in_tree=in_tree, in_memory=in_memory)


def run_group(
    workers: range, work: Callable[[int, ThreadPeers], T], *, outside: Context | None = None,
    pool: Executor | None = None, at_once: int | None = None, in_tree: bool = False, in_memory: int | None = None,
) -> list[T]:  # fmt: skip
    """Run ``work(worker, peers)`` for all workers at once, each in a thread; return the results in order.

    If one computes at a time, this thread computes them one by one, until one waits; then the others get threads.
    ``outside`` has the collectives with other workers of the same worker group, None if these are all. ``pool`` has at
    least as many idle threads as workers; by default this call starts them. ``at_once`` workers compute at a time, by
    default all. A worker's turn ends when it waits, and with :meth:`ThreadPeers.take_turns`. ``in_tree`` says in which
    order sums are added. Only ``in_memory`` workers may have begun, from the first that has not finished, by default
    all; then none may wait for a later one.

    Raises Deadlock, RunError if two workers disagree on what is sent, and the error of the first worker that fails.
    """
    group = _ThreadGroup(workers, at_once, outside, in_tree, in_memory)

    def run(worker: int) -> T:
        try:
            group.begin(worker)
            result = work(worker, ThreadPeers(group, worker))
        except BaseException:
            group.finish(worker, succeeded=False)
            raise
        group.finish(worker, succeeded=True)
        return result

    futures: dict[int, Future[T]] = {}
    with contextlib.nullcontext(pool) if pool else ThreadPoolExecutor(len(workers)) as threads:

        def start() -> None:
            futures.update({worker: threads.submit(run, worker) for worker in workers if worker not in futures})

        succeeds = True
        if at_once == 1:
            group.start_others = start  # called with the group's lock, before another thread can call it
            for worker in workers:
                if worker not in futures and succeeds:
                    futures[worker] = Future()
                    succeeds = _fulfil(futures[worker], run, worker)
        else:
            start()
        wait(futures.values())
    failures = [error for future in futures.values() if (error := future.exception())]
    for error in sorted(failures, key=lambda error: isinstance(error, Deadlock)):
        raise error
    if group.messages:
        raise RunError(f"no worker has received {', '.join(repr(key) for _, key in sorted(group.messages))}")
    return [futures[worker].result() for worker in workers]


def _fulfil(future: Future[T], run: Callable[[int], T], worker: int) -> bool:
    """Run a worker in this thread; return whether it has succeeded."""
    try:
        future.set_result(run(worker))
    except BaseException as error:
        future.set_exception(error)
        return False
    return True


class _ThreadGroup:
    """The workers' turns, messages and arrays, behind one lock; a worker computes, or waits for its turn or arrays."""

    def __init__(
        self, workers: range, at_once: int | None, outside: Context | None, in_tree: bool, in_memory: int | None
    ):
        self.lock = threading.Lock()
        self.workers, self._free = workers, at_once or len(workers)
        self.outside, self.in_tree = outside, in_tree
        self._wakes = {worker: threading.Condition(self.lock) for worker in workers}
        self._kept = in_memory or len(workers)
        self._queue = deque(workers[: self._kept])  # who waits for a turn, at first all that may begin, in order
        self._later = deque(workers[self._kept :])  # who begins when earlier workers have finished
        self.waits: dict[int, tuple[str, Callable[[], bool]]] = {}  # who waits for arrays
        self._unfinished = set(workers)
        self.messages: dict[tuple[int, str], Any] = {}
        self.sent: set[tuple[int, str]] = set()
        self._shares: dict[str, dict[int, Any]] = {}
        self._results: dict[str, Any] = {}  # of collectives
        self.broken = False
        self.caller = threading.get_ident()
        self.start_others: Callable[[], None] = lambda: None  # called before a worker waits

    def begin(self, worker: int) -> None:
        """Wait for the worker's first turn."""
        with self.lock:
            self._await_turn(worker)

    def take_turns(self, worker: int) -> None:
        """Let the workers go on that wait for their turn, then this one."""
        with self.lock:
            if self._queue:
                self._queue.append(worker)
                self._free += 1
                self._await_turn(worker)

    def until(self, worker: int, arrived: Callable[[], bool], what: str) -> None:
        """Wait, holding the lock, until ``arrived()`` is true; raise Deadlock if it never can be."""
        self.notice_arrivals()
        if arrived() and not self.broken:
            return  # without the end of the turn
        self.waits[worker] = what, arrived
        self._free += 1
        self._await_turn(worker)

    def notice_arrivals(self) -> None:
        """Let the workers queue for a turn whose arrays have arrived."""
        for worker, (_, arrived) in [*self.waits.items()]:
            if arrived():
                del self.waits[worker]
                self._queue.append(worker)
        self._give_turns()

    def _await_turn(self, worker: int) -> None:
        self._give_turns()
        while worker in self._queue or worker in self.waits or worker in self._later:
            self.start_others()
            if self.broken:
                self._raise_deadlock(worker)
            self._wakes[worker].wait(TIMEOUT_SECONDS)

    def _give_turns(self) -> None:
        while self._free and self._queue:
            self._free -= 1
            self._wakes[self._queue.popleft()].notify()
        self.broken |= len(self.waits) == len(self._unfinished) - len(self._later) > 0
        if self.broken:
            for wake in self._wakes.values():
                wake.notify()

    def _raise_deadlock(self, worker: int) -> NoReturn:
        text = "; ".join(f"worker {k} waits for {wait}" for k, (wait, _) in sorted(self.waits.items()))
        if self._later:
            text += f"; worker {self._later[0]} begins after them, to save memory: leave micro_batches out"
        raise Deadlock(text)

    def finish(self, worker: int, succeeded: bool) -> None:
        """Record that a worker is done. If it failed, the others fail too."""
        with self.lock:
            self._unfinished.remove(worker)
            self._free += 1
            self.broken |= not succeeded
            while self._later and not self.broken and self._later[0] < min(self._unfinished) + self._kept:
                self._queue.append(self._later.popleft())
            self._give_turns()

    def combine(
        self, worker: int, key: str, array: Any, add: Callable[[dict[int, Any]], Any], outside: Collective
    ) -> Any:
        """Return the result of a collective of all workers, those ``outside`` included; the last one makes it."""
        with self.lock:
            shares = self._shares.setdefault(key, {})
            if worker in shares:
                raise RunError(f"worker {worker} gathers {key!r} twice")
            shares[worker] = array
            if len(shares) < len(self.workers):
                self.until(worker, lambda: key in self._results, f"the others' share of {key!r}")
                return self._results[key]
        result = outside(key, add({number: shares[number] for number in self.workers}))
        with self.lock:
            self._results[key] = result
            self._shares[key] = dict.fromkeys(shares)
            self.notice_arrivals()
        return result


class ThreadPeers:
    """Sends arrays to, and receives arrays from, the other workers of a group."""

    def __init__(self, group: _ThreadGroup, worker: int):
        self._group, self.worker = group, worker

    def join(self, ctx: Context) -> Context:
        """Return a worker's context with the collectives and messages of the group."""
        outside = self._group.outside

        def collective(add: Callable[[dict[int, Any]], Any], outside: Collective) -> Collective:
            return lambda key, array: self._group.combine(self.worker, key, array, add, outside)

        def add_up(shares: dict[int, Any]) -> Any:
            if self._group.in_tree:
                return add_in_tree(shares, operator.add)
            return functools.reduce(operator.add, shares.values())

        return ctx.changed(
            all_reduce=collective(add_up, single_worker if outside is None else outside.all_reduce),
            all_gather=collective(
                lambda shares: ctx.ops.xp.concatenate([*shares.values()]),
                single_worker if outside is None else outside.all_gather,
            ),
            peers=self,
        )

    def send(self, location: int, key: str, array: Any) -> None:
        """Send an array to the worker ``location``."""
        group = self._group
        with group.lock:
            if location == self.worker or (location, key) in group.sent:
                raise RunError(f"worker {self.worker} sends {key!r} to worker {location}: to itself, or twice")
            group.sent.add((location, key))
            group.messages[location, key] = array
            group.notice_arrivals()

    @property
    def is_in_caller(self) -> bool:
        """Whether the worker computes in the thread that has called :func:`run_group`."""
        return threading.get_ident() == self._group.caller

    def take_turns(self) -> None:
        """Let the other workers go on that wait for their turn, before this one."""
        self._group.take_turns(self.worker)

    def receive(self, key: str) -> Any:
        """Wait for the array sent to this worker under ``key``, and return it."""
        group, place = self._group, (self.worker, key)
        with group.lock:
            group.until(self.worker, lambda: place in group.messages, f"the message {key!r}")
            return group.messages.pop(place)

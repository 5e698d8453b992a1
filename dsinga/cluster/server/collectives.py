"""All-reduce and all-gather between the workers of a group through a server, in the order of the workers."""

from __future__ import annotations

import functools
import operator
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future

import numpy as np

from dsinga.cluster.server.gradient_accumulator import Generations, describe_arrivals
from dsinga.ops.block_sums import add_in_tree


def add_up(arrays: Sequence[np.ndarray]) -> np.ndarray:
    """Return the sum of arrays, added in order."""
    return functools.reduce(np.add, arrays)


def join_rows(arrays: Sequence[np.ndarray]) -> np.ndarray:
    """Join the rows of arrays, one below the other."""
    return np.concatenate(arrays) if len(arrays) > 1 else arrays[0]


# By the kind of a collective, what makes its result of arrays in the order of their workers.
KINDS: Mapping[str, Callable[[Mapping[int, np.ndarray]], np.ndarray]] = {
    "all_reduce": lambda arrays: add_up([*arrays.values()]),
    "all_gather": lambda arrays: join_rows([*arrays.values()]),
    "tree_reduce": lambda arrays: add_in_tree(arrays, operator.add),
}


def combine(kind: str, arrays: Mapping[int, np.ndarray]) -> np.ndarray:
    """Return the read-only result of a collective of the workers' arrays."""
    result = KINDS[kind]({worker: arrays[worker] for worker in sorted(arrays)}).view()
    result.flags.writeable = False
    return result


class _Collective:
    """One all-reduce or all-gather, which waits for the arrays of its contributors."""

    def __init__(self, kind: str, contributors: Sequence[int]):
        self.kind, self.contributors = kind, contributors
        self.arrays: dict[int, np.ndarray] = {}
        self.future: Future[np.ndarray] = Future()
        self.future.set_running_or_notify_cancel()  # all workers share it: none may cancel it
        self.missing = {*contributors}
        self.departures = 0  # contributors that have gone on to another collective

    @property
    def complete(self) -> bool:
        return not self.missing

    def resolve(self) -> None:
        try:
            self.future.set_result(combine(self.kind, self.arrays))
        except Exception as error:  # such as shapes that do not fit: all workers get it, not only the last one
            self.future.set_exception(error)


class Collectives:
    """Combines arrays by key, one from each contributor, for each worker group of a shard. Thread-safe.

    A key is forgotten when each contributor has gone on to the next; until then a repeated call gets the same answer.
    Messages of other ``generations`` are refused.
    """

    def __init__(self, groups: Sequence[int], generations: Generations):
        self._several, self._generations = len(groups) > 1, generations
        self._lock = threading.Lock()
        self._collectives: dict[tuple[int, str], _Collective] = {}  # by group and key
        self._last: dict[tuple[int, int], str] = {}  # by group and worker: the key of its last collective
        self._error: BaseException | None = None

    def add(
        self, kind: str, key: str, group: int, worker: int, array: np.ndarray, contributors: Sequence[int],
        generation: int = 0, blocks: int = 1,
    ) -> Future[np.ndarray]:  # fmt: skip
        """Add the array of a worker; return a future of the contributors' arrays, combined in order.

        The result is one read-only array, shared by all workers. ``kind`` is "all_reduce" for the sum, "tree_reduce"
        for the sum of blocks in their tree, "all_gather" for joined rows. A group uses a key once in a run. The worker
        may stand for ``blocks`` contributors, from number ``worker`` on.
        """
        self._generations.check(group, generation, f"a collective of worker {worker} of group {group}")
        with self._lock:
            if self._error is not None:
                failed: Future[np.ndarray] = Future()
                failed.set_exception(self._error)
                return failed
            self._leave(group, worker, key, blocks)
            collective = self._collectives.setdefault((group, key), _Collective(kind, contributors))
            if worker in collective.arrays:
                return collective.future
            members = {*range(worker, worker + blocks)}
            assert members <= collective.missing, (key, worker, collective.contributors)
            collective.arrays[worker] = array
            collective.missing -= members
            complete = collective.complete  # read under the lock, so that it is true in one call only
        if complete:
            collective.resolve()
        return collective.future

    def _leave(self, group: int, worker: int, key: str, blocks: int) -> None:
        last = self._last.get((group, worker), key)
        self._last[group, worker] = key
        if last != key:
            collective = self._collectives[group, last]
            collective.departures += blocks
            if collective.departures == len(collective.contributors):
                del self._collectives[group, last]

    def restart(self, group: int, error: BaseException) -> None:
        """Fail the waiting collectives of a group that restarts."""
        with self._lock:
            waiting = [self._collectives.pop(place) for place in list(self._collectives) if place[0] == group]
            self._last = {place: key for place, key in self._last.items() if place[0] != group}
        _fail(waiting, error)

    def close(self, error: BaseException) -> None:
        """Fail every waiting and every later collective with ``error``."""
        with self._lock:
            self._error = self._error or error
            waiting = list(self._collectives.values())
            self._collectives.clear()
            self._last.clear()
        _fail(waiting, error)

    def pending(self) -> list[str]:
        """Name the waiting keys and their missing workers, for errors."""
        with self._lock:
            return [
                f"collective{f' of group {group}' if self._several else ''} {key!r}: "
                f"{describe_arrivals({*collective.contributors} - collective.missing, collective.contributors)}"
                for (group, key), collective in self._collectives.items()
                if not collective.complete
            ]


def _fail(collectives: Sequence[_Collective], error: BaseException) -> None:
    for collective in collectives:
        if not collective.complete:
            collective.future.set_exception(error)

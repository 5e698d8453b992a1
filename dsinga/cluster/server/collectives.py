"""Collectives over the workers of a group, by way of a server: sums and joined rows, in the order of the workers."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future

import numpy as np

from dsinga.cluster.server.gradient_accumulator import Generations, describe_arrivals


def add_up(arrays: Sequence[np.ndarray]) -> np.ndarray:
    """Return the sum of arrays, added in their order."""
    return functools.reduce(np.add, arrays)


def join_rows(arrays: Sequence[np.ndarray]) -> np.ndarray:
    """Return the rows of arrays one below the other."""
    return np.concatenate(arrays) if len(arrays) > 1 else arrays[0]


KINDS: Mapping[str, Callable[[Sequence[np.ndarray]], np.ndarray]] = {"all_reduce": add_up, "all_gather": join_rows}


class _Collective:
    """One collective, which waits for the arrays of its contributors."""

    def __init__(self, kind: str, contributors: Sequence[int]):
        self.contributors = contributors
        self.combine = KINDS[kind]
        self.arrays: dict[int, np.ndarray] = {}
        self.future: Future[np.ndarray] = Future()
        self.future.set_running_or_notify_cancel()  # all workers share it: none may cancel it
        self.departures = 0  # workers that have gone on to another collective

    @property
    def complete(self) -> bool:
        return len(self.arrays) == len(self.contributors)

    def resolve(self) -> None:
        try:
            result = self.combine([self.arrays[worker] for worker in self.contributors]).view()
            result.flags.writeable = False
            self.future.set_result(result)
        except Exception as error:  # such as shapes that do not fit: all workers get it, not only the last one
            self.future.set_exception(error)


class Collectives:
    """Combines arrays by key, one from each contributor. Thread-safe.

    A worker takes part in one collective at a time. So it has received the result when it asks for the next one,
    and a key is forgotten when each of its contributors has gone on; until then a repeated call gets the same answer.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._collectives: dict[str, _Collective] = {}
        self._last: dict[int, str] = {}
        self._error: BaseException | None = None

    def add(
        self, kind: str, key: str, worker: int, array: np.ndarray, contributors: Sequence[int]
    ) -> Future[np.ndarray]:
        """Take the array of ``worker``; the future resolves to the combination of all, in their order.

        The result is one read-only array, shared by all workers. ``kind``, one of :data:`KINDS`, and
        ``contributors`` are the same in all calls for one key.
        """
        with self._lock:
            if self._error is not None:
                failed: Future[np.ndarray] = Future()
                failed.set_exception(self._error)
                return failed
            self._leave(worker, key)
            collective = self._collectives.setdefault(key, _Collective(kind, contributors))
            if worker in collective.arrays:
                return collective.future
            assert worker in collective.contributors, (key, worker, collective.contributors)
            collective.arrays[worker] = array
            complete = collective.complete  # read under the lock, so that it is true in one call only
        if complete:
            collective.resolve()
        return collective.future

    def _leave(self, worker: int, key: str) -> None:
        last = self._last.get(worker, key)
        self._last[worker] = key
        if last != key:
            self._collectives[last].departures += 1
            if self._collectives[last].departures == len(self._collectives[last].contributors):
                del self._collectives[last]

    def close(self, error: BaseException) -> None:
        """Fail every collective that waits, and every later one, with ``error``."""
        with self._lock:
            self._error = self._error or error
            waiting = [collective.future for collective in self._collectives.values() if not collective.complete]
            self._collectives.clear()
            self._last.clear()
        for future in waiting:
            future.set_exception(error)

    def pending(self) -> list[str]:
        """Return texts that say which keys wait, and for which workers."""
        with self._lock:
            return [
                f"{key!r}: {describe_arrivals(collective.arrays, collective.contributors)}"
                for key, collective in self._collectives.items()
                if not collective.complete
            ]


class GroupCollectives:
    """The collectives of each of the worker groups of a shard. Thread-safe.

    ``generations`` are those of the groups from which messages are accepted.
    """

    def __init__(self, groups: Sequence[int], generations: Generations):
        self._generations = generations
        self._collectives = {group: Collectives() for group in groups}

    def add(
        self, kind: str, key: str, group: int, worker: int, array: np.ndarray, contributors: Sequence[int],
        generation: int = 0,
    ) -> Future[np.ndarray]:  # fmt: skip
        """Return a future of the arrays of the workers ``contributors`` of a group, combined in their order.

        ``kind`` is "all_reduce" for their sum, "all_gather" for their rows joined. A key is used once in a run by each
        group. Raises RunError for another generation of the group.
        """
        collectives = self._collectives[group]
        self._generations.check(group, generation, f"a collective of worker {worker} of group {group}")
        return collectives.add(kind, key, worker, array, contributors)

    def restart(self, group: int, error: BaseException) -> None:
        """Fail the collectives of a group that begins anew, as a generation that is accepted already."""
        collectives, self._collectives[group] = self._collectives[group], Collectives()
        collectives.close(error)

    def close(self, error: BaseException) -> None:
        """Fail every collective that waits, and every later one, with ``error``."""
        for collectives in self._collectives.values():
            collectives.close(error)

    def pending(self) -> list[str]:
        """Return texts that say which keys wait, and for which workers."""
        several = len(self._collectives) > 1
        return [
            f"collective{f' of group {group}' if several else ''} {line}"
            for group, collectives in self._collectives.items()
            for line in collectives.pending()
        ]

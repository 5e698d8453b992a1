"""Sums and gathers over partitions of a group that everyone waits for: what makes batch normalisation exact, say."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future

import numpy as np

from dsinga.server.gradient_accumulator import came

Fold = Callable[[Sequence[np.ndarray]], np.ndarray]


class _Collective:
    """One sum on its way."""

    def __init__(self, contributors: Sequence[int], fold: Fold):
        self.contributors = contributors
        self.fold = fold
        self.parts: dict[int, np.ndarray] = {}
        self.future: Future[np.ndarray] = Future()
        self.future.set_running_or_notify_cancel()  # all partitions share it: none may cancel it
        self.left = 0  # partitions that have gone on to another total

    @property
    def complete(self) -> bool:
        return len(self.parts) == len(self.contributors)

    def resolve(self) -> None:
        try:
            result = self.fold([self.parts[partition] for partition in self.contributors]).view()
            result.flags.writeable = False
            self.future.set_result(result)
        except Exception as error:  # such as shapes that do not fit: everybody learns of it, not only the last to come
            self.future.set_exception(error)


class Collectives:
    """Adds up, or joins, arrays by key, one from each contributor. Thread-safe.

    A partition asks for one total at a time. So it has received one when it asks for the next, and a key is forgotten
    when each of its contributors has gone on; until then a call that is sent again gets the same answer.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._totals: dict[str, _Collective] = {}
        self._last: dict[int, str] = {}
        self._error: BaseException | None = None

    def add(
        self, key: str, partition: int, array: np.ndarray, contributors: Sequence[int], fold: Fold
    ) -> Future[np.ndarray]:
        """Give the part of ``partition``; the future resolves to what ``fold`` makes of all, in their order.

        The result is one array for everybody, read-only. ``contributors`` and ``fold`` are the same in all calls for
        one key.
        """
        with self._lock:
            if self._error is not None:
                failed: Future[np.ndarray] = Future()
                failed.set_exception(self._error)
                return failed
            self._leave(partition, key)
            total = self._totals.setdefault(key, _Collective(contributors, fold))
            if partition in total.parts:
                return total.future
            assert partition in total.contributors, (key, partition, total.contributors)
            total.parts[partition] = array
            complete = total.complete  # looked at under the lock, so that it is true in one call only
        if complete:
            total.resolve()
        return total.future

    def _leave(self, partition: int, key: str) -> None:
        last = self._last.get(partition, key)
        self._last[partition] = key
        if last != key:
            self._totals[last].left += 1
            if self._totals[last].left == len(self._totals[last].contributors):
                del self._totals[last]

    def close(self, error: BaseException) -> None:
        """Fail every total that is waited for, and every later one, with ``error``."""
        with self._lock:
            self._error = self._error or error
            waiting = [total.future for total in self._totals.values() if not total.complete]
            self._totals.clear()
            self._last.clear()
        for future in waiting:
            future.set_exception(error)

    def pending(self) -> list[str]:
        """Say in words which keys are waited for, and for whom they wait."""
        with self._lock:
            waiting = [(key, total) for key, total in self._totals.items() if not total.complete]
            return [f"{key!r}: {came(total.parts, total.contributors)}" for key, total in waiting]


def add_up(parts: Sequence[np.ndarray]) -> np.ndarray:
    """Return the sum of the parts, added in their order."""
    return functools.reduce(np.add, parts)


def join_rows(parts: Sequence[np.ndarray]) -> np.ndarray:
    """Return the rows of the parts one below the other."""
    return np.concatenate(parts) if len(parts) > 1 else parts[0]

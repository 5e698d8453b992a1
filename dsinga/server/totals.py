"""Sums over the partitions of a group that everyone waits for: what batch normalisation needs to be exact."""

from __future__ import annotations

import functools
import threading
from concurrent.futures import Future

import numpy as np

from dsinga.server.slot import came


class _Total:
    """One sum on its way."""

    def __init__(self, contributors: int):
        self.parts: list[np.ndarray | None] = [None] * contributors
        self.future: Future[np.ndarray] = Future()
        self.future.set_running_or_notify_cancel()  # all partitions share it: none may cancel it
        self.missing = contributors
        self.left = 0  # partitions that have gone on to another total


class Totals:
    """Adds up arrays by key, one from each of ``contributors`` partitions. Thread-safe.

    A partition asks for one total at a time. So it has received one when it asks for the next, and a key is forgotten
    when every partition has gone on; until then a call that is sent again gets the same answer.
    """

    def __init__(self, contributors: int):
        self._contributors = contributors
        self._lock = threading.Lock()
        self._totals: dict[str, _Total] = {}
        self._last: dict[int, str] = {}
        self._error: BaseException | None = None

    def add(self, key: str, partition: int, array: np.ndarray) -> Future[np.ndarray]:
        """Give the part of ``partition``; the future resolves to the sum, added in the order of the partitions.

        The sum is one array for everybody, read-only.
        """
        with self._lock:
            if self._error is not None:
                failed: Future[np.ndarray] = Future()
                failed.set_exception(self._error)
                return failed
            self._leave(partition, key)
            total = self._totals.setdefault(key, _Total(self._contributors))
            if total.parts[partition] is not None:
                return total.future
            total.parts[partition] = array
            total.missing -= 1
            complete = total.missing == 0  # looked at under the lock, so that it is true in one call only
        if complete:
            _resolve(total)
        return total.future

    def _leave(self, partition: int, key: str) -> None:
        last = self._last.get(partition, key)
        self._last[partition] = key
        if last != key:
            self._totals[last].left += 1
            if self._totals[last].left == self._contributors:
                del self._totals[last]

    def close(self, error: BaseException) -> None:
        """Fail every total that is waited for, and every later one, with ``error``."""
        with self._lock:
            self._error = self._error or error
            waiting = [total.future for total in self._totals.values() if total.missing]
            self._totals.clear()
            self._last.clear()
        for future in waiting:
            future.set_exception(error)

    def pending(self) -> list[str]:
        """Say in words which totals are waited for, and for whom they wait."""
        with self._lock:
            return [f"total {key!r}: {came(total.parts)}" for key, total in self._totals.items() if total.missing]


def _resolve(total: _Total) -> None:
    try:
        result = functools.reduce(np.add, [part for part in total.parts if part is not None]).view()
        result.flags.writeable = False
        total.future.set_result(result)
    except ValueError as error:  # shapes that do not fit: everybody learns of it, not only the last to come
        total.future.set_exception(error)

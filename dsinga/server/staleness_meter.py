"""Counting how stale the gradients of asynchronous worker groups are."""

from __future__ import annotations

import threading
from typing import NamedTuple


class GroupStaleness(NamedTuple):
    """The staleness of a worker group's gradients: of ``updates`` of slices, the ``total`` and the ``largest``.

    The staleness of a gradient is the number of updates of a slice that came from others between the pull of the value
    with which the gradient was computed and the update by this gradient.
    """

    group: int
    updates: int
    total: int
    largest: int


class StalenessMeter:
    """Adds up the staleness of gradients by worker group, since it was last read. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._groups: dict[int, GroupStaleness] = {}

    def add(self, group: int, staleness: int) -> None:
        """Count an update of a slice by a gradient that is so stale."""
        with self._lock:
            _, updates, total, largest = self._groups.get(group, (group, 0, 0, 0))
            self._groups[group] = GroupStaleness(group, updates + 1, total + staleness, max(largest, staleness))

    def read(self) -> list[GroupStaleness]:
        """Return the counts of each worker group that has updated anything since the last call."""
        with self._lock:
            groups, self._groups = self._groups, {}
        return [groups[group] for group in sorted(groups)]

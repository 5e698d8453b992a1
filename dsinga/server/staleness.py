"""Bounded staleness: how far a worker group may be ahead of the slowest one."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from dsinga.server.served_slice import ServedSlice


class StalenessBound:
    """Says whether a slice may be had at a version: not before every running group is within ``staleness`` steps of it.

    Without a bound (None) it always may. The slowest group never waits for another, so that
    groups cannot wait for each other in a circle. Not thread-safe: the shard holds its lock.
    """

    def __init__(self, groups: Collection[int], staleness: int | None):
        self._running = set(groups)
        self._staleness = staleness

    def leave(self, group: int) -> None:
        """Wait no more for a group, which has finished or does not begin yet."""
        self._running.discard(group)

    def join(self, group: int, step: int, slots: Iterable[ServedSlice]) -> None:
        """Wait for a group from its step ``step`` on."""
        for slot in slots:
            assert slot.contributions[group].idle, (str(slot.spec.slice), group, step)
            slot.contributions[group].version = step
        self._running.add(group)

    def allows(self, slot: ServedSlice, version: int) -> bool:
        """Whether any group may have the value of a slice for its step ``version``."""
        return self._staleness is None or not self._behind(slot, version - self._staleness)

    def _behind(self, slot: ServedSlice, least: int) -> list[int]:
        return [group for group in sorted(self._running) if slot.contributions[group].version < least]

    def pending(self, slot: ServedSlice, group: int, version: int) -> list[str]:
        """Say in words for which groups a group waits before its step ``version``, where its own part is done."""
        if self._staleness is None or slot.contributions[group].version < version:
            return []
        return [
            f"slice {slot.spec.slice}: group {group} waits before step {version} for group {other}, which is at step "
            f"{slot.contributions[other].version}, more than the staleness of {self._staleness} behind"
            for other in self._behind(slot, version - self._staleness)
        ]

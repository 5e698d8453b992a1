"""Bounded staleness: limiting how many steps a worker group may be ahead of the slowest one."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from dsinga.server.served_slice import ServedSlice


class StalenessBound:
    """Lets groups have a slice at a version only when all running groups are at most ``staleness`` steps behind it.

    None means no bound. The slowest group never waits for another one, so groups cannot deadlock. Not thread-safe: the
    shard holds its lock.
    """

    def __init__(self, groups: Collection[int], staleness: int | None):
        self._running = set(groups)
        self._staleness = staleness

    def leave(self, group: int) -> None:
        """Do not wait for a group any longer, since it has finished or has not begun yet."""
        self._running.discard(group)

    def join(self, group: int, step: int, slots: Iterable[ServedSlice]) -> None:
        """Wait for a group from its step ``step`` on, which sets its version of all slices."""
        for slot in slots:
            assert slot.contributions[group].idle, (str(slot.spec.slice), group, step)
            slot.contributions[group].version = step
        self._running.add(group)

    def allows(self, slot: ServedSlice, version: int) -> bool:
        """Return whether a group may have the value of a slice for its step ``version``."""
        return self._staleness is None or not self._behind(slot, version - self._staleness)

    def _behind(self, slot: ServedSlice, minimum: int) -> list[int]:
        return [group for group in sorted(self._running) if slot.contributions[group].version < minimum]

    def pending(self, slot: ServedSlice, group: int, version: int) -> list[str]:
        """Return texts that say for which groups a group waits before its step ``version``, if it waits for others."""
        if self._staleness is None or slot.contributions[group].version < version:
            return []
        return [
            f"slice {slot.spec.slice}: group {group} waits before step {version} for group {other}, which is at step "
            f"{slot.contributions[other].version}, more than the staleness of {self._staleness} behind"
            for other in self._behind(slot, version - self._staleness)
        ]

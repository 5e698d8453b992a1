"""Bounded staleness: limiting how many steps a worker group may be ahead of the slowest one."""

from __future__ import annotations

from collections.abc import Collection

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

    def join(self, group: int) -> None:
        """Wait for a group that begins now, or begins anew."""
        self._running.add(group)

    def allows(self, served_slice: ServedSlice, version: int) -> bool:
        """Return whether a group may have the value of a slice for its step ``version``."""
        return self._staleness is None or not self._behind(served_slice, version - self._staleness)

    def _behind(self, served_slice: ServedSlice, minimum: int) -> list[int]:
        return [group for group in sorted(self._running) if served_slice.accumulators[group].version < minimum]

    def pending(self, served_slice: ServedSlice, group: int, version: int) -> list[str]:
        """Return texts that say for which groups a group waits before its step ``version``, if it waits for others."""
        if self._staleness is None or served_slice.accumulators[group].version < version:
            return []
        return [
            f"slice {served_slice.spec.slice}: group {group} waits before step {version} for group {other}, which is "
            f"at step {served_slice.accumulators[other].version}, more than the staleness of {self._staleness} behind"
            for other in self._behind(served_slice, version - self._staleness)
        ]

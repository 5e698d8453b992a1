"""Who waits for which slices of a shard, and for which version of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from typing import Any

from dsinga.errors import RunError
from dsinga.server.served_slice import ServedSlice
from dsinga.server.staleness import StalenessBound

Take = Callable[[ServedSlice], Any]


class Pull:
    """Somebody waits until ``group`` may have some slices at ``version``; without a group, until they have a value.

    ``take`` is what is wanted of each. It is taken as soon as a slice is there, under the shard's lock; if it is
    ``late``, when all are there, without the lock. If it is to be ``exact``, no slice may be past the version.
    """

    def __init__(self, group: int | None, version: int, take: Take, late: bool = False, exact: bool = False):
        self.group, self.version = group, version
        self.missing = 0  # slices that are not there yet
        self.future: Future[dict[int, Any]] = Future()
        self.future.set_running_or_notify_cancel()  # so that resolving it never meets a cancelled future
        self._take, self._late, self.exact = take, late, exact
        self._taken: dict[int, Any] = {}
        self._failure: Exception | None = None  # of taking a slice: there may be no memory for a copy

    def reached(self, slot: ServedSlice, pace: StalenessBound) -> bool:
        """Whether a slice is where it is waited for."""
        if self.group is None or not slot.filled:
            return slot.filled
        return slot.contributions[self.group].version >= self.version and pace.allows(slot, self.version)

    def check(self, slot: ServedSlice) -> None:
        """Raise RunError if a slice is past the version, or just leaves it."""
        if self.group is not None and slot.filled:
            at = slot.contributions[self.group]
            if at.version > self.version or at.version == self.version and at.complete:
                raise RunError(f"slice {slot.spec.slice} is already past version {self.version}")

    def deliver(self, slot: ServedSlice) -> bool:
        """Take a slice that has reached the version; True if it was the last one missing."""
        if self._late:
            self._taken[slot.spec.slice.id] = slot
        else:
            self._take_in([slot])
        self.missing -= 1
        return self.missing == 0

    def resolve(self) -> None:
        """Wake whoever waits. Called without the lock, because callbacks of the future may call the shard."""
        if self._late:
            self._take_in(list(self._taken.values()))
        if self._failure is None:
            self.future.set_result(self._taken)
        else:
            self.future.set_exception(self._failure)

    def _take_in(self, slots: Iterable[ServedSlice]) -> None:
        """Take slices. What goes wrong is for whoever waits: not for who happens to be the last to push."""
        try:
            self._taken.update({slot.spec.slice.id: self._take(slot) for slot in slots})
        except Exception as error:
            self._failure = error


class PendingPulls:
    """The waits at a shard by slice. Not thread-safe: the shard holds its lock."""

    def __init__(self, slots: Mapping[int, ServedSlice], pace: StalenessBound):
        self._slots = slots
        self._pace = pace
        self._lists: dict[int, list[Pull]] = {id: [] for id in slots}

    def add(self, wait: Pull, ids: Sequence[int]) -> bool:
        """Serve a new wait what is there, and enlist it for the rest; True if nothing is missing. See Wait.check."""
        if wait.exact:
            for id in ids:
                wait.check(self._slots[id])
        wait.missing, ready = len(ids), not ids
        for id in ids:
            slot = self._slots[id]
            if wait.reached(slot, self._pace):
                ready = wait.deliver(slot)
            else:
                self._lists[id].append(wait)
        return ready

    def serve(self, slot: ServedSlice) -> list[Pull]:
        """Serve those for whom a slice is now where they wait for it; return those who lack nothing more."""
        id = slot.spec.slice.id
        waits = self._lists[id]
        if not waits:
            return []
        served: list[Pull] = []
        waiting = self._lists[id] = []
        for wait in waits:
            (served if wait.reached(slot, self._pace) else waiting).append(wait)
        return [wait for wait in served if wait.deliver(slot)]

    def remove(self, wait: Pull) -> None:
        """Take a wait off the lists."""
        for waits in self._lists.values():
            if wait in waits:
                waits.remove(wait)

    def clear(self) -> set[Pull]:
        """Take all waits off the lists and return them."""
        waiting = {wait for waits in self._lists.values() for wait in waits}
        for waits in self._lists.values():
            waits.clear()
        return waiting

    def pending(self) -> list[str]:
        """Say in words what is waited for, slice by slice."""
        return [line for id, slot in self._slots.items() for line in self._pending(slot, self._lists[id])]

    def _pending(self, slot: ServedSlice, waits: Sequence[Pull]) -> list[str]:
        if not slot.filled:
            return [f"slice {slot.spec.slice}: its first value has not been put"] if waits else []
        lines = []
        for group, contributions in slot.contributions.items():
            versions = {wait.version for wait in waits if wait.group == group}
            if not contributions.idle or any(contributions.version < version for version in versions):
                of = f" of group {group}" if len(slot.contributions) > 1 else ""
                lines.append(f"slice {slot.spec.slice}{of} {contributions.pending()}")
            lines += [line for version in sorted(versions) for line in self._pace.pending(slot, group, version)]
        return lines

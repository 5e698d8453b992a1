"""Keeps pulls (requests for values) until slices reach the version, within the bound of staleness between groups."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import Future
from typing import Any

from dsinga.base.errors import RunError
from dsinga.cluster.server.served_slice import ServedSlice


class StalenessBound:
    """Keeps groups from being more than ``staleness`` steps ahead of the slowest running group.

    None means no bound. The slowest group never waits for another one, so groups cannot deadlock.
    """

    def __init__(self, groups: Collection[int], staleness: int | None):
        self._running = set(groups)
        self._staleness = staleness

    def leave(self, group: int) -> None:
        """Stop waiting for a group that has finished or has not begun yet."""
        self._running.discard(group)

    def join(self, group: int) -> None:
        """Wait for a group that begins or restarts."""
        self._running.add(group)

    def allows(self, served_slice: ServedSlice, version: int) -> bool:
        """Whether a group may have a slice's value for its step ``version``."""
        return self._staleness is None or not self._behind(served_slice, version - self._staleness)

    def _behind(self, served_slice: ServedSlice, minimum: int) -> list[int]:
        return [group for group in sorted(self._running) if served_slice.accumulators[group].version < minimum]

    def pending(self, served_slice: ServedSlice, group: int, version: int) -> list[str]:
        """Name the groups that a group waits for before its step ``version``, for errors."""
        if self._staleness is None or served_slice.accumulators[group].version < version:
            return []
        return [
            f"slice {served_slice.spec.slice}: group {group} waits before step {version} for group {other}, which is "
            f"at step {served_slice.accumulators[other].version}, more than the staleness of {self._staleness} behind"
            for other in self._behind(served_slice, version - self._staleness)
        ]


Read = Callable[[ServedSlice], Any]


class Pull:
    """A request for the values of some slices, which waits until ``group`` may have them at ``version``.

    Without a group it waits until the slices have a value. ``read`` returns the result for a slice, such as a copy. It
    is called under the shard's lock as soon as the slice is available or, if ``deferred``, without the lock when all
    are. If ``exact``, no slice may be past the version.
    """

    def __init__(
        self, group: int | None, version: int, read: Read, deferred: bool = False, exact: bool = False,
        finish: Callable[[dict[int, Any]], Any] = dict,
    ):  # fmt: skip
        self.group, self.version = group, version
        self.missing = 0  # the number of slices that are not available yet
        self.future: Future[Any] = Future()
        self.future.set_running_or_notify_cancel()  # so that it cannot be cancelled before it is resolved
        self._read, self._deferred, self.exact, self._finish = read, deferred, exact, finish
        self._results: dict[int, Any] = {}
        self._error: Exception | None = None  # of ``read``, such as too little memory for a copy

    def is_ready(self, served_slice: ServedSlice, bound: StalenessBound) -> bool:
        """Whether a slice is available for this pull."""
        if self.group is None or not served_slice.filled:
            return served_slice.filled
        accumulator = served_slice.accumulators[self.group]
        return accumulator.version >= self.version and bound.allows(served_slice, self.version)

    def is_late(self, served_slice: ServedSlice) -> bool:
        """Whether a slice has changed beyond the pull's version, or is being updated from it."""
        if self.group is None or not served_slice.filled:
            return False
        accumulator = served_slice.accumulators[self.group]
        return accumulator.version > self.version or accumulator.version == self.version and accumulator.complete

    def deliver(self, served_slice: ServedSlice) -> bool:
        """Accept an available slice; return whether it was the last missing one."""
        if self._deferred:
            self._results[served_slice.spec.slice.id] = served_slice
        else:
            self._read_slices([served_slice])
        self.missing -= 1
        return self.missing == 0

    def resolve(self) -> None:
        """Resolve the future to the values, without the lock, because callbacks may call the shard."""
        if self._deferred:
            self._read_slices(list(self._results.values()))
        if self._error is None:
            self.future.set_result(self._finish(self._results))
        else:
            self.future.set_exception(self._error)

    def _read_slices(self, served_slices: Iterable[ServedSlice]) -> None:
        """Read slices; keep an error for the future, so that it does not hit the thread of the last push."""
        try:
            results = {served_slice.spec.slice.id: self._read(served_slice) for served_slice in served_slices}
            self._results.update(results)
        except Exception as error:
            self._error = error


def resolve_all(pulls: Iterable[Pull]) -> None:
    """Resolve pulls that are complete."""
    for pull in pulls:
        pull.resolve()


class PendingPulls:
    """Keeps the waiting pulls at a shard, by slice; the shard holds its lock."""

    def __init__(self, served_slices: Mapping[int, ServedSlice], bound: StalenessBound):
        self._slices = served_slices
        self._bound = bound
        self._pulls: dict[int, list[Pull]] = {id: [] for id in served_slices}

    def add(self, pull: Pull, ids: Sequence[int]) -> bool:
        """Give a new pull the slices that are available; return whether none is missing."""
        for served_slice in (self._slices[id] for id in ids if pull.exact):
            if pull.is_late(served_slice):
                message = f"slice {served_slice.spec.slice} is already past version {pull.version}"
                pull.future.set_exception(RunError(message))
                return False
        pull.missing, complete = len(ids), not ids
        for id in ids:
            served_slice = self._slices[id]
            if pull.is_ready(served_slice, self._bound):
                complete = pull.deliver(served_slice)
            else:
                self._pulls[id].append(pull)
        return complete

    def serve(self, served_slice: ServedSlice) -> list[Pull]:
        """Give a slice to the waiting pulls that may have it now; return the complete pulls."""
        id = served_slice.spec.slice.id
        pulls = self._pulls[id]
        if not pulls:
            return []
        ready: list[Pull] = []
        waiting = self._pulls[id] = []
        for pull in pulls:
            (ready if pull.is_ready(served_slice, self._bound) else waiting).append(pull)
        return [pull for pull in ready if pull.deliver(served_slice)]

    def serve_all(self) -> list[Pull]:
        """Give each slice to the waiting pulls that may have it now; return the complete pulls."""
        return [pull for served_slice in self._slices.values() for pull in self.serve(served_slice)]

    def remove(self, future: Future[Any]) -> None:
        """Remove the pull of a future."""
        for pulls in self._pulls.values():
            pulls[:] = [pull for pull in pulls if pull.future is not future]

    def clear(self, group: int | None = None) -> set[Pull]:
        """Remove all pulls, or a worker group's, and return them."""
        waiting = {pull for pulls in self._pulls.values() for pull in pulls if group in (None, pull.group)}
        for pulls in self._pulls.values():
            pulls[:] = [pull for pull in pulls if pull not in waiting]
        return waiting

    def pending(self) -> list[str]:
        """Name what each slice lacks, for errors."""
        return [
            line for id, served_slice in self._slices.items() for line in self._pending(served_slice, self._pulls[id])
        ]

    def _pending(self, served_slice: ServedSlice, pulls: Sequence[Pull]) -> list[str]:
        if not served_slice.filled:
            return [f"slice {served_slice.spec.slice}: its first value has not been put"] if pulls else []
        lines = []
        for group, accumulator in served_slice.accumulators.items():
            versions = {pull.version for pull in pulls if pull.group == group}
            if not accumulator.idle or any(accumulator.version < version for version in versions):
                of = f" of group {group}" if len(served_slice.accumulators) > 1 else ""
                lines.append(f"slice {served_slice.spec.slice}{of} {accumulator.pending()}")
            lines += [
                line for version in sorted(versions) for line in self._bound.pending(served_slice, group, version)
            ]
        return lines

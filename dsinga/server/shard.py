"""What one server holds: slices of the params, updated once all partitions have pushed, read once they are up to date.

Zero copy is safe in synchronous training. A pull hands out the shard's own arrays, and step v changes slice s in
place only after *every* partition has pushed its gradient of s for step v. A partition pushes it after its last use of
the value at version v, and does not look at s again until a pull for version v + 1 resolves, which is after the change.
So nobody reads while somebody writes. Whoever is not one of the contributors (a checkpoint) takes a ``snapshot``.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from typing import Any, NamedTuple

import numpy as np

from dsinga.errors import RunError
from dsinga.server.slot import SliceSpec, Slot
from dsinga.server.totals import Totals
from dsinga.training import Updater


class Push(NamedTuple):
    """Whose gradients these are: partition ``partition`` of worker group ``group``, for ``step`` of ``generation``."""

    generation: int
    group: int
    step: int
    partition: int


class Snapshot(NamedTuple):
    """A copy of what a shard holds, by slice id: float32 (size,) values, and the updater's state by its names."""

    values: dict[int, np.ndarray]
    state: dict[int, dict[str, np.ndarray]]


class _Wait:
    """Somebody waits for slices to reach ``version``; ``take`` is what is wanted of each. Used under the lock."""

    def __init__(self, slices: int, version: int, take: Callable[[Slot], Any]):
        self.version = version
        self.future: Future[dict[int, Any]] = Future()
        self.future.set_running_or_notify_cancel()  # so that resolving it never meets a cancelled future
        self._missing = slices
        self._take = take
        self._taken: dict[int, Any] = {}

    def deliver(self, slot: Slot) -> bool:
        """Take what is wanted of a slice that has reached the version; True if it was the last one missing."""
        self._taken[slot.spec.slice.id] = self._take(slot)
        self._missing -= 1
        return self._missing == 0

    def resolve(self) -> None:
        """Wake whoever waits. Called without the lock, because callbacks of the future may call the shard."""
        self.future.set_result(self._taken)


class Shard:
    """The slices that one server holds. Thread-safe; no method but :meth:`snapshot` waits for others.

    Each slice is pushed by ``contributors`` partitions, numbered from 0, in each step, beginning with step ``start``.
    Each has a version of its own, the number of the step that comes next for it, so that gradients may come layer by
    layer and in any grouping. Contributions are added in the order of the partitions, not of arrival: the same bits
    every time. A shard lives for one generation of a run; after a loss, new ones are made.
    """

    def __init__(
        self, slices: Sequence[SliceSpec], updater: Updater, contributors: int, generation: int = 0, start: int = 0
    ):
        self._slots = {spec.slice.id: Slot(spec, contributors) for spec in slices}
        self._waits: dict[int, list[_Wait]] = {id: [] for id in self._slots}
        self._updater = updater
        self._generation = generation
        self._start = start
        self._lock = threading.Lock()
        self._totals = Totals(contributors)
        self._error: BaseException | None = None

    def put(
        self, values: Mapping[int, np.ndarray], state: Mapping[int, Mapping[str, np.ndarray]] | None = None
    ) -> None:
        """Give the first values, float32 (size,), by slice id, and the updater's state by slice id and name.

        With None for the state the updater begins anew. A repeated put changes nothing. The arrays are given away:
        they are updated in place if they can be written. Raises UserError if the state is not that of this updater.
        """
        with self._lock:
            self._check_open()
            for id, value in values.items():
                self._slots[id].put(self._start, value, None if state is None else state.get(id, {}), self._updater)
            woken = [wait for id in values for wait in self._deliver(self._slots[id])]
        for wait in woken:
            wait.resolve()

    def push(self, push: Push, gradients: Mapping[int, np.ndarray]) -> None:
        """Give gradients, float32 (size,), by slice id; whoever brings the last one of a slice also updates it.

        The arrays are given away and may be overwritten. A push is accepted once for each slice; a repeated one is
        dropped. Raises RunError if it is of another generation, and what :meth:`close` was given after that.
        """
        assert push.group == 0, "one worker group so far"
        with self._lock:
            self._check_open()
            self._check_generation(push)
            complete = [
                self._slots[id]
                for id, gradient in gradients.items()
                if self._slots[id].contribute(push.step, push.partition, gradient)
            ]
        for slot in complete:
            try:
                slot.update(self._updater)
            except BaseException as error:
                error.add_note(f"in the update of {slot.spec.slice} at step {push.step}")
                self.close(RunError(f"updating slice {slot.spec.slice} at step {push.step} failed: {error!r}"))
                raise
            with self._lock:
                slot.advance()
                woken = self._deliver(slot)
            for wait in woken:
                wait.resolve()

    def pull(self, ids: Iterable[int], version: int) -> Future[dict[int, np.ndarray]]:
        """Return a future of the values by slice id, which resolves when all of them have reached ``version``.

        The arrays are the shard's own, read-only, float32 (size,). They hold still until the caller has pushed.
        """
        with self._lock:
            wait, ready = self._enlist(list(ids), version, Slot.read)
        if ready:
            wait.resolve()
        return wait.future

    def total(self, key: str, partition: int, array: np.ndarray) -> Future[np.ndarray]:
        """Return a future of the sum, over all partitions and in their order, of the arrays given under ``key``.

        A key is used once in a run. A partition asks for one total at a time.
        """
        return self._totals.add(key, partition, array)

    def snapshot(self, version: int, timeout: float) -> Snapshot:
        """Return a copy of all values and states at exactly ``version``, waiting up to ``timeout`` seconds for it.

        Training may go on meanwhile: a slice is copied before the next update of it can begin. Raises RunError if a
        slice is past that version, or has not reached it in time.
        """
        with self._lock:
            for slot in self._slots.values():
                if slot.version is not None and (slot.version > version or slot.version == version and slot.updating):
                    raise RunError(f"slice {slot.spec.slice} is already past version {version}")
            wait, ready = self._enlist(list(self._slots), version, _copy)
        if ready:
            wait.resolve()
        try:
            copies = wait.future.result(timeout)
        except TimeoutError:
            waited_for = self.pending()
            with self._lock:
                self._strike(wait)
            raise RunError(f"no snapshot of version {version} within {timeout:g} s: {waited_for}") from None
        return Snapshot({id: copy[0] for id, copy in copies.items()}, {id: copy[1] for id, copy in copies.items()})

    def close(self, error: BaseException) -> None:
        """Fail everybody who waits, and every later call, with ``error``; the first error stays."""
        with self._lock:
            if self._error is not None:
                return
            self._error = error
            waiting = {wait for waits in self._waits.values() for wait in waits}
            for waits in self._waits.values():
                waits.clear()
        self._totals.close(error)
        for wait in waiting:
            wait.future.set_exception(error)

    def pending(self) -> str:
        """Say in words what is waited for: "slice w1[0:450] at step 12: partitions 0, 2 have come, 1 is missing"."""
        with self._lock:
            lines = [slot.pending() for id, slot in self._slots.items() if self._waits[id] or not slot.idle]
        lines += self._totals.pending()
        if len(lines) > 8:  # a large model has hundreds of slices, and they tend to lack the same partition
            lines[8:] = [f"and {len(lines) - 8} more"]
        return "; ".join(lines) or "nothing is waited for"

    def _enlist(self, ids: Sequence[int], version: int, take: Callable[[Slot], Any]) -> tuple[_Wait, bool]:
        """Make a wait for these slices, and say whether all of them are there already; needs the lock."""
        wait = _Wait(len(ids), version, take)
        if self._error is not None:
            wait.future.set_exception(self._error)
            return wait, False
        ready = not ids
        for id in ids:
            slot = self._slots[id]
            if slot.version is None or slot.version < version:
                self._waits[id].append(wait)
            else:
                ready = wait.deliver(slot)
        return wait, ready

    def _deliver(self, slot: Slot) -> list[_Wait]:
        """Serve those who wait for the version that ``slot`` has reached; return those who lack nothing more."""
        waits = self._waits[slot.spec.slice.id]
        if not waits:
            return []
        assert slot.version is not None
        self._waits[slot.spec.slice.id] = [wait for wait in waits if wait.version > slot.version]
        return [wait for wait in waits if wait.version <= slot.version and wait.deliver(slot)]

    def _strike(self, wait: _Wait) -> None:
        """Take a wait off the lists."""
        for waits in self._waits.values():
            if wait in waits:
                waits.remove(wait)

    def _check_open(self) -> None:
        if self._error is not None:
            raise self._error

    def _check_generation(self, push: Push) -> None:
        if push.generation != self._generation:
            raise RunError(
                f"a push of partition {push.partition} at step {push.step} is of generation {push.generation}, "
                f"but this server is of generation {self._generation}"
            )


def _copy(slot: Slot) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    return slot.value.copy(), {name: array.copy() for name, array in slot.state.items()}

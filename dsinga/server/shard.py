"""What one server holds: slices of the params, updated once all partitions of a worker group have pushed.

With one worker group, zero copy is safe. A pull hands out the shard's own arrays, and step v changes slice s in place
only after *every* contributor to s has pushed its gradient for step v. A partition pushes it after its last use of the
value at version v, and does not look at s again until a pull for version v + 1 resolves, which is after the change.
So nobody reads while somebody writes. Whoever is not one of the contributors (a checkpoint) takes a ``snapshot``.

Several worker groups are asynchronous: each has its own versions and changes a slice when its own partitions have all
pushed, whatever the others are doing. So what is handed out are copies.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Future
from functools import partial
from typing import Any

import numpy as np

from dsinga.errors import RunError
from dsinga.server.collectives import Collectives
from dsinga.server.messages import Push, Snapshot
from dsinga.server.pending_pulls import PendingPulls, Pull
from dsinga.server.routes import Routes
from dsinga.server.served_slice import ServedSlice, SliceSpec
from dsinga.server.staleness import StalenessBound
from dsinga.server.synchronisation import Send, Synchronisation
from dsinga.server.update_executors import InlineExecutor, SliceUpdate
from dsinga.training import Updater


class Shard:
    """The slices that one server holds. Thread-safe; no method but :meth:`snapshot` waits for others.

    Each slice is pushed, in each step of each worker group, by the partitions that its spec names, beginning with step
    ``start``. For each group each slice has a version of its own, the number of the group's step that comes next for
    it, so that gradients may come layer by layer and in any grouping. GradientAccumulator are added in the order of the
    partitions, not of arrival: the same bits every time. With ``staleness``, no group gets values for a step that is
    more than so many steps ahead of the slowest group's. A shard lives for one generation of a run; after a loss, new
    ones are made.

    ``revisions`` is the kind of executor that updates slices (:mod:`dsinga.server.update_executors`). Sums that have to
    be complete beforehand, as for ``clip_norm``, are computed by the last worker to push.
    """

    def __init__(
        self,
        slices: Sequence[SliceSpec],
        updater: Updater,
        groups: Sequence[int] = (0,),
        generation: int = 0,
        start: int = 0,
        staleness: int | None = None,
        revisions: type[InlineExecutor] = InlineExecutor,
    ):
        self._slots = {spec.slice.id: ServedSlice(spec, groups, start) for spec in slices}
        self._updater = updater
        self._groups = groups
        self._shared = len(groups) > 1  # whether a value may change while a group computes with it
        self._generation = generation
        self._lock = threading.Lock()
        self._pace = StalenessBound(groups, staleness)
        self._pulls = PendingPulls(self._slots, self._pace)
        self._collectives = {group: Collectives() for group in groups}
        self._synchronisation: Synchronisation | None = None
        assert not (revisions.one_group and self._shared), groups
        self._revisions = revisions()
        self._error: BaseException | None = None

    def synchronise(self, group: int, routes: Routes, frequency: int, send: Send) -> None:
        """Keep in step with the same shard of other server groups; called before the first pull.

        ``group`` is the server group of this one. Every ``frequency`` updates of a slice ``send`` gets what these have
        changed, to be given to :meth:`receive` of the neighbour: see :class:`Synchronisation`. Values that are handed
        out are copies from now on. A failure of ``send`` closes the shard.
        """
        assert not self._revisions.one_group
        self._synchronisation = Synchronisation(group, routes, frequency, send, self.close)
        self._shared = True
        for slot in self._slots.values():
            if slot.filled:
                self._synchronisation.begin(slot)

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
                self._slots[id].put(value, None if state is None else state.get(id, {}), self._updater)
                if self._synchronisation is not None:
                    self._synchronisation.begin(self._slots[id])
            woken = [wait for id in values for wait in self._pulls.serve(self._slots[id])]
        for wait in woken:
            wait.resolve()

    def push(self, push: Push, gradients: Mapping[int, np.ndarray]) -> None:
        """Give gradients, float32 (size,), by slice id; a slice is updated when a group's last one of it has come.

        Of slices that have a width they may be rows alone: if all partitions' are, only these rows are updated. The
        arrays are given away and may be overwritten. A push is accepted once for each slice; a repeated one is dropped.
        Raises RunError if it is of another generation, and what :meth:`close` was given after that.
        """
        with self._lock:
            self._check_open()
            self._check_generation(push)
            complete = [
                self._slots[id]
                for id, gradient in gradients.items()
                if self._slots[id].contribute(push.group, push.step, push.partition, None if push.skip else gradient)
            ]
        revisions = [self._revise(slot, push.group) for slot in complete]
        self._revisions.add(revisions, [self._slots[id] for id in gradients])
        if self._synchronisation is not None:
            self._synchronisation.updated(complete)

    def _revise(self, slot: ServedSlice, group: int) -> SliceUpdate:
        end, fail = partial(self._advance, slot, group), partial(self._fail, slot, group)
        try:
            return SliceUpdate(slot, slot.pieces(group, self._updater), end, fail)
        except BaseException as error:
            fail(error)
            raise

    def _advance(self, slot: ServedSlice, group: int) -> None:
        """Go on to the next version, and wake whoever waits for it."""
        with self._lock:
            slot.contributions[group].advance()
            woken = self._pulls.serve(slot)
        for wait in woken:
            wait.resolve()

    def _fail(self, slot: ServedSlice, group: int, error: BaseException) -> None:
        """Close the shard, for a slice cannot be updated."""
        step = slot.contributions[group].version
        error.add_note(f"in the update of {slot.spec.slice} at step {step}")
        # Without the error itself: its frames would keep the server, and so the threads that serve it, alive.
        self.close(RunError(f"updating slice {slot.spec.slice} at step {step} failed: {error!r}"))

    def pull(self, ids: Iterable[int], version: int, group: int = 0) -> Future[dict[int, np.ndarray]]:
        """Return a future of the values by slice id, for step ``version`` of a group.

        It resolves when the group's own updates before that step have been applied to all of them, and the slowest
        group is within the staleness. The arrays are float32 (size,), read-only, and hold still until the caller has
        pushed: the shard's own where there is one group, else copies, the same for all partitions of a group.
        """
        if self._shared:
            return self._wait(Pull(group, version, lambda slot: slot.copy_for(group), late=True), ids)
        return self._wait(Pull(group, version, ServedSlice.read), ids)

    def wait(self, future: Future[Any], timeout: float | None = None) -> Any:
        """Return the outcome of a future of this shard; TimeoutError after ``timeout`` seconds.

        Of shared updates this does what is left: waiting for the future itself might take for ever.
        """
        return self._revisions.wait(future, timeout)

    def rows_changed(
        self, ids: Iterable[int], since: Mapping[int, int], version: int
    ) -> dict[int, tuple[int, np.ndarray]]:
        """Return, by slice id, the width and which rows differ from those at the version ``since[id]``, where known.

        It is known for some steps back, where there is one worker group and one server group. To be called by a
        partition that has pulled ``version`` of the slices and has not pushed to them since.
        """
        if self._shared:
            return {}
        slots = {id: self._slots[id] for id in ids if id in since}
        changed = {id: slot.rows_changed(since[id], version) for id, slot in slots.items()}
        return {id: (slots[id].spec.slice.width, rows) for id, rows in changed.items() if rows is not None}

    def refresh(self, group: int) -> None:
        """Let a group have the values as they now are at its version, not as others of its partitions have had them.

        No partition of the group may be pulling meanwhile.
        """
        for slot in self._slots.values():
            with slot.lock:
                slot.contributions[group].copy = None

    def leave(self, group: int) -> None:
        """Wait no more for a group within the staleness: it has finished, or it begins later (see :meth:`join`)."""
        with self._lock:
            self._check_open()
            self._pace.leave(group)
            woken = [wait for slot in self._slots.values() for wait in self._pulls.serve(slot)]
        for wait in woken:
            wait.resolve()

    def join(self, group: int, step: int) -> None:
        """Let a group begin at ``step``, one that has left before it pushed anything."""
        with self._lock:
            self._check_open()
            self._pace.join(group, step, self._slots.values())

    def receive(self, route: int, changes: Mapping[int, np.ndarray]) -> None:
        """Add what a neighbouring server group has sent on a route, float32 (size,) by slice id, and pass it on.

        Each message is to be received once; its arrays are not to be changed any more.
        """
        with self._lock:
            self._check_open()
        assert self._synchronisation is not None
        self._synchronisation.receive(self._slots, route, changes)

    def flush(self) -> Future[int]:
        """Send neighbouring server groups what they have not been told, however few updates it is.

        The future resolves when this shard has nothing more to send, to the number of messages it has ever sent. When
        all worker groups have finished, flush all shards, and again until the numbers stay as they are: then nothing
        is under way any more, and all server groups have the same values but for rounding.
        """
        assert self._synchronisation is not None
        return self._synchronisation.flush(self._slots.values())

    def collective(
        self, kind: str, key: str, group: int, partition: int, array: np.ndarray, contributors: Sequence[int]
    ) -> Future[np.ndarray]:
        """Return a future of the arrays of the partitions ``contributors`` of a group, combined in their order.

        ``kind`` is "all_reduce" for their sum, "all_gather" for their rows joined. A key is used once in a run by each
        group. A partition takes part in one collective at a time.
        """
        return self._collectives[group].add(kind, key, partition, array, contributors)

    def snapshot(self, version: int | None, timeout: float, state: bool = True) -> Snapshot:
        """Return a copy of all values, and of the states if ``state``, waiting up to ``timeout`` seconds for it.

        With one group it is of exactly ``version``, and training may go on meanwhile: a slice is copied before the
        next update of it can begin. Raises RunError if a slice is past that version, or has not reached it in time.
        With None it is of how things stand, each slice between two updates.
        """
        take = ServedSlice.copy if state else ServedSlice.copy_value
        if version is None:
            assert not self._revisions.one_group
            wait = Pull(None, 0, take, late=True)
        else:
            (group,) = self._groups
            wait = Pull(group, version, take, exact=True)
        try:
            copies = self.wait(self._wait(wait, self._slots), timeout)
        except TimeoutError:
            waited_for = self.pending()
            with self._lock:
                self._pulls.remove(wait)
            wanted = "snapshot" if version is None else f"snapshot of version {version}"
            raise RunError(f"no {wanted} within {timeout:g} s: {waited_for}") from None
        return Snapshot({id: copy[0] for id, copy in copies.items()}, {id: copy[1] for id, copy in copies.items()})

    def close(self, error: BaseException) -> None:
        """Fail everybody who waits, and every later call, with ``error``; the first error stays."""
        with self._lock:
            if self._error is not None:
                return
            self._error = error
            waiting = self._pulls.clear()
        self._revisions.close(str(error))
        for collectives in self._collectives.values():
            collectives.close(error)
        if self._synchronisation is not None:
            self._synchronisation.close(error)
        for wait in waiting:
            wait.future.set_exception(error)

    def pending(self) -> str:
        """Say in words what is waited for: "slice w1[0:450] at step 12: partitions 0, 2 have come, 1 is missing"."""
        with self._lock:
            lines = self._pulls.pending()
        for group, collectives in self._collectives.items():
            of = f" of group {group}" if len(self._groups) > 1 else ""
            lines += [f"collective{of} {line}" for line in collectives.pending()]
        if self._synchronisation is not None:
            lines += self._synchronisation.pending()
        if len(lines) > 8:  # a large model has hundreds of slices, and they tend to lack the same partition
            lines[8:] = [f"and {len(lines) - 8} more"]
        return "; ".join(lines) or "nothing is waited for"

    def _wait(self, wait: Pull, ids: Iterable[int]) -> Future[dict[int, Any]]:
        """Enlist a wait for these slices; return its future."""
        with self._lock:
            if self._error is not None:
                wait.future.set_exception(self._error)
                return wait.future
            ready = self._pulls.add(wait, list(ids))
        if ready:
            wait.resolve()
        return wait.future

    def _check_open(self) -> None:
        if self._error is not None:
            raise self._error

    def _check_generation(self, push: Push) -> None:
        if push.generation != self._generation:
            raise RunError(
                f"a push of partition {push.partition} at step {push.step} is of generation {push.generation}, "
                f"but this server is of generation {self._generation}"
            )

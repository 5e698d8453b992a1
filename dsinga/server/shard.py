"""The shard of a server: slices of params, updated once all workers of a group have pushed gradients.

With one worker group values are not copied. A pull returns the shard's own arrays, and step v changes slice s in place
only after *every* contributor to s has pushed its gradient for step v. A worker pushes it after its last use of the
value at version v, and does not read s again until a pull for version v + 1 resolves, which is after the change. So no
thread reads a value while another one writes it. Readers that are not contributors (a checkpoint) call ``snapshot``.

Several worker groups are asynchronous: each has its own versions and changes a slice when its own workers have all
pushed, independently of the other groups. So pulls return copies.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Future
from functools import partial
from typing import Any

import numpy as np

from dsinga.errors import RunError
from dsinga.server.collectives import Collectives
from dsinga.server.gradient_accumulator import Generations, Push
from dsinga.server.gradient_norms import GradientNorms
from dsinga.server.pending_pulls import PendingPulls, Pull, Read, StalenessBound
from dsinga.server.routes import Routes
from dsinga.server.served_slice import ServedSlice, ShardCopy, SliceSpec
from dsinga.server.staleness_meter import GroupStaleness, StalenessMeter
from dsinga.server.synchronisation import Send, Synchronisation
from dsinga.server.update_executors import InlineExecutor, SliceUpdate
from dsinga.training import Updater


class Shard:
    """The slices of params on one server. Thread-safe; no method but :meth:`snapshot` blocks.

    In each step of each worker group, beginning with step ``start``, each slice is pushed by the workers that its
    spec names. Each slice has a version for each group, the number of the group's next step for it, so that gradients
    may arrive layer by layer and in any grouping. Gradients are added in the order of the workers, not of arrival,
    so that a run gives the same bits every time. With ``staleness``, no group gets values for a step that is more than
    so many steps ahead of the slowest group's. A shard serves one generation of each group, and refuses
    messages of others; :meth:`restart` begins the next one.

    ``executor`` is the class of the executor that runs updates (:mod:`dsinga.server.update_executors`). Sums that must
    be complete before the update, as for ``clip_norm``, are computed by the last worker to push.
    """

    def __init__(
        self,
        slices: Sequence[SliceSpec],
        updater: Updater,
        groups: Sequence[int] = (0,),
        generation: int = 0,
        start: int = 0,
        staleness: int | None = None,
        executor: type[InlineExecutor] = InlineExecutor,
    ):
        self._slices = {spec.slice.id: ServedSlice(spec, groups, start) for spec in slices}
        self._updater = updater
        self._groups = groups
        self._copies = False  # whether pulls return copies, since a value may change while a group uses it
        self._staleness_meter = StalenessMeter()
        if len(groups) > 1:
            self._return_copies()
        self._generations, self._linked_generations = Generations(generation), Generations(generation)
        self._lock = threading.Lock()
        self._staleness_bound = StalenessBound(groups, staleness)
        self._pulls = PendingPulls(self._slices, self._staleness_bound)
        self._collectives = {group: Collectives() for group in groups}
        self._synchronisation: Synchronisation | None = None
        assert not (executor.requires_single_group and self._copies), groups
        self._executor = executor()
        clipped = [id for id, served_slice in self._slices.items() if served_slice.is_clipped]
        self._norms = GradientNorms(clipped) if updater.conf.clip_global_norm else None
        self._error: BaseException | None = None

    def synchronise(self, group: int, routes: Routes, frequency: int, send: Send, patience: float = 0.0) -> None:
        """Send changes to the same shard of other server groups from now on; called before the first pull.

        ``group`` is the server group of this shard. After every ``frequency`` updates of a slice its change is passed
        to ``send``, which delivers it to :meth:`receive` of the other shard: see :class:`Synchronisation`. From now on
        pulls return copies. After an error of ``send`` the changes for that server group wait for ``patience`` seconds
        until it is linked again (:meth:`link`); then the shard is closed.
        """
        assert not self._executor.requires_single_group
        shard = weakref.ref(self)  # else the synchronisation and the shard would refer to each other

        def fail(error: BaseException) -> None:
            if (open_shard := shard()) is not None:
                open_shard.close(error)

        self._synchronisation = Synchronisation(group, routes, frequency, send, fail, patience)
        self._return_copies()
        for served_slice in self._slices.values():
            if served_slice.filled:
                self._synchronisation.begin(served_slice)

    def _return_copies(self) -> None:
        self._copies = True
        for served_slice in self._slices.values():
            served_slice.meter = self._staleness_meter

    def put(
        self, values: Mapping[int, np.ndarray], state: Mapping[int, Mapping[str, np.ndarray]] | None = None
    ) -> None:
        """Set the initial values, float32 (size,), by slice id, and the updater's state by slice id and name.

        With None for the state the updater starts afresh. A repeated call changes nothing. The arrays belong to the
        shard from now on, and are updated in place if they are writeable. Raises UserError if the state is of another
        updater.
        """
        with self._lock:
            self._check_open()
            for id, value in values.items():
                self._slices[id].put(value, None if state is None else state.get(id, {}), self._updater)
                if self._synchronisation is not None:
                    self._synchronisation.begin(self._slices[id])
            complete = [pull for id in values for pull in self._pulls.serve(self._slices[id])]
        for pull in complete:
            pull.resolve()

    def move(self, memory: Mapping[int, np.ndarray]) -> None:
        """Keep the values of slices in this memory, float32 (size,), by slice id, where their worker reads them.

        Called by a worker of this process before its first pull. The memory of the first worker to call is used. Does
        nothing where pulls return copies.
        """
        with self._lock:
            self._check_open()
            for id, array in () if self._copies else memory.items():
                self._slices[id].move(array)

    def push(self, push: Push, gradients: Mapping[int, np.ndarray]) -> None:
        """Add gradients, float32 (size,), by slice id; a slice is updated when its whole group has pushed it.

        Gradients of slices that have a width may be sparse rows; if those of all workers are, only these rows are
        updated. The arrays belong to the shard from now on and may be overwritten. A push counts once for each slice; a
        repeated one is dropped. Raises RunError if the push is of another generation, and the error of :meth:`close` if
        the shard is closed.
        """
        with self._lock:
            self._check_open()
            message = f"a push of worker {push.worker} of group {push.group} at step {push.step}"
            self._generations.check(push.group, push.generation, message)
            complete = [
                self._slices[id]
                for id, gradient in gradients.items()
                if self._slices[id].contribute(push.group, push.step, push.worker, None if push.skip else gradient)
            ]
        if self._norms is not None:
            complete = self._add_squares(self._norms, complete, push)
        self._update(complete, push.group, [self._slices[id] for id in gradients])

    def _update(self, complete: Sequence[ServedSlice], group: int, pushed: Iterable[ServedSlice] = ()) -> None:
        """Update slices by the gradients of a group; ``pushed`` are the slices of the caller's push."""
        updates = [self._create_update(served_slice, group) for served_slice in complete]
        self._executor.add(updates, pushed)
        if self._synchronisation is not None:
            self._synchronisation.updated(complete)

    def _add_squares(self, norms: GradientNorms, complete: Sequence[ServedSlice], push: Push) -> list[ServedSlice]:
        """Add up the gradients of slices and their squares; return the slices whose update needs no norm."""
        squares = {
            served_slice.spec.slice.id: served_slice.accumulators[push.group].reduce()
            for served_slice in complete
            if served_slice.is_clipped
        }
        counted = {id: value for id, value in squares.items() if value is not None}
        with self._lock:
            if self._generations.is_current(push.group, push.generation):
                request = norms.add(push.group, push.step, counted)
            else:  # the group has begun anew meanwhile, and lets this update end
                request = None
                for id in counted:
                    self._slices[id].accumulators[push.group].advance()
        if request is not None:
            request.resolve()
        return [served_slice for served_slice in complete if served_slice.spec.slice.id not in counted]

    def squares(self, push: Push) -> Future[np.ndarray]:
        """Return a future of the sums of squares of the summed gradients of a step, float64, by slice in their order.

        Where the norm of all gradients is clipped, slices of which all workers have pushed wait for :meth:`clip`.
        """
        assert self._norms is not None
        with self._lock:
            self._check_open()
            self._generations.check(push.group, push.generation, f"a request of worker {push.worker}")
            return self._norms.request(push.group, push.step).future

    def clip(self, push: Push, factor: float) -> None:
        """Update the slices by their gradients of a step times ``factor``, which makes the norm of all small enough.

        :meth:`squares` must have resolved. A repeated call is dropped.
        """
        assert self._norms is not None
        with self._lock:
            self._check_open()
            self._generations.check(push.group, push.generation, f"a factor of worker {push.worker}")
            complete = [self._slices[id] for id in self._norms.take(push.group, push.step)]
        for served_slice in complete:
            served_slice.accumulators[push.group].factor = factor
        self._update(complete, push.group)

    def _create_update(self, served_slice: ServedSlice, group: int) -> SliceUpdate:
        end, fail = partial(self._advance, served_slice, group), partial(self._fail, served_slice, group)
        try:
            return SliceUpdate(served_slice, served_slice.update_blocks(group, self._updater), end, fail)
        except BaseException as error:
            fail(error)
            raise

    def _advance(self, served_slice: ServedSlice, group: int) -> None:
        """Advance a slice to its next version, and resolve the pulls that waited for it."""
        with self._lock:
            served_slice.accumulators[group].advance()
            complete = self._pulls.serve(served_slice)
        for pull in complete:
            pull.resolve()

    def _fail(self, served_slice: ServedSlice, group: int, error: BaseException) -> None:
        """Close the shard, since the update of a slice has failed."""
        step = served_slice.accumulators[group].version
        error.add_note(f"in the update of {served_slice.spec.slice} at step {step}")
        # The error is not chained, since its frames would keep the server and its threads alive.
        self.close(RunError(f"updating slice {served_slice.spec.slice} at step {step} failed: {error!r}"))

    def pull(self, ids: Iterable[int], version: int, group: int = 0) -> Future[dict[int, np.ndarray]]:
        """Return a future of the values by slice id, for step ``version`` of a group.

        It resolves when the group's own updates before that step have been applied to all of the slices, and the
        slowest group is within the staleness. The arrays are float32 (size,), read-only, and do not change until the
        caller has pushed: the shard's own arrays if there is one group, else copies that all workers of a group
        share.
        """
        if self._copies:
            return self._add_pull(
                Pull(group, version, lambda served_slice: served_slice.copy_for(group), deferred=True), ids
            )
        return self._add_pull(Pull(group, version, ServedSlice.read), ids)

    def wait(self, future: Future[Any], timeout: float | None = None) -> Any:
        """Return the outcome of a future of this shard; raise TimeoutError after ``timeout`` seconds.

        With a cooperative executor this runs the remaining blocks of updates meanwhile. Waiting for the future itself
        could then take for ever.
        """
        return self._executor.wait(future, timeout)

    def rows_changed(
        self, ids: Iterable[int], since: Mapping[int, int], version: int
    ) -> dict[int, tuple[int, np.ndarray]]:
        """Return, by slice id, the width and the rows that have changed since the version ``since[id]``, if known.

        The rows are known for the last steps if there is one worker group and one server group. To be called by a
        worker that has pulled ``version`` of the slices and has not pushed to them since.
        """
        if self._copies:
            return {}
        slices = {id: self._slices[id] for id in ids if id in since}
        changes = {id: served_slice.rows_changed(since[id], version) for id, served_slice in slices.items()}
        return {id: (slices[id].spec.slice.width, rows) for id, rows in changes.items() if rows is not None}

    def is_gradient(self, id: int) -> bool:
        """Whether the value of a slice is a sum of gradients, see :class:`SliceSpec`."""
        return self._slices[id].spec.is_gradient

    def refresh(self, group: int) -> None:
        """Drop the copies that the workers of a group share, so that their next pulls return the present values.

        No worker of the group may be pulling meanwhile.
        """
        for served_slice in self._slices.values():
            with served_slice.lock:
                served_slice.accumulators[group].copy = None

    def leave(self, group: int) -> None:
        """Do not count a group as running for the staleness: it has finished, or it begins later (see :meth:`join`)."""
        with self._lock:
            self._check_open()
            self._staleness_bound.leave(group)
            complete = [pull for served_slice in self._slices.values() for pull in self._pulls.serve(served_slice)]
        for pull in complete:
            pull.resolve()

    def join(self, group: int, step: int) -> None:
        """Let a group begin at ``step`` that has called :meth:`leave` before its first push."""
        with self._lock:
            self._check_open()
            for served_slice in self._slices.values():
                assert served_slice.accumulators[group].idle, (str(served_slice.spec.slice), group, step)
                served_slice.accumulators[group].restart(step)
            self._staleness_bound.join(group)

    def restart(self, group: int, generation: int, step: int = 0) -> int:
        """Let a worker group whose workers were lost begin anew, as ``generation``; return the step of its first pull.

        Its gradients of steps that are not complete are dropped, its pulls and collectives fail, and messages of its
        earlier generation are refused. It begins at the highest step that it has reached in any slice, so that no slice
        is updated twice for a step, and at ``step`` at least: where several servers serve the group, call this again on
        each with the highest of their answers. Other groups go on.

        Only where pulls return copies: with a single group, its workers read the values in place.
        """
        assert self._copies, "a single worker group begins anew from a snapshot"
        error = RunError(f"worker group {group} has begun anew as generation {generation}")
        with self._lock:
            self._check_open()
            self._generations.set(group, generation)
            accumulators = [served_slice.accumulators[group] for served_slice in self._slices.values()]
            requests = self._norms.clear(group) if self._norms is not None else []
            for id in {id for request in requests for id in request.squares}:
                self._slices[id].accumulators[group].drop()
            step = max([step, *(accumulator.next_step for accumulator in accumulators)])
            for accumulator in accumulators:
                accumulator.restart(step)
            if self._norms is not None:
                self._norms.restart(group, step)
            self._staleness_bound.join(group)
            failed = self._pulls.clear(group)
            collectives, self._collectives[group] = self._collectives[group], Collectives()
            complete = [pull for served_slice in self._slices.values() for pull in self._pulls.serve(served_slice)]
        collectives.close(error)
        for request in requests:
            request.fail(error)
        for pull in failed:
            pull.future.set_exception(error)
        for pull in complete:
            pull.resolve()
        return step

    def values_for(self, group: int, generation: int, source: int) -> ShardCopy:
        """Return this shard's share of the values with which the lost shard of a linked server group comes back.

        The shard of the server group ``group`` begins with the sum of the values that all shards linked with it return:
        that of the group ``source`` returns its values and the updater's state, others at most corrections for some
        slices (:meth:`Synchronisation.values_for`). It may begin any time later, as ``generation``: messages of earlier
        generations are refused from now on, and changes for it wait until :meth:`link`.
        """
        assert self._synchronisation is not None
        with self._lock:
            self._check_open()
            self._linked_generations.set(group, generation)
        copies = self._synchronisation.values_for(group, source, self._slices)
        return ShardCopy({id: copy[0] for id, copy in copies.items()}, {id: copy[1] for id, copy in copies.items()})

    def link(self, group: int, generation: int) -> None:
        """Send changes to the shard of a linked server group that has come back, and accept those that it sends."""
        assert self._synchronisation is not None
        with self._lock:
            self._check_open()
            self._linked_generations.set(group, generation)
        self._synchronisation.link(group)

    def receive(self, route: int, changes: Mapping[int, np.ndarray], sender: int, generation: int = 0) -> None:
        """Add the changes that the server group ``sender`` sends on a route, by slice id, and forward them.

        They are float32 (size,). Each message must be received once; the caller must not change its arrays afterwards.
        Raises RunError if they are of another generation of the sender.
        """
        with self._lock:
            self._check_open()
            self._linked_generations.check(sender, generation, f"a message of server group {sender}")
        assert self._synchronisation is not None
        self._synchronisation.receive(self._slices, route, changes)

    def staleness(self) -> list[GroupStaleness]:
        """Return how stale the gradients of each worker group were since the last call; empty with a single group."""
        return self._staleness_meter.read()

    def flush(self) -> Future[int]:
        """Send all changes that other server groups have not got yet, even if fewer than ``frequency`` updates.

        The future resolves when this shard has nothing more to send, to the number of all messages that it has sent.
        When all worker groups have finished, flush all shards repeatedly until the numbers stay the same: then no
        message is in flight, and all server groups have the same values, to rounding.
        """
        assert self._synchronisation is not None
        return self._synchronisation.flush(self._slices.values())

    def collective(
        self, kind: str, key: str, group: int, worker: int, array: np.ndarray, contributors: Sequence[int],
        generation: int = 0,
    ) -> Future[np.ndarray]:  # fmt: skip
        """Return a future of the arrays of the workers ``contributors`` of a group, combined in their order.

        ``kind`` is "all_reduce" for their sum, "all_gather" for their rows joined. A key is used once in a run by each
        group. A worker takes part in one collective at a time. Raises RunError for another generation of the group.
        """
        with self._lock:
            self._generations.check(group, generation, f"a collective of worker {worker} of group {group}")
            collectives = self._collectives[group]
        return collectives.add(kind, key, worker, array, contributors)

    def snapshot(self, version: int | None, timeout: float, state: bool = True, copied: bool = True) -> ShardCopy:
        """Return a copy of all values, and of the updater's states if ``state``; wait for at most ``timeout`` seconds.

        Unless ``copied`` it has the arrays of the shard themselves, which must not be updated any more. Raises RunError
        if a slice is past ``version``, or has not reached it in time; see :meth:`request_snapshot`.
        """
        read = ServedSlice.copy if copied else ServedSlice.contents
        pull = self._add_snapshot(version, partial(read, state=state))
        try:
            return _snapshot(self.wait(pull.future, timeout))
        except TimeoutError:
            pending = self.pending()
            with self._lock:
                self._pulls.remove(pull)
            name = "snapshot" if version is None else f"snapshot of version {version}"
            raise RunError(f"no {name} within {timeout:g} s: {pending}") from None

    def request_snapshot(self, version: int | None) -> Future[ShardCopy]:
        """Return a future of a copy of all values and of the updater's states.

        With one group the copy has exactly ``version``, and training may continue meanwhile: a slice is copied before
        its next update begins. With None for the version each slice is copied as it is, between two updates. The
        future fails with RunError if a slice is past ``version``.
        """
        snapshot: Future[ShardCopy] = Future()

        def resolve(copies: Future[dict[int, Any]]) -> None:
            error = copies.exception()
            if error is None:
                snapshot.set_result(_snapshot(copies.result()))
            else:
                snapshot.set_exception(error)

        snapshot.set_running_or_notify_cancel()  # so that it cannot be cancelled before it is resolved
        try:
            self._add_snapshot(version, ServedSlice.copy).future.add_done_callback(resolve)
        except RunError as error:
            snapshot.set_exception(error)
        return snapshot

    def _add_snapshot(self, version: int | None, read: Read) -> Pull:
        if version is None:
            assert not self._executor.requires_single_group
            pull = Pull(None, 0, read, deferred=True)
        else:
            (group,) = self._groups
            pull = Pull(group, version, read, exact=True)
        self._add_pull(pull, self._slices)
        return pull

    def close(self, error: BaseException) -> None:
        """Fail all pulls, collectives and flushes, and every later call, with ``error``; a second call does nothing."""
        with self._lock:
            if self._error is not None:
                return
            self._error = error
            pulls = self._pulls.clear()
            requests = self._norms.clear() if self._norms is not None else []
        self._executor.close(str(error))
        for collectives in self._collectives.values():
            collectives.close(error)
        if self._synchronisation is not None:
            self._synchronisation.close(error)
        for request in requests:
            request.fail(error)
        for pull in pulls:
            pull.future.set_exception(error)

    def pending(self) -> str:
        """Return a text that says what is missing, such as "slice w1[0:450] at step 12: no worker has come"."""
        with self._lock:
            lines = self._pulls.pending()
            lines += self._norms.pending() if self._norms is not None else []
        for group, collectives in self._collectives.items():
            of = f" of group {group}" if len(self._groups) > 1 else ""
            lines += [f"collective{of} {line}" for line in collectives.pending()]
        if self._synchronisation is not None:
            lines += self._synchronisation.pending()
        if len(lines) > 8:  # a large model has hundreds of slices, which mostly lack the same worker
            lines[8:] = [f"and {len(lines) - 8} more"]
        return "; ".join(lines) or "nothing is waited for"

    def _add_pull(self, pull: Pull, ids: Iterable[int]) -> Future[dict[int, Any]]:
        """Add a pull of these slices, resolve it if they are all available, and return its future."""
        with self._lock:
            if self._error is not None:
                pull.future.set_exception(self._error)
                return pull.future
            complete = self._pulls.add(pull, list(ids))
        if complete:
            pull.resolve()
        return pull.future

    def _check_open(self) -> None:
        if self._error is not None:
            raise self._error


def _snapshot(copies: Mapping[int, tuple[np.ndarray, dict[str, np.ndarray]]]) -> ShardCopy:
    return ShardCopy({id: copy[0] for id, copy in copies.items()}, {id: copy[1] for id, copy in copies.items()})

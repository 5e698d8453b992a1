"""The shard of a server: slices of params, updated once all workers of a group have pushed gradients.

With one worker group, values are not copied: a pull returns the shard's own arrays. Step v changes slice s in place
only after *every* contributor to s has pushed its gradient for step v, after its last use of version v. A worker reads
s again only when its pull for version v + 1 resolves. Several worker groups change slices independently of each other,
so pulls return copies.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Future
from functools import partial
from operator import methodcaller
from typing import Any

import numpy as np

from dsinga.base.errors import RunError
from dsinga.cluster.server.collectives import Collectives
from dsinga.cluster.server.gradient_accumulator import Generations, Push, StalenessMeter
from dsinga.cluster.server.gradient_norms import GradientNorms
from dsinga.cluster.server.group_sync import GroupSync, LinkedShard, Policy, Routes, Send
from dsinga.cluster.server.pending_pulls import PendingPulls, Pull, Read, StalenessBound, resolve_all
from dsinga.cluster.server.served_slice import DeviceSlice, ServedSlice, ShardCopy, SliceSpec, join_copies
from dsinga.cluster.server.update_executors import InlineExecutor, SliceUpdate
from dsinga.ops import Processor
from dsinga.training import Updater


class Shard:
    """The slices of params on one server, with their updates. Thread-safe; only :meth:`snapshot` blocks.

    In each step of a worker group, from step ``start``, the workers in a slice's spec push it. A slice's version for a
    group is the group's next step for it. Gradients are added in the order of the workers, not of arrival: a run gives
    the same bits every time. With ``staleness``, no group gets values for a step that is more than so many steps ahead
    of the slowest group's. A shard serves one generation of each group, and refuses messages of others; :meth:`restart`
    begins the next one.

    ``executor`` runs updates (:mod:`dsinga.cluster.server.update_executors`). A ``gpu`` keeps and updates the slices,
    with the inline executor.
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
        gpu: Processor | None = None,
    ):
        self.gpu = gpu
        create = ServedSlice if gpu is None else partial(DeviceSlice, ops=gpu.ops())
        self.slices: dict[int, ServedSlice] = {spec.slice.id: create(spec, groups, start) for spec in slices}
        self._updater = updater
        self._groups = groups
        self.copies = False  # whether pulls return copies, since a value may change while a group uses it
        self.staleness_meter = StalenessMeter()
        if len(groups) > 1:
            self._return_copies()
        self._generations = Generations(generation)
        self._lock = threading.Lock()
        self._staleness_bound = StalenessBound(groups, staleness)
        self._pulls = PendingPulls(self.slices, self._staleness_bound)
        self.collectives = Collectives(groups, self._generations)
        self._group_sync: GroupSync | None = None
        assert not (executor.requires_single_group and self.copies), groups
        self.executor = executor()
        self.norms = GradientNorms(self.slices if updater.conf.clip_global_norm else {}, self._generations, self._lock)
        self._error: BaseException | None = None

    def synchronise(self, policy: Policy, group: int, routes: Routes, send: Send, patience: float = 0.0) -> None:
        """Keep in step with the same shard of other server groups, by ``policy``, before the first pull."""
        assert not self.executor.requires_single_group
        shard = weakref.ref(self)  # else it and the shard would refer to each other

        def fail(error: BaseException) -> None:
            if (open_shard := shard()) is not None:
                open_shard.close(error)

        self._group_sync = policy(
            LinkedShard(group, routes, self.slices, send, fail, patience, self._generations.first)
        )
        for served_slice in self.slices.values():
            if served_slice.filled:
                self._group_sync.begin(served_slice)
        self._return_copies()

    @property
    def group_sync(self) -> GroupSync:
        """The synchronisation with other server groups, after :meth:`synchronise`."""
        assert self._group_sync is not None
        return self._group_sync

    def _return_copies(self) -> None:
        self.copies = True
        for served_slice in self.slices.values():
            served_slice.meter = self.staleness_meter

    def put(
        self, values: Mapping[int, np.ndarray], state: Mapping[int, Mapping[str, np.ndarray]] | None = None
    ) -> None:
        """Set the initial values, float32 (size,), and the updater's state by name, both by slice id.

        A repeated call changes nothing. The shard owns the arrays, and updates them in place if they are writeable.
        """
        with self._lock:
            self._check_open()
            for id, value in values.items():
                self.slices[id].put(value, None if state is None else state.get(id, {}), self._updater)
                if self._group_sync is not None:
                    self._group_sync.begin(self.slices[id])
            complete = [pull for id in values for pull in self._pulls.serve(self.slices[id])]
        resolve_all(complete)

    def move(self, memory: Mapping[int, np.ndarray]) -> None:
        """Keep slices' values in this memory of their worker, float32 (size,), by slice id.

        The first caller's memory is used. Does nothing if pulls return copies.
        """
        with self._lock:
            self._check_open()
            for id, array in () if self.copies else memory.items():
                self.slices[id].move(array)

    def push(self, push: Push, gradients: Mapping[int, np.ndarray]) -> None:
        """Add gradients, float32 (size,), by slice id; update slices that a whole group has pushed.

        Gradients of slices with a width may be sparse rows; if all are, only these rows are updated. The shard owns the
        arrays, and may overwrite them. A repeated push is dropped. Raises RunError for a push of another generation.
        """
        with self._lock:
            self._check_open()
            message = f"a push of worker {push.worker} of group {push.group} at step {push.step}"
            self._generations.check(push.group, push.generation, message)
            complete = [
                self.slices[id]
                for id, gradient in gradients.items()
                if self.slices[id].contribute(
                    push.group, push.step, push.worker, None if push.skip else gradient, push.blocks
                )
            ]
        self._update(self.norms.hold(complete, push), push.group, [self.slices[id] for id in gradients])

    def _update(self, complete: Sequence[ServedSlice], group: int, pushed: Iterable[ServedSlice] = ()) -> None:
        updates = [self._create_update(served_slice, group) for served_slice in complete]
        self.executor.add(updates, pushed)
        if self._group_sync is not None:
            self._group_sync.push_applied(complete)

    def clip(self, push: Push, factor: float) -> None:
        """Update the slices by a step's gradients times ``factor``, which bounds the total norm."""
        self._update(self.norms.clip(push, factor), push.group)

    def _create_update(self, served_slice: ServedSlice, group: int) -> SliceUpdate:
        end, fail = partial(self._advance, served_slice, group), partial(self._fail, served_slice, group)
        try:
            return SliceUpdate(served_slice, served_slice.update_blocks(group, self._updater), end, fail)
        except BaseException as error:
            fail(error)
            raise

    def _advance(self, served_slice: ServedSlice, group: int) -> None:
        """Set a slice to its next version, after averaging with other server groups if it is due."""
        advance = partial(self._set_advanced, served_slice, group)
        if self._group_sync is None:
            advance()
        else:
            self._group_sync.slice_updated(served_slice, served_slice.accumulators[group].version + 1, advance)

    def _set_advanced(self, served_slice: ServedSlice, group: int) -> None:
        with self._lock:
            served_slice.accumulators[group].advance()
            complete = self._pulls.serve(served_slice)
        resolve_all(complete)

    def _fail(self, served_slice: ServedSlice, group: int, error: BaseException) -> None:
        step = served_slice.accumulators[group].version
        error.add_note(f"in the update of {served_slice.spec.slice} at step {step}")
        # The error is not chained, since its frames would keep the server and its threads alive.
        self.close(RunError(f"updating slice {served_slice.spec.slice} at step {step} failed: {error!r}"))

    def pull(self, ids: Iterable[int], version: int, group: int = 0) -> Future[dict[int, np.ndarray]]:
        """Return a future of the values by slice id, for step ``version`` of a group.

        The future resolves when the group's earlier updates are in all of the slices, and the slowest group is within
        the staleness. The arrays are float32 (size,), read-only, and do not change until the caller has pushed.
        """
        read: Read = methodcaller("copy_for", group) if self.copies else methodcaller("read")
        return self._add_pull(Pull(group, version, read, deferred=self.copies), ids)

    def leave(self, group: int) -> None:
        """Stop counting a group for the staleness: it has finished, or begins later (:meth:`join`)."""
        with self._lock:
            self._check_open()
            self._staleness_bound.leave(group)
            complete = self._pulls.serve_all()
        resolve_all(complete)

    def join(self, group: int, step: int) -> None:
        """Let a group that called :meth:`leave` before its first push begin at ``step``."""
        with self._lock:
            self._check_open()
            for served_slice in self.slices.values():
                assert served_slice.accumulators[group].idle, (str(served_slice.spec.slice), group, step)
                served_slice.accumulators[group].restart(step)
            self._staleness_bound.join(group)

    def restart(self, group: int, generation: int, step: int = 0) -> int:
        """Restart a worker group after a loss, as ``generation``; return the step of its first pull.

        Its gradients of incomplete steps are dropped, its pulls and collectives fail, and messages of its earlier
        generation are refused. It begins at ``step`` or, if higher, at the highest step that it has reached in any
        slice: no slice is updated twice for a step. If several servers serve the group, call this again on each with
        the highest answer.
        """
        assert self.copies, "a single worker group begins anew from a snapshot"
        error = RunError(f"worker group {group} has begun anew as generation {generation}")
        with self._lock:
            self._check_open()
            self._generations.set(group, generation)
            accumulators = [served_slice.accumulators[group] for served_slice in self.slices.values()]
            requests = self.norms.drop(group)
            step = max([step, *(accumulator.next_step for accumulator in accumulators)])
            for accumulator in accumulators:
                accumulator.restart(step)
            self.norms.restart(group, step)
            self._staleness_bound.join(group)
            failed = self._pulls.clear(group)
            complete = self._pulls.serve_all()
        self.collectives.restart(group, error)
        for request in requests:
            request.fail(error)
        for pull in failed:
            pull.future.set_exception(error)
        resolve_all(complete)
        return step

    def snapshot(self, version: int | None, timeout: float, state: bool = True, copied: bool = True) -> ShardCopy:
        """Wait for a copy of all values, as in :meth:`request_snapshot`, at most ``timeout`` seconds."""
        future = self.request_snapshot(version, state, copied)
        try:
            return self.executor.wait(future, timeout)
        except TimeoutError:
            pending = self.pending()
            with self._lock:
                self._pulls.remove(future)
            name = "snapshot" if version is None else f"snapshot of version {version}"
            raise RunError(f"no {name} within {timeout:g} s: {pending}") from None

    def request_snapshot(self, version: int | None, state: bool = True, copied: bool = True) -> Future[ShardCopy]:
        """Return a future of a copy of all values, and of the updater's states if ``state``.

        With one group the copy has exactly ``version``, and training may continue. If the version is None, each slice
        is copied as it is, between two updates. Unless ``copied`` it contains the shard's own arrays, which must not be
        updated any more. The future fails with RunError if a slice is past ``version``.
        """
        read: Read = methodcaller("copy" if copied else "contents", state)
        if version is None:
            assert not self.executor.requires_single_group
            return self._add_pull(Pull(None, 0, read, deferred=True, finish=join_copies), self.slices)
        (group,) = self._groups
        return self._add_pull(Pull(group, version, read, exact=True, finish=join_copies), self.slices)

    def close(self, error: BaseException) -> None:
        """Fail all pulls, collectives, flushes and later calls with ``error``; a second call does nothing."""
        with self._lock:
            if self._error is not None:
                return
            self._error = error
            pulls = self._pulls.clear()
            requests = self.norms.close(error)
        self.executor.close(str(error))
        self.collectives.close(error)
        if self._group_sync is not None:
            self._group_sync.close(error)
        for request in requests:
            request.fail(error)
        for pull in pulls:
            pull.future.set_exception(error)

    def pending(self) -> str:
        """Return words for what the shard waits for, such as "slice w1[0:450] at step 12: no worker has come"."""
        with self._lock:
            lines = [*self._pulls.pending(), *self.norms.pending()]
        lines += self.collectives.pending()
        if self._group_sync is not None:
            lines += self._group_sync.pending()
        if len(lines) > 8:  # a large model has hundreds of slices, which mostly lack the same worker
            lines[8:] = [f"and {len(lines) - 8} more"]
        return "; ".join(lines) or "nothing is waited for"

    def _add_pull(self, pull: Pull, ids: Iterable[int]) -> Future[Any]:
        """Add a pull of these slices, resolved if all are available; return its future, with any error."""
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

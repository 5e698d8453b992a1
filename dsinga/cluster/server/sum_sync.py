"""Keeps server groups in step by adding up their changes: each sends the changes of its slices to all others.

A slice's change is its value minus the value at its last change. Received changes are added to both, and forwarded on
the onward routes.

A slice that is not trainable (a running mean or variance) is an estimate that each group makes. Each group uses the
mean of all groups' newest estimates, because changes could make a small variance negative.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from concurrent.futures import Future
from functools import partial
from typing import Any

import numpy as np

from dsinga.base.registry import register
from dsinga.cluster.server.change_sender import ChangeSender
from dsinga.cluster.server.collectives import add_up
from dsinga.cluster.server.group_sync import GroupSync, LinkedShard, Policy
from dsinga.cluster.server.served_slice import ServedSlice, ShardCopy, join_copies
from dsinga.cutting.cluster_topology import Topology
from dsinga.job.updaterconf import EMAConf


class SumSync(GroupSync):
    """Exchanges and adds the changes of a shard's slices with other server groups. Thread-safe.

    A slice's change is sent after ``frequency`` updates. If a linked group is lost for ``patience`` seconds, the shard
    is closed. In the end trainable slices have the updates of all groups, other slices their mean.
    """

    def __init__(self, shard: LinkedShard, frequency: int):
        super().__init__(shard)
        assert frequency > 0, frequency
        self._frequency, self._groups = frequency, range(len(shard.routes.starts))
        self.sender = ChangeSender(shard.routes, shard.send, shard.fail, shard.patience)
        # By slice id, under the lock of the slice: its value at the last change, and the number of updates since then.
        self._last: dict[int, np.ndarray] = {}
        self._updates: dict[int, int] = {}
        # By id of a slice that is not trainable, under its lock: the newest estimate of each group.
        self._estimates: dict[int, dict[int, np.ndarray]] = {}

    def begin(self, served_slice: ServedSlice) -> None:
        """Begin to track a slice's changes from its present value; a repeated call changes nothing."""
        id = served_slice.spec.slice.id
        if id not in self._updates:
            self._updates[id] = 0
            if served_slice.spec.trainable:
                self._last[id] = served_slice.value.copy()
            else:
                self._estimates[id] = dict.fromkeys(self._groups, served_slice.value.copy())

    def push_applied(self, served_slices: Iterable[ServedSlice]) -> None:
        """Count an update of these slices, and send the changes of slices with ``frequency`` updates."""
        for served_slice in served_slices:
            with served_slice.lock:
                self._updates[served_slice.spec.slice.id] += 1
                if self._updates[served_slice.spec.slice.id] >= self._frequency:
                    self._enqueue_change(served_slice)
        self.sender.dispatch(self._starts)

    def receive(
        self, route: int, keys: Sequence[Any], arrays: Sequence[np.ndarray], sender: int, generation: int = 0
    ) -> None:
        """Add the changes that the server group ``sender`` sends on a route, and forward them.

        They are float32 (size,). A change's key is its slice id, an estimate's (slice id, the group that made it).
        """
        self.check_message(sender, generation)
        onward = self._routes[route].onward
        for key, change in zip(keys, arrays, strict=True):
            if isinstance(key, int):
                self._receive_change(key, onward, change)
            else:
                id, group = key
                self._receive_estimate(id, group, onward, change)
        self.sender.dispatch(onward)

    def _receive_change(self, id: int, onward: Sequence[int], change: np.ndarray) -> None:
        served_slice = self._slices[id]
        with served_slice.lock:
            served_slice.changes += 1
            self._take_change(served_slice, change)
            self.sender.enqueue(onward, id, change)

    def _receive_estimate(self, id: int, group: int, onward: Sequence[int], estimate: np.ndarray) -> None:
        """Store the newest estimate of another group."""
        served_slice = self._slices[id]
        with served_slice.lock:
            served_slice.changes += 1
            self._estimates[id][group] = estimate
            if not self._updates[id]:
                np.copyto(served_slice.value, self._mean_of_estimates(id))
            self.sender.enqueue(onward, (id, group), estimate)

    def _take_change(self, served_slice: ServedSlice, change: np.ndarray) -> None:
        served_slice.value += change
        self._last[served_slice.spec.slice.id] += change

    def _mean_of_estimates(self, id: int) -> np.ndarray:
        estimates = self._estimates[id]
        return add_up([estimates[group] for group in self._groups]) / np.float32(len(self._groups))

    def flush(self) -> Future[int]:
        """Send all changes that other server groups lack, even with fewer than ``frequency`` updates.

        When all worker groups have finished, flush all shards repeatedly until the numbers of messages stay the same.
        Then all server groups have the same values, to rounding.
        """
        for served_slice in self._slices.values():
            with served_slice.lock:
                if self._updates[served_slice.spec.slice.id]:
                    self._enqueue_change(served_slice)
                self._settle(served_slice)
        self.sender.dispatch(self._starts)
        return self.sender.flush()

    def _settle(self, served_slice: ServedSlice) -> None:
        """Set a slice's value at the end of training; the caller holds the slice's lock."""

    def values_for(self, group: int, generation: int, source: int) -> ShardCopy:
        """Return this shard's share of the first values for another group's lost and replaced shard.

        The new shard of the server group ``group`` begins with the sum of all linked shards' values, which they return
        one after the other. The shard of the group ``source`` returns its values, without unsent changes, and the
        updater's state. Others return at most corrections for some slices. This shard now refuses messages of earlier
        generations, and keeps changes for the new shard until :meth:`link`:

        - on a route that reaches the source after the lost group, they are not part of the source's value. They are
          sent after :meth:`link`.
        - on a route that ends at the lost group, they are part of it, or the source receives them soon. They are
          dropped.
        - on any other route, they are part of it, and still to be forwarded. So they are subtracted, and sent after
          :meth:`link`.

        Each group gets each change once, except changes that the lost group had received and not forwarded, and changes
        that the source receives later by another route.
        """
        self.accept(group, generation)
        self.sender.replace(group)
        shares = {}
        for id, served_slice in self._slices.items():
            with served_slice.lock:
                known = self.sender.take_known(group, source, id)
                share = self._value_for_lost(served_slice, known, self._group == source)
                if share is not None:
                    contents = served_slice.contents(self._group == source)
                    shares[id] = share, {name: array.copy() for name, array in contents[1].items()}
        return join_copies(shares)

    def _value_for_lost(
        self, served_slice: ServedSlice, known: np.ndarray | None, is_source: bool
    ) -> np.ndarray | None:
        """Return this group's share of the value with which a lost group begins again; the caller holds the lock."""
        if is_source:
            value = self._last.get(served_slice.spec.slice.id, served_slice.value)
            return value.copy() if known is None else value - known
        return None if known is None else -known

    def link(self, group: int, generation: int) -> None:
        """Send changes to a linked server group that has come back, and accept its changes."""
        super().link(group, generation)
        self.sender.link(group)

    def close(self, error: BaseException) -> None:
        """Stop sending, and fail the futures of all flushes with ``error``."""
        self.sender.close(error)

    def check_open(self) -> None:
        """Raise the error of :meth:`close`, if it has been called."""
        self.sender.check_open()

    def pending(self) -> list[str]:
        """Name the server groups that have not acknowledged a message, for errors."""
        return self.sender.pending()

    def _enqueue_change(self, served_slice: ServedSlice) -> None:
        """Enqueue a slice's change, and track the next one; the caller holds its lock."""
        id = served_slice.spec.slice.id
        self._updates[id] = 0
        if served_slice.spec.trainable:
            change = self._take_own_change(served_slice)
            if change is not None:
                self.sender.enqueue(self._starts, id, change)
            return
        estimate = self._estimates[id][self._group] = served_slice.value.copy()
        np.copyto(served_slice.value, self._mean_of_estimates(id))
        self.sender.enqueue(self._starts, (id, self._group), estimate)

    def _take_own_change(self, served_slice: ServedSlice) -> np.ndarray | None:
        last = self._last[served_slice.spec.slice.id]
        change = served_slice.value - last
        np.copyto(last, served_slice.value)
        return change


@register("sync_method", "kSum")
def sum_of_changes(topology: Topology, average: EMAConf | None) -> Policy:
    """Return the policy that server groups add up their changes, every ``sync_freq`` updates, without waiting."""
    return partial(SumSync, frequency=topology.sync_freq)

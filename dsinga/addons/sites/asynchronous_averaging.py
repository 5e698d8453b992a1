"""Averages the params of server groups asynchronously: no group waits for another.

Each group's outer optimizer applies each outer gradient that arrives, times the sender's share, to its own copy of the
outer params. Copies get the same gradients in different orders, and are equal in the end if the outer optimizer has no
momentum.

Changes in :mod:`dsinga.cluster.server.sum_sync` have the opposite sign.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial

import numpy as np

from dsinga.addons.sites.averaging_rule import AveragingRule
from dsinga.addons.sites.synchronous_averaging import SynchronousAveraging
from dsinga.base.arrays import EMA_SLOT
from dsinga.base.registry import register
from dsinga.cluster.server.group_sync import LinkedShard, Policy
from dsinga.cluster.server.served_slice import OUTER_PARAMS, ServedSlice
from dsinga.cluster.server.sum_sync import SumSync
from dsinga.cutting.cluster_topology import Topology
from dsinga.job.updaterconf import EMAConf

CLOCK = -1  # in place of a slice id: the number of outer steps of a group


class AsynchronousAveraging(SumSync):
    """Averages the params of server groups without waiting; each group has its own outer optimizer."""

    def __init__(self, shard: LinkedShard, rule: AveragingRule):
        super().__init__(shard, rule.period)
        self.rule = rule
        self._clock: dict[int, int] = {}  # by server group: its outer steps, as far as they are known here
        self._seen: dict[int, int] = {}  # by slice id: outer steps of the fastest other group at its last one

    def begin(self, served_slice: ServedSlice) -> None:
        """Begin with a slice's value as its outer params, after the outer steps of a resumed run."""
        super().begin(served_slice)
        if served_slice.spec.trainable:
            self._last[served_slice.spec.slice.id] = self.rule.outer_params(served_slice)
        version = max(accumulator.version for accumulator in served_slice.accumulators.values())
        self._count(self._group, self.rule.rounds(served_slice.spec.slice.id, version))

    def _count(self, group: int, outer_steps: int) -> None:
        self._clock[group] = max(self._clock.get(group, 0), outer_steps)

    def push_applied(self, served_slices: Iterable[ServedSlice]) -> None:
        """Do nothing: :meth:`slice_updated` counts updates."""

    def slice_updated(self, served_slice: ServedSlice, version: int, on_averaged: Callable[[], None]) -> None:
        """Take an outer step of a slice updated to ``version``, if one is due, and call ``on_averaged``."""
        id = served_slice.spec.slice.id
        with served_slice.lock:
            self._updates[id] += 1
            due = self.rule.is_due(id, version)
            if due:
                self._count(self._group, self.rule.rounds(id, version))
                self._enqueue_change(served_slice)
        on_averaged()
        if due:
            count = np.array([self._clock[self._group]], np.float32)
            self.sender.enqueue(self._starts, (CLOCK, self._group), count)
            self.sender.dispatch(self._starts)

    def _receive_estimate(self, id: int, group: int, onward: Sequence[int], estimate: np.ndarray) -> None:
        if id == CLOCK:
            self._count(group, int(estimate[0]))
            self.sender.enqueue(onward, (CLOCK, group), estimate)
        else:
            super()._receive_estimate(id, group, onward, estimate)

    def age(self, id: int, version: int) -> int:
        """Return the steps since a slice's last outer step, at ``version``."""
        return self.rule.age(id, version)

    def _take_change(self, served_slice: ServedSlice, change: np.ndarray) -> None:
        outer = served_slice.outer[OUTER_PARAMS]
        before = outer.copy()
        self._step(served_slice, change)
        served_slice.value += np.subtract(outer, before, out=before)

    def _take_own_change(self, served_slice: ServedSlice) -> np.ndarray | None:
        """Take the group's own outer step and continue from the outer params; None if it is too late to count."""
        change = served_slice.value - served_slice.outer[OUTER_PARAMS]
        factor = self.rule.age_factor(self._age(served_slice.spec.slice.id))
        change *= np.float32(factor * self.rule.shares[self._group])
        if factor:
            self._step(served_slice, change)
        self.rule.mix(served_slice.value, served_slice.outer[OUTER_PARAMS])
        return change if factor else None

    def _age(self, id: int) -> int:
        """Return how many outer steps the group is behind the fastest other group since its last one, less one."""
        others = [count for group, count in self._clock.items() if group != self._group]
        if not others:
            return 0
        fastest = max(others)
        age = fastest - self._seen.get(id, fastest) - 1
        self._seen[id] = fastest
        return max(0, age)

    def _settle(self, served_slice: ServedSlice) -> None:
        """Set the value, which may include a share of the group's own, to the outer params."""
        if served_slice.spec.trainable:
            np.copyto(served_slice.value, served_slice.outer[OUTER_PARAMS])

    def _value_for_lost(
        self, served_slice: ServedSlice, known: np.ndarray | None, is_source: bool
    ) -> np.ndarray | None:
        """Return the outer params with which a group that comes back begins."""
        return super()._value_for_lost(served_slice, None, is_source)

    def _step(self, served_slice: ServedSlice, change: np.ndarray) -> None:
        round = max(0, self._clock[self._group] - 1)
        self.rule.update(served_slice.spec, round, -change, served_slice.outer, served_slice.state.get(EMA_SLOT))


@register("sync_method", "kMean")
def averaging(topology: Topology, average: EMAConf | None) -> Policy:
    """Create the policy with which server groups of one worker group each average their params."""
    conf = topology.mean
    assert conf is not None
    rule = AveragingRule(conf, topology.sync_freq, topology.server_groups, average)
    return partial(AsynchronousAveraging if conf.asynchronous else SynchronousAveraging, rule=rule)

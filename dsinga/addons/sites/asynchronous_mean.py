"""Asynchronous agreement of server groups by the mean of their changes: none waits for another.

Each group keeps its own copy of the outer values. Its change, times its share of the mean, is a gradient for the outer
updater of every group, as soon as it arrives. So the copies have the same gradients in other orders: they differ a
little while training goes on, and with an outer updater without momentum agree in the end.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import numpy as np

from dsinga.addons.sites.mean_policy import MeanPolicy
from dsinga.base.param_arrays import EMA_SLOT
from dsinga.cluster.server.agreement import LinkedShard
from dsinga.cluster.server.served_slice import OUTER_VALUE, ServedSlice
from dsinga.cluster.server.synchronisation import Synchronisation

CLOCK = -1  # in place of a slice id: how often a group has agreed


class AsynchronousMean(Synchronisation):
    """A synchronisation whose changes are gradients of the outer updater, of server groups of one worker group each."""

    def __init__(self, shard: LinkedShard, policy: MeanPolicy):
        super().__init__(shard, policy.period)
        self.policy = policy
        self._clock: dict[int, int] = {}  # by server group: how often it has agreed, where that is known here
        self._seen: dict[int, int] = {}  # by slice id: how often the others had agreed when the slice last did

    def begin(self, served_slice: ServedSlice) -> None:
        """Begin as the base class does, after as many agreements as a run that goes on has had."""
        super().begin(served_slice)
        version = max(accumulator.version for accumulator in served_slice.accumulators.values())
        self._count(self._group, self.policy.rounds(served_slice.spec.slice.id, version))

    def _count(self, group: int, agreements: int) -> None:
        self._clock[group] = max(self._clock.get(group, 0), agreements)

    def _first_value(self, served_slice: ServedSlice) -> np.ndarray:
        """Return the outer value."""
        return self.policy.outer_value(served_slice)

    def push_applied(self, served_slices: Iterable[ServedSlice]) -> None:
        """Do nothing: :meth:`slice_updated` counts updates."""

    def slice_updated(self, served_slice: ServedSlice, version: int, proceed: Callable[[], None]) -> None:
        """Let a slice that was updated to ``version`` agree if it is due, and call ``proceed``."""
        id = served_slice.spec.slice.id
        with served_slice.lock:
            self._updates[id] += 1
            due = self.policy.is_due(id, version)
            if due:
                self._count(self._group, self.policy.rounds(id, version))
                self._enqueue_change(served_slice)
        proceed()
        if due:
            count = np.array([self._clock[self._group]], np.float32)
            self.sender.enqueue(self._starts, (CLOCK, self._group), count)
            self.sender.dispatch(self._starts)

    def _receive_estimate(self, id: int, group: int, onward: Sequence[int], estimate: np.ndarray) -> None:
        """Take the newest estimate of another group, or with ``CLOCK`` for the id, how often it has agreed."""
        if id == CLOCK:
            self._count(group, int(estimate[0]))
            self.sender.enqueue(onward, (CLOCK, group), estimate)
        else:
            super()._receive_estimate(id, group, onward, estimate)

    def age(self, id: int, version: int) -> int:
        """Return how many steps before ``version`` a slice has last agreed."""
        return self.policy.age(id, version)

    def _take_change(self, served_slice: ServedSlice, change: np.ndarray) -> None:
        outer = served_slice.outer[OUTER_VALUE]
        before = outer.copy()
        self._step(served_slice, change)
        served_slice.value += np.subtract(outer, before, out=before)

    def _take_own_change(self, served_slice: ServedSlice) -> np.ndarray | None:
        """Take the group's own change, and go on from the outer value; None where it is too late to count."""
        change = served_slice.value - served_slice.outer[OUTER_VALUE]
        factor = self.policy.age_factor(self._age(served_slice.spec.slice.id))
        change *= np.float32(factor * self.policy.shares[self._group])
        if factor:
            self._step(served_slice, change)
        self.policy.mix(served_slice.value, served_slice.outer[OUTER_VALUE])
        return change if factor else None

    def _age(self, id: int) -> int:
        """Return how many agreements a group is late: those of the fastest other group since its last one, less one.

        It is 0 where the others have not been heard of by the last one, as in a run that goes on, or after a loss.
        """
        others = [count for group, count in self._clock.items() if group != self._group]
        if not others:
            return 0
        fastest = max(others)
        age = fastest - self._seen.get(id, fastest) - 1
        self._seen[id] = fastest
        return max(0, age)

    def _settle(self, served_slice: ServedSlice) -> None:
        """Set the value, which may keep a share of the group's own, to the outer one."""
        if served_slice.spec.trainable:
            np.copyto(served_slice.value, served_slice.outer[OUTER_VALUE])

    def _value_for_lost(
        self, served_slice: ServedSlice, known: np.ndarray | None, is_source: bool
    ) -> np.ndarray | None:
        """Return the outer value of the source: a group that comes back begins from it."""
        return super()._value_for_lost(served_slice, None, is_source)

    def _step(self, served_slice: ServedSlice, change: np.ndarray) -> None:
        round = max(0, self._clock[self._group] - 1)
        self.policy.update(served_slice.spec, round, -change, served_slice.outer, served_slice.state.get(EMA_SLOT))

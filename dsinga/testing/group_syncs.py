"""GroupSyncContract: tests that every way to synchronise server groups must pass."""

from __future__ import annotations

import pickle
from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future
from functools import partial
from typing import Any

import numpy as np
import pytest

from dsinga.base.errors import RunError
from dsinga.cluster.server import Policy, Push, Shard, Slice, SliceSpec, routes
from dsinga.job import ChangeMethod, UpdaterConf, UpdaterType
from dsinga.job.updaterconf import LRGenConf
from dsinga.training import create_updater

SIZE, STEPS, WAIT = 6, 7, 10.0
LINKS = {"pair": [(0, 1)], "all to all": [(0, 1), (0, 2), (1, 2)], "chain": [(0, 1), (1, 2)]}


class LinkedGroups:
    """Simulates linked server groups of one worker each, with messages in a chosen order.

    Slice 0 is trainable, slice 1 has averages. Messages wait until :meth:`deliver`.
    """

    def __init__(self, policy: Policy, links: Sequence[tuple[int, int]]):
        paths = routes(links, 1 + max(map(max, links)))
        updater = UpdaterConf(type=UpdaterType.kSGD, learning_rate=LRGenConf(type=ChangeMethod.kFixed, base_lr=0.1))
        specs = [SliceSpec(Slice(id, f"p{id}", 0, SIZE, 0), trainable=not id, whole_param=f"p{id}") for id in (0, 1)]
        self.messages: deque[tuple[int, int, Sequence[Any], Sequence[np.ndarray], int, Future[None]]] = deque()
        self.shards = [Shard(specs, create_updater(updater), [group]) for group in range(len(paths.starts))]
        for group, shard in enumerate(self.shards):
            shard.synchronise(policy, group, paths, partial(self._send, group), WAIT)
            shard.put({id: np.ones(SIZE, np.float32) for id in (0, 1)})

    def _send(
        self, sender: int, group: int, route: int, keys: Sequence[Any], arrays: Sequence[np.ndarray]
    ) -> Future[None]:
        self.messages.append((group, route, keys, [array.copy() for array in arrays], sender, Future()))
        return self.messages[-1][-1]

    def deliver(self, newest: bool = False) -> None:
        """Deliver all messages that wait, and those that they cause, oldest or newest first."""
        while self.messages:
            group, route, keys, arrays, sender, arrival = self.messages.pop() if newest else self.messages.popleft()
            self.shards[group].group_sync.receive(route, keys, arrays, sender, 0)
            arrival.set_result(None)

    def train(self, newest: bool = False) -> None:
        """Do some steps in all groups, with different gradients and averages."""
        for step in range(STEPS):
            for group, shard in enumerate(self.shards):
                pushed = np.random.default_rng([group, step]).normal(size=(2, SIZE)).astype(np.float32)
                shard.push(Push(0, group, step, 0), dict(enumerate(pushed)))
            self.deliver(newest)

    def flush(self, newest: bool = False) -> list[np.ndarray]:
        """Flush all groups until no more messages follow; return each group's values, (2, SIZE)."""
        last: list[int] | None = None
        numbers: list[int] = []
        while numbers != last:
            flushes = [shard.group_sync.flush() for shard in self.shards]
            self.deliver(newest)
            last, numbers = numbers, [flush.result(WAIT) for flush in flushes]
        return [np.stack([*shard.snapshot(None, WAIT).values.values()]) for shard in self.shards]


class GroupSyncContract:
    """The tests that every :class:`GroupSync` must pass; a subclass, named ``Test...``, creates its policy.

    In the end all server groups must have equal values, to rounding, for any links and any order of messages. Messages
    of another generation, and messages after the end, must be refused.
    """

    tolerance = 1e-5  # between the values of groups in the end

    def create(self, groups: int) -> Policy:
        """Return the policy for ``groups`` server groups of one worker group each; subclasses override this."""
        pytest.skip("the test class creates no policy")

    def test_it_is_sent_to_servers(self) -> None:
        """The policy can be pickled, as it is for servers."""
        LinkedGroups(pickle.loads(pickle.dumps(self.create(2))), LINKS["pair"]).train()

    @pytest.mark.parametrize("links", LINKS)
    @pytest.mark.parametrize("newest", [False, True])
    def test_all_groups_have_the_same_values_in_the_end(self, links: str, newest: bool) -> None:
        """All groups end with equal values for any order of messages, and a second flush changes nothing."""
        groups = LinkedGroups(self.create(2 if links == "pair" else 3), LINKS[links])
        groups.train(newest)
        values = groups.flush(newest)
        for value in (*values[1:], *groups.flush()):
            np.testing.assert_allclose(value, values[0], rtol=self.tolerance, atol=self.tolerance)

    def test_a_slice_begins_once(self) -> None:
        """Beginning a slice a second time changes nothing."""
        once, twice = (LinkedGroups(self.create(2), LINKS["pair"]) for _ in range(2))
        for shard in twice.shards:
            for served_slice in shard.slices.values():
                shard.group_sync.begin(served_slice)
        for groups in (once, twice):
            groups.train()
        np.testing.assert_array_equal(once.flush(), twice.flush())

    def test_messages_of_another_generation_are_refused(self) -> None:
        """Messages of an older process, which was given up but can still send, are refused."""
        groups = LinkedGroups(self.create(2), LINKS["pair"])
        with pytest.raises(RunError, match="a message of server group 1 is of generation 3"):
            groups.shards[0].group_sync.receive(0, [0], [np.ones(SIZE, np.float32)], 1, 3)

    def test_nothing_waits_after_the_end(self) -> None:
        """After ``close``, flushes and messages fail with its error instead of waiting."""
        groups, error = LinkedGroups(self.create(2), LINKS["pair"]), RunError("the run has ended")
        for step in range(STEPS):
            groups.shards[0].push(Push(0, 0, step, 0), {0: np.ones(SIZE, np.float32)})
            if groups.shards[0].slices[0].accumulators[0].version == step:
                break  # it waits for the other group
        flush = groups.shards[0].group_sync.flush()
        assert all(isinstance(line, str) for line in groups.shards[0].group_sync.pending())
        groups.shards[0].close(error)
        assert flush.exception(WAIT) is error
        with pytest.raises(RunError, match="the run has ended"):
            groups.shards[0].group_sync.receive(0, [0], [np.ones(SIZE, np.float32)], 1, 0)

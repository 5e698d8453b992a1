"""Updaters of shards, and a network between the shards of server groups, in which a test delivers each message."""

import threading
from concurrent.futures import Future
from functools import partial

import numpy as np

from dsinga.cluster.server import Shard, Slice, SliceSpec, SumSync, routes
from dsinga.job import UpdaterConf
from dsinga.training import create_updater
from dsinga.training.updaters import SGD

WAIT = 60.0  # seconds; only a failing test waits so long
SIZE = 12
GRAPHS = {
    "two": [(0, 1)],
    "all to all": [(0, 1), (0, 2), (1, 2)],
    "star": [(0, 1), (0, 2), (0, 3)],
    "chain": [(2, 0), (0, 3), (3, 1)],
    "ring": [(0, 1), (1, 2), (2, 3), (3, 4), (4, 0)],
}


def sgd(rate=1.0, **changes):
    return create_updater(UpdaterConf(type="kSGD", learning_rate={"type": "kFixed", "base_lr": rate}, **changes))


def ones(times=1.0):
    return np.full(SIZE, times, np.float32)


def specs(count=3, contributors=(0,), **changes):
    return [SliceSpec(Slice(id, f"p{id}", 0, SIZE, 0), contributors=contributors, **changes) for id in range(count)]


def make_shard(slice_specs, groups=(0, 1), updater=None, **options):
    """Return a shard of two worker groups whose values are zeros."""
    shard = Shard(slice_specs, updater or sgd(), groups, **options)
    shard.put({spec.slice.id: ones(0) for spec in slice_specs})
    return shard


class GatedSGD(SGD):
    """Plain SGD that waits before each change until a test opens the gate."""

    def __init__(self):
        super().__init__(UpdaterConf(type="kSGD", learning_rate={"type": "kFixed", "base_lr": 1.0}))
        self.started, self.gate, self.threads = threading.Event(), threading.Event(), set()

    def change(self, *arguments):
        self.threads.add(threading.current_thread())
        self.started.set()
        assert self.gate.wait(WAIT)
        super().change(*arguments)


class Network:
    """A network between shards that delivers each message when the test calls ``deliver``."""

    def __init__(self, edges, frequency=1, slices=2, worker_groups=1, **changes):
        self.messages, self.lost = [], set()
        self.table, self.frequency = routes(edges, 1 + max(map(max, edges))), frequency
        self.slices, self.worker_groups, self.changes = range(slices), worker_groups, changes
        self.generations = dict.fromkeys(range(len(self.table.starts)), 0)
        self.shards = [self.create(group, {id: ones(0) for id in self.slices}) for group in self.generations]

    def create(self, group, values, start=0):
        worker_groups = range(group * self.worker_groups, (group + 1) * self.worker_groups)
        slice_specs = specs(len(self.slices), **self.changes)
        shard = Shard(slice_specs, sgd(), worker_groups, self.generations[group], start)
        policy = partial(SumSync, frequency=self.frequency)
        shard.synchronise(policy, group, self.table, partial(self.send, group), WAIT)
        shard.put(values)
        return shard

    def send(self, sender, group, route, ids, arrays):
        if group in self.lost:
            raise OSError("connection refused")
        arrival = Future()
        self.messages.append((group, route, dict(zip(ids, arrays, strict=True)), arrival, sender))
        return arrival

    def deliver(self, number=0):
        group, route, changes, arrival, sender = self.messages.pop(number)
        self.shards[group].group_sync.receive(route, [*changes], [*changes.values()], sender, self.generations[sender])
        arrival.set_result(None)

    def lose(self, group):
        """Lose a group: messages to it fail, and those that it has sent do not arrive."""
        self.lost.add(group)
        messages, self.messages = self.messages, []
        for message in messages:
            receiver, *_, arrival, sender = message
            if receiver == group:
                arrival.set_exception(OSError("connection reset"))
            elif sender != group:
                self.messages.append(message)

    def value(self, group, id=0):
        return self.shards[group].snapshot(None, WAIT).values[id]

    def flush(self):
        """Flush all shards repeatedly until the numbers of messages stay the same; return the number of rounds."""
        last, rounds = None, 0
        while True:
            futures = [shard.group_sync.flush() for shard in self.shards]
            while self.messages:
                self.deliver(-1)
            numbers = [future.result(0) for future in futures]
            rounds += 1
            if numbers == last:
                return rounds
            last = numbers

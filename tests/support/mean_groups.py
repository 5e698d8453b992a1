"""Shards of server groups that average their params, and what the papers say they compute, written anew in numpy."""

from concurrent.futures import Future
from functools import partial

import numpy as np

from dsinga.addons.sites.asynchronous_averaging import AsynchronousAveraging
from dsinga.addons.sites.averaging_rule import AveragingRule
from dsinga.addons.sites.mean_conf import MeanConf
from dsinga.addons.sites.synchronous_averaging import SynchronousAveraging
from dsinga.cluster.server import Push, Shard, Slice, SliceSpec, routes
from dsinga.job import UpdaterConf
from dsinga.training import create_updater
from tests.support.shard_network import WAIT

SHAPE = (4, 3)
SIZE = 12


def rate(kind, lr, **changes):
    return UpdaterConf(type=kind, learning_rate={"type": "kFixed", "base_lr": lr}, **changes)


def gradient(group, step, value):
    """Return the gradient of a loss that is another one in each group and step, float32 (12,)."""
    random = np.random.default_rng([group, step])
    curvature, centre = random.uniform(0.5, 1.5, SIZE), random.normal(group, 1, SIZE)
    return (curvature * (value - centre)).astype(np.float32)


class MeanGroups:
    """Server groups of one worker, whose shards get each other's messages at once, or when the test delivers them.

    ``links`` are the pairs of groups that are linked; by default all are.
    """

    def __init__(self, groups, period, inner, links=None, delayed=False, specs=None, start=0, states=None, **mean):
        kind = AsynchronousAveraging if mean.get("asynchronous") else SynchronousAveraging
        policy = partial(kind, rule=AveragingRule(MeanConf(**mean), period, groups))
        self.messages, self.delayed, self.shards = [], delayed, []
        links = links or [(a, b) for a in range(groups) for b in range(a)]
        self.table, self.steps = routes(links, groups), [start] * groups
        self.sent_bytes = 0
        specs = specs or [SliceSpec(Slice(0, "w", 0, SIZE, 0), whole_param="w", shape=SHAPE)]
        for group in range(groups):
            shard = Shard(specs, create_updater(inner), [group], start=start)
            shard.synchronise(policy, group, self.table, partial(self.send, group), WAIT)
            values, state = ({spec.slice.id: np.ones(spec.slice.size, np.float32) for spec in specs}, None)
            shard.put(*(states[group] if states else (values, state)))
            self.shards.append(shard)

    def send(self, sender, group, route, keys, arrays):
        self.sent_bytes += sum(array.nbytes for array in arrays)
        arrival = Future()
        self.messages.append((sender, group, route, keys, arrays, arrival))
        if not self.delayed:
            self.deliver()
        return arrival

    def deliver(self, number=0):
        sender, group, route, keys, arrays, arrival = self.messages.pop(number)
        self.shards[group].group_sync.receive(route, keys, arrays, sender)
        arrival.set_result(None)

    def value(self, group, id=0):
        return self.shards[group].snapshot(self.steps[group], WAIT).values[id]

    def is_ready(self, group):
        """Whether a group may compute its next step."""
        return self.shards[group].slices[0].accumulators[group].version == self.steps[group]

    def train(self, group, id=0, compute=gradient):
        """Let the worker of a group compute a step of a slice."""
        step = self.steps[group]
        value = self.shards[group].pull([id], step, group).result(WAIT)[id]
        self.shards[group].push(Push(0, group, step, 0), {id: compute(group, step, value)})
        self.steps[group] += 1

    def train_all(self, steps):
        for _ in range(steps):
            for group in range(len(self.shards)):
                self.train(group)

    def train_together(self):
        """Let each group compute a step of all slices, which together are the value of :func:`gradient`."""
        for group, shard in enumerate(self.shards):
            ids, step = list(shard.slices), self.steps[group]
            pulled = shard.pull(ids, step, group).result(WAIT)
            computed = gradient(group, step, np.concatenate([pulled[id] for id in ids]))
            shard.push(Push(0, group, step, 0), dict(zip(ids, np.split(computed, len(ids)), strict=True)))
            self.steps[group] += 1

    def flush(self):
        flushes = [shard.group_sync.flush() for shard in self.shards]
        while self.messages:
            self.deliver()
        return [flush.result(WAIT) for flush in flushes]


class Inner:
    """An updater of PyTorch's formulas in float64: "kSGD", "kAdamW" or "kMuon" (of a matrix)."""

    def __init__(self, kind, lr, decay=0.0):
        self.kind, self.lr, self.decay, self.count = kind, lr, decay, 0
        self.m = self.v = 0.0

    def step(self, w, g):
        self.count += 1
        if self.kind == "kSGD":
            return w - self.lr * (g + self.decay * w)
        w = w * (1 - self.lr * self.decay)
        if self.kind == "kAdamW":
            self.m, self.v = 0.9 * self.m + 0.1 * g, 0.999 * self.v + 0.001 * g * g
            m, v = self.m / (1 - 0.9**self.count), self.v / (1 - 0.999**self.count)
            return w - self.lr * m / (np.sqrt(v) + 1e-8)
        self.m = 0.95 * self.m + 0.05 * g
        ahead = 0.95 * self.m / (1 - 0.95 ** (self.count + 1)) + 0.05 * g / (1 - 0.95**self.count)
        x = ahead.reshape(SHAPE)
        x = x.T if x.shape[0] > x.shape[1] else x
        x = x / (np.linalg.norm(x) + 1e-8)
        for _ in range(5):
            a = x @ x.T
            x = 3.4445 * x + (-4.775 * a + 2.0315 * a @ a) @ x
        x = x.T if SHAPE[0] > SHAPE[1] else x
        return w - self.lr * 0.2 * np.sqrt(max(SHAPE)) * x.reshape(-1)


def diloco(groups, period, blocks, kind, lr, decay=0.0, outer_lr=0.7, momentum=0.9, weights=None):
    """Return the outer params of algorithm 1 of arXiv 2311.08105, float64 (12,), after so many outer steps.

    The outer optimiser is PyTorch's SGD(nesterov=True), or without it for momentum 0: b = m·b + g; p -= lr·(g + m·b).
    """
    outer, buffer, step = np.ones(SIZE), 0.0, 0
    inner = [Inner(kind, lr, decay) for _ in range(groups)]
    for _ in range(blocks):
        local = []
        for group in range(groups):
            w = outer.copy()
            for number in range(step, step + period):
                w = inner[group].step(w, gradient(group, number, w).astype(np.float64))
            local.append(w)
        step += period
        delta = np.average([outer - w for w in local], axis=0, weights=weights)
        buffer = momentum * buffer + delta
        outer = outer - outer_lr * (delta + momentum * buffer)
    return outer


def streaming_diloco(groups, period, steps, kind, lr, delay, mixing, fragments, outer_lr=0.7, momentum=0.9):
    """Return the params of all groups and the outer ones after ``steps`` of algorithm 2 of arXiv 2501.18512, float64.

    ``delay`` is the paper's tau, ``mixing`` its alpha, ``fragments`` has the elements of each fragment: fragment p is
    sent p/P of a period later than fragment 0. The end is ours: what is in flight arrives, then all average once more.
    """
    outer, buffer = np.ones(SIZE), np.zeros(SIZE)
    local, inner = [outer.copy() for _ in range(groups)], [Inner(kind, lr) for _ in range(groups)]
    sent = {}  # by fragment: the mean outer gradient in flight

    def send(part, elements):
        sent[part] = np.mean([outer[elements] - w[elements] for w in local], axis=0)

    def receive(part, elements):
        delta = sent.pop(part)
        buffer[elements] = momentum * buffer[elements] + delta
        outer[elements] -= outer_lr * (delta + momentum * buffer[elements])
        for w in local:
            w[elements] = mixing * w[elements] + (1 - mixing) * outer[elements]

    for t in range(1, steps + 1):
        local = [inner[group].step(w, gradient(group, t - 1, w).astype(np.float64)) for group, w in enumerate(local)]
        for part, elements in enumerate(fragments):
            since = t - part * period // len(fragments)
            if t > delay and since - delay >= (0 if part else period) and (since - delay) % period == 0:
                receive(part, elements)
            if since >= (0 if part else period) and since % period == 0:
                send(part, elements)
    before_end = [w.copy() for w in local]
    for part, elements in enumerate(fragments):
        if part in sent:
            receive(part, elements)
        if (steps - part * period // len(fragments)) % period:  # else what has arrived was the last step's
            send(part, elements)
            receive(part, elements)
    return before_end, outer

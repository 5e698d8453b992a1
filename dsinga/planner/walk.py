"""Timing the layers of a worker where they stand: in walks through its net, forward and backward, nobody else there.

A layer takes longer in its net than alone: it finds the caches, and the memory that it asks for, as the layers around
it leave them. Above all that holds for the layers that partitioning puts in, which only copy.
"""

from __future__ import annotations

import itertools
import statistics
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from dsinga.job import Phase
from dsinga.layers.base import Array, Layer
from dsinga.layers.bridge import BridgeDst, BridgeSrc
from dsinga.layers.codes import Codes
from dsinga.layers.connection import Concate, Slice, Split
from dsinga.layers.context import Context, Records, Rows
from dsinga.layers.label import FeatureAsLabels
from dsinga.net import NeuralNet
from dsinga.ops import Ops, SparseRows
from dsinga.planner.measure import PATIENCE, LayerTime, Sums, in_crowd, random_numbers, random_records, rows_of
from dsinga.training.bp import back_propagate

WARM = 2  # walks that are not counted
WALKS, SECONDS = 6, 0.1  # that are, at least, and how long they last, at least: a small net's are soon over


def walk(net: NeuralNet, ops: Ops, threads: int, crowd: int) -> list[LayerTime]:
    """Return what each stage of a worker's net takes; together they take what a walk takes, in the median.

    ``crowd`` threads walk at once, each with numbers of its own and ``threads`` kernel threads, as the workers of a
    machine share its memory and its caches. What other workers send is there at once. Of a bridge it is what bringing
    its array into the order of a message takes.
    """
    begun: list[float] = []  # when all have set out together

    def again() -> bool:
        return len(begun) <= WARM + WALKS or begun[-1] - begun[WARM] < SECONDS

    barrier = threading.Barrier(crowd, lambda: begun.append(time.perf_counter()), PATIENCE)

    def walks() -> list[tuple[list[LayerTime], float]]:
        own = _Walker(net, ops, threads)
        found = []
        barrier.wait()
        while again():
            found.append(own.walk())
            barrier.wait()
        return found[WARM:]

    found = list(itertools.chain.from_iterable(in_crowd(walks, barrier)))
    whole = statistics.median(seconds for _, seconds in found)
    stages = [_median(times) for times in zip(*(times for times, _ in found), strict=True)]
    alone = sum(one.forward + one.backward for one in stages)
    stretch = whole / alone if alone else 1.0  # a worker may have nothing to do
    return [one._replace(forward=stretch * one.forward, backward=stretch * one.backward) for one in stages]


def _median(times: Sequence[LayerTime]) -> LayerTime:
    forward, backward = (statistics.median(one[k] for one in times) for k in range(2))
    return times[0]._replace(forward=forward, backward=backward)


class _Walker:
    """One thread's copy of a net, whose layers keep the time, with random numbers for all that it asks for."""

    def __init__(self, net: NeuralNet, ops: Ops, threads: int):
        ops.set_threads(threads)
        rng = np.random.default_rng(0)
        self._times = [LayerTime(0.0, 0.0)] * len(net.nodes)
        self._sums = Sums()
        self._net = net
        self._positions = {node.layer: k for k, node in enumerate(net.nodes) if not node.layer.is_output}
        self._values = {
            name: random_numbers(rng, param.shape, ops) * np.float32(0.01) for name, param in net.params.items()
        }
        self._records = {
            stage.layer.name: _records(net, position, rng)
            for position, stage in enumerate(net.stages)
            if stage.layer.is_input
        }
        self._states = {name: np.zeros_like(value) for name, value in self._values.items()}
        self._updating = 0.0
        batch = net.nodes[0].layer.shape[0] if net.nodes else 1
        rows = Rows(0, batch, batch)
        self._ctx = Context(
            ops, Phase.kTrain, rows, all_reduce=self._sums, peers=_Letters(net, rng, ops), skips=True,
            observer=self._time,
        )  # fmt: skip

    def walk(self) -> tuple[list[LayerTime], float]:
        """Return the times of the stages, and of all."""
        self._times, self._updating = [LayerTime(0.0, 0.0)] * len(self._times), 0.0
        started = time.perf_counter()
        if self._net.nodes:
            back_propagate(self._net, self._values, self._records, self._ctx, self._push)
        return self._times, time.perf_counter() - started - self._updating

    def _push(self, name: str, gradient: Array) -> None:
        """Go through what an update goes through, for the sake of the caches; that counts elsewhere."""
        started = time.perf_counter()
        if not isinstance(gradient, SparseRows):
            np.add(self._values[name], gradient, out=self._states[name])
        self._updating += time.perf_counter() - started

    def _time(self, layer: Layer, name: str, compute: Callable[..., Any], *arguments: Any) -> Any:
        """Compute a pass of a layer, and record its seconds and how many sums it asked for."""
        if layer not in self._positions:  # an output layer, which may write a store
            return compute(*arguments)
        started = time.perf_counter()
        computed = compute(*arguments)
        figures: dict[str, Any] = {name: time.perf_counter() - started, f"sums_{name}": self._sums.taken()}
        position = self._positions[layer]
        self._times[position] = self._times[position]._replace(**figures)
        return computed


class _Letters:
    """Mail that is there at once, of random numbers; what is sent is brought into the order of a message."""

    def __init__(self, net: NeuralNet, rng: np.random.Generator, ops: Ops):
        self._made: dict[str, Array] = {}
        for position, node in enumerate(net.nodes):
            layer = node.layer
            if isinstance(layer, BridgeDst):
                codes = _holds_codes(net, position)
                self._made[layer.key] = (
                    np.zeros(layer.shape, np.int64) if codes else random_numbers(rng, layer.shape, ops)
                )
            elif isinstance(layer, BridgeSrc):
                self._made[layer.gradient_key] = random_numbers(rng, layer.shape, ops) * np.float32(1e-3)

    def send(self, location: int, key: str, array: Array) -> None:
        """Make a copy, unless the array lies in one piece."""
        order = sorted(range(array.ndim), key=lambda axis: -array.strides[axis])
        np.ascontiguousarray(array.transpose(order))

    def receive(self, key: str) -> Array:
        """Return what came."""
        return self._made[key]


def _records(net: NeuralNet, position: int, rng: np.random.Generator) -> Records:
    """Return random records, or the code 0 where that is all that can be told of codes."""
    stage = net.stages[position]
    records = random_records(stage.layer, rows_of(stage), rng)
    return records._replace(data=np.zeros_like(records.data)) if _holds_codes(net, position) else records


def _holds_codes(net: NeuralNet, position: int) -> bool:
    """Whether the feature at ``position`` is labels or codes, as far as those who take it can tell."""
    for later in range(position + 1, len(net.nodes)):
        node = net.nodes[later]
        if position in node.sources:
            if isinstance(node.layer, (FeatureAsLabels, Codes)):
                return True
            if isinstance(node.layer, (Concate, Slice, Split)):
                return _holds_codes(net, later)
    return False

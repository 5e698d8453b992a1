"""Timing the layers of a worker within its net, in forward and backward passes that no other worker takes part in.

A layer takes longer in its net than alone, because the layers around it decide what the caches hold and which memory is
free. That matters most for the connection layers that partitioning inserts, which only copy.
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
from dsinga.layers.connection import Concate, SliceLayer, Split
from dsinga.layers.context import Context, Records, Rows
from dsinga.layers.embedding import CodesLayer
from dsinga.layers.label import FeatureAsLabels
from dsinga.layers.steps import SequenceLength
from dsinga.net import NeuralNet
from dsinga.net.layer_cost import rows_of
from dsinga.ops import Ops, SparseRows
from dsinga.planner.layer_timing import (
    LIMIT_SECONDS,
    TIMEOUT_SECONDS,
    LayerTime,
    SumCounter,
    random_numbers,
    random_records,
    run_concurrently,
)
from dsinga.training.bp import back_propagate

WARM_UP = 2  # iterations that are not counted
# Of the measurement; a small net needs more iterations to fill the time, and after LIMIT_SECONDS a single one does.
MIN_ITERATIONS, MIN_SECONDS = 6, 0.1


def time_net(net: NeuralNet, ops: Ops, threads: int, workers: int) -> list[LayerTime]:
    """Return the time of each stage of a worker's net; their sum is the median time of a whole iteration.

    ``workers`` threads run the net at once, each with its own arrays and ``threads`` kernel threads, because the
    workers of a machine share its memory and its caches. Messages from other workers are there at once. The time of a
    bridge is the time to make its array contiguous.
    """
    starts: list[float] = []  # when all threads began each iteration

    def unfinished() -> bool:
        if len(starts) > WARM_UP + 1 and starts[-1] - starts[0] > LIMIT_SECONDS:
            return False
        return len(starts) <= WARM_UP + MIN_ITERATIONS or starts[-1] - starts[WARM_UP] < MIN_SECONDS

    barrier = threading.Barrier(workers, lambda: starts.append(time.perf_counter()), TIMEOUT_SECONDS)

    def iterations() -> list[tuple[list[LayerTime], float]]:
        timed_net = TimedNet(net, ops, threads)
        timings = []
        barrier.wait()
        while unfinished():
            timings.append(timed_net.iterate())
            barrier.wait()
        return timings[WARM_UP:]

    timings = list(itertools.chain.from_iterable(run_concurrently(iterations, barrier)))
    iteration_seconds = statistics.median(seconds for _, seconds in timings)
    stages = [_median(times) for times in zip(*(times for times, _ in timings), strict=True)]
    stage_seconds = sum(time.forward + time.backward for time in stages)
    scale = iteration_seconds / stage_seconds if stage_seconds else 1.0  # a worker may have no layer to compute
    return [time._replace(forward=scale * time.forward, backward=scale * time.backward) for time in stages]


def _median(times: Sequence[LayerTime]) -> LayerTime:
    forward, backward = (statistics.median(time[k] for time in times) for k in range(2))
    return times[0]._replace(forward=forward, backward=backward)


class TimedNet:
    """A net with random params and records for one thread, and the times of its passes."""

    def __init__(self, net: NeuralNet, ops: Ops, threads: int):
        ops.set_threads(threads)
        rng = np.random.default_rng(0)
        self._times = [LayerTime(0.0, 0.0)] * len(net.nodes)
        self._sums = SumCounter()
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
        self._update_seconds = 0.0
        batch = net.nodes[0].layer.shape[0] if net.nodes else 1
        rows = Rows(0, batch, batch)
        peers = _RandomMessages(net, rng, ops)
        self._ctx = Context(
            ops, Phase.kTrain, rows, all_reduce=self._sums, peers=peers, skips=True, observer=self._time
        )

    def iterate(self) -> tuple[list[LayerTime], float]:
        """Run one iteration; return the times of the stages, and the seconds of the iteration without updates."""
        self._times, self._update_seconds = [LayerTime(0.0, 0.0)] * len(self._times), 0.0
        started = time.perf_counter()
        if self._net.nodes:
            back_propagate(self._net, self._values, self._records, self._ctx, self._push)
        return self._times, time.perf_counter() - started - self._update_seconds

    def _push(self, name: str, gradient: Array) -> None:
        """Touch the memory that an update touches, for its effect on the caches; the time is counted elsewhere."""
        started = time.perf_counter()
        if not isinstance(gradient, SparseRows):
            np.add(self._values[name], gradient, out=self._states[name])
        self._update_seconds += time.perf_counter() - started

    def _time(self, layer: Layer, name: str, compute: Callable[..., Any], *arguments: Any) -> Any:
        """Compute a pass of a layer, and record its seconds and how many sums it asked for."""
        if layer not in self._positions:  # an output layer, which may write a store
            return compute(*arguments)
        started = time.perf_counter()
        result = compute(*arguments)
        figures: dict[str, Any] = {name: time.perf_counter() - started, f"sums_{name}": self._sums.take()}
        position = self._positions[layer]
        self._times[position] = self._times[position]._replace(**figures)
        return result


class _RandomMessages:
    """Peers whose messages are random numbers and are there at once; sending only makes the array contiguous."""

    def __init__(self, net: NeuralNet, rng: np.random.Generator, ops: Ops):
        self._messages: dict[str, Array] = {}
        for position, node in enumerate(net.nodes):
            layer = node.layer
            if isinstance(layer, BridgeDst):
                codes = _holds_codes(net, position)
                self._messages[layer.key] = (
                    np.zeros(layer.shape, np.int64) if codes else random_numbers(rng, layer.shape, ops)
                )
            elif isinstance(layer, BridgeSrc):
                self._messages[layer.gradient_key] = random_numbers(rng, layer.shape, ops) * np.float32(1e-3)

    def send(self, location: int, key: str, array: Array) -> None:
        """Copy the array, unless it is contiguous in some order of its axes."""
        order = sorted(range(array.ndim), key=lambda axis: -array.strides[axis])
        np.ascontiguousarray(array.transpose(order))

    def receive(self, key: str) -> Array:
        """Return the message of ``key``."""
        return self._messages[key]


def _records(net: NeuralNet, position: int, rng: np.random.Generator) -> Records:
    """Return random records; where a layer looks them up as codes, zeros, which are valid for any vocabulary."""
    stage = net.stages[position]
    records = random_records(stage.layer, rows_of(stage), rng)
    return records._replace(data=np.zeros(records.data.shape, np.int32)) if _holds_codes(net, position) else records


def _holds_codes(net: NeuralNet, position: int) -> bool:
    """Whether a layer of this net uses the feature at ``position`` as labels or codes, directly or through others."""
    for later in range(position + 1, len(net.nodes)):
        node = net.nodes[later]
        if position in node.sources:
            if isinstance(node.layer, (FeatureAsLabels, CodesLayer)):
                return True
            passes_on = isinstance(node.layer, (Concate, SliceLayer, Split, SequenceLength))
            if passes_on and _holds_codes(net, later):
                return True
    return False

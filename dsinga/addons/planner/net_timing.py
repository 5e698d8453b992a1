"""Times a worker's layers and updates within its net, in iterations without other workers.

Layers take longer there than alone, above all updates and connection layers, which only copy.
"""

from __future__ import annotations

import itertools
import statistics
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from dsinga.addons.planner.layer_timing import (
    LIMIT_SECONDS,
    TIMEOUT_SECONDS,
    LayerTime,
    SumCounter,
    random_numbers,
    random_records,
    run_concurrently,
    takes_shares,
)
from dsinga.cutting.bridges import BridgeDst, BridgeSrc, FeatureAsLabels
from dsinga.cutting.region_layers import RegionJoin, RegionSlice
from dsinga.job import Phase
from dsinga.layers.connection import Concate, SliceLayer, Split
from dsinga.layers.dense.arithmetic import Index
from dsinga.layers.interface.context import Context, Records, Rows
from dsinga.layers.interface.layer import Array, Layer
from dsinga.layers.sequences.steps import SequenceLength
from dsinga.net import NeuralNet
from dsinga.net.layer_cost import rows_of
from dsinga.ops import Ops, SparseRows
from dsinga.training import Updater, initial_values
from dsinga.training.bp import back_propagate

WARM_UP = 2  # iterations that are not counted
# Of the measurement; a small net needs more iterations to fill the time, and after LIMIT_SECONDS a single one does.
MIN_ITERATIONS, MIN_SECONDS = 6, 0.1


class NetTime(NamedTuple):
    """The time of each stage of a worker's net, and seconds to update a number."""

    stages: list[LayerTime]
    update: float


def time_net(
    net: NeuralNet, shared: Collection[str], updater: Updater, ops: Ops, threads: int, workers: int
) -> NetTime:
    """Time a worker's net; its stages' times add up to the median time of an iteration.

    ``workers`` threads run it at once, each with its own arrays and ``threads`` kernel threads.
    """
    starts: list[float] = []  # when all threads began each iteration

    def unfinished() -> bool:
        if len(starts) > WARM_UP + 1 and starts[-1] - starts[0] > LIMIT_SECONDS:
            return False
        return len(starts) <= WARM_UP + MIN_ITERATIONS or starts[-1] - starts[WARM_UP] < MIN_SECONDS

    barrier = threading.Barrier(workers, lambda: starts.append(time.perf_counter()), TIMEOUT_SECONDS)
    values = initial_values({name: net.params[name] for name in shared}, 0)
    numbers = iter(range(workers))  # one for each thread

    def iterations() -> list[tuple[list[LayerTime], float, float]]:
        timed_net = TimedNet(net, values, updater, ops, threads, (next(numbers), workers))
        timings = []
        barrier.wait()
        while unfinished():
            timings.append(timed_net.iterate())
            barrier.wait()
        return timings[WARM_UP:]

    timings = list(itertools.chain.from_iterable(run_concurrently(iterations, barrier)))
    iteration_seconds = statistics.median(seconds for _, seconds, _ in timings)
    stages = [_median(times) for times in zip(*(times for times, _, _ in timings), strict=True)]
    stage_seconds = sum(time.forward + time.backward for time in stages)
    scale = iteration_seconds / stage_seconds if stage_seconds else 1.0  # a worker may have no layer to compute
    scaled = [time._replace(forward=scale * time.forward, backward=scale * time.backward) for time in stages]
    return NetTime(scaled, statistics.median(update for *_, update in timings))


def _median(times: Sequence[LayerTime]) -> LayerTime:
    forward, backward = (statistics.median(time[k] for time in times) for k in range(2))
    return times[0]._replace(forward=forward, backward=backward)


class TimedNet:
    """A net with random params and records for one thread, which times its passes."""

    def __init__(
        self,
        net: NeuralNet,
        values: Mapping[str, Array],
        updater: Updater,
        ops: Ops,
        threads: int,
        place: tuple[int, int] = (0, 1),
    ):
        """Create thread ``place[0]``'s net; ``place[1]`` threads share the params ``values``."""
        ops.set_threads(threads)
        rng = np.random.default_rng(0)
        self._times = [LayerTime(0.0, 0.0)] * len(net.nodes)
        self._sums = SumCounter()
        self._net, self._updater = net, updater
        self._positions = {node.layer: k for k, node in enumerate(net.nodes) if not node.layer.is_output}
        others = {name: param for name, param in net.params.items() if name not in values}
        self._values = {**values, **initial_values(others, 0)}  # denormal features would take much longer
        number, count = place
        self._updates: dict[str, tuple[slice, Mapping[str, Array]]] = {}
        for name, param in net.params.items():
            if param.trainable and not param.spec.sparse:
                first, last = (param.size * k // count for k in (number, number + 1))
                part = slice(first, last) if name in values else slice(0, param.size)
                self._updates[name] = part, updater.initial_state(np.zeros(part.stop - part.start, np.float32))
        self._records = {
            stage.layer.name: _records(net, position, rng)
            for position, stage in enumerate(net.stages)
            if stage.layer.is_input
        }
        self._update_seconds = 0.0
        batch = net.nodes[0].layer.shape[0] if net.nodes else 1
        rows = Rows(0, batch, batch)
        peers = _RandomMessages(net, rng, ops)
        self._ctx = Context(
            ops, Phase.kTrain, rows, all_reduce=self._sums, peers=peers, skips=True, observer=self._time
        )

    def iterate(self) -> tuple[list[LayerTime], float, float]:
        """Run an iteration; return the stages' times, the seconds without updates, and to update a number."""
        self._times, self._update_seconds = [LayerTime(0.0, 0.0)] * len(self._times), 0.0
        started = time.perf_counter()
        if self._net.nodes:
            back_propagate(self._net, self._values, self._records, self._ctx, self._push)
        seconds = time.perf_counter() - started - self._update_seconds
        updated = sum(part.stop - part.start for part, _ in self._updates.values())
        return self._times, seconds, self._update_seconds / max(updated, 1)

    def _push(self, name: str, gradient: Array) -> None:
        started = time.perf_counter()
        if name in self._updates and not isinstance(gradient, SparseRows):
            part, state = self._updates[name]
            value, flat = self._values[name].reshape(-1)[part], gradient.reshape(-1)[part]
            self._updater.update(0, value, flat, state, lr_scale=0.0)
        self._update_seconds += time.perf_counter() - started

    def _time(self, layer: Layer, name: str, compute: Callable[..., Any], *arguments: Any) -> Any:
        if layer not in self._positions:  # an output layer, which may write a store
            return compute(*arguments)
        started = time.perf_counter()
        result = compute(*arguments)
        position, sums = self._positions[layer], self._sums.take()
        time_before = self._times[position]  # of a layer that is recomputed, the first forward pass
        figures: dict[str, Any] = {
            name: getattr(time_before, name) + time.perf_counter() - started,
            f"sums_{name}": sums or getattr(time_before, f"sums_{name}"),
        }
        self._times[position] = time_before._replace(**figures)
        return result


class _RandomMessages:
    """Stands for other workers: receives random numbers immediately; sending only makes arrays contiguous."""

    def __init__(self, net: NeuralNet, rng: np.random.Generator, ops: Ops):
        self._messages: dict[str, Array] = {}
        for position, node in enumerate(net.nodes):
            layer = node.layer
            if isinstance(layer, BridgeDst):
                codes = _holds_codes(net, position)
                shares = codes and any(takes_shares(other.layer, layer.shape[1:]) for other in net.nodes)
                zeros = np.zeros(layer.shape, np.float32 if shares else np.int64)
                self._messages[layer.key] = zeros if codes else random_numbers(rng, layer.shape, ops)
            elif isinstance(layer, BridgeSrc):
                self._messages[layer.gradient_key] = random_numbers(rng, layer.shape, ops) * np.float32(1e-3)

    def send(self, location: int, key: str, array: Array) -> None:
        order = sorted(range(array.ndim), key=lambda axis: -array.strides[axis])
        np.ascontiguousarray(array.transpose(order))

    def receive(self, key: str) -> Array:
        return self._messages[key]


def _records(net: NeuralNet, position: int, rng: np.random.Generator) -> Records:
    """Create random records for an input layer; zeros, valid for any vocabulary, if layers look them up as codes."""
    stage = net.stages[position]
    records = random_records(stage.layer, rows_of(stage), rng)
    if not _holds_codes(net, position):
        return records
    is_table = any(node.layer.takes_codes and not node.layer.vocab_size for node in net.nodes)  # has numbers, too
    return records._replace(data=np.zeros(records.data.shape, np.float32 if is_table else np.int32))


def _holds_codes(net: NeuralNet, position: int) -> bool:
    """Whether this net uses the feature at ``position`` as labels or codes, also indirectly."""
    for later in range(position + 1, len(net.nodes)):
        node = net.nodes[later]
        if position in node.sources:
            if isinstance(node.layer, FeatureAsLabels) or node.layer.takes_codes:
                return True
            passing = (Concate, Index, SliceLayer, Split, RegionJoin, RegionSlice, SequenceLength)
            if isinstance(node.layer, passing) and _holds_codes(net, later):
                return True
    return False

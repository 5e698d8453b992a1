"""The speed of this machine: seconds of layers and of arithmetic on params, measured with the kernels of training."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cache, partial
from typing import NamedTuple

from dsinga.job import LRGenConf
from dsinga.job.writer import lines, message_fields
from dsinga.net import NeuralNet, Stage, partition
from dsinga.net.layer_cost import rows_of
from dsinga.ops import Ops
from dsinga.planner.layer_timing import LayerTime, LayerWork, time_arithmetic, time_layer
from dsinga.planner.net_timing import time_net
from dsinga.planner.rate_store import RateStore
from dsinga.planner.strategies import by_rows
from dsinga.training import Updater


class Rates(NamedTuple):
    """Seconds to update a number of a param, to add a number of a gradient, to copy a byte to new or existing memory.

    ``update_contended`` is that of an update while all workers of a process compute updates at the same time.
    """

    update: float
    add: float
    copy: float
    keep: float
    update_contended: float


@dataclass(frozen=True)
class MachineModel:
    """Functions that say how long a machine computes.

    Attributes:
        rates: those of arithmetic on params.
        time_layer: returns the time of a layer's work.
        time_net: returns the time of each stage of a worker's net.
    """

    rates: Rates
    time_layer: Callable[[LayerWork], LayerTime]
    time_net: Callable[[NeuralNet], Sequence[LayerTime]]


def measure_machine(
    net: NeuralNet,
    updater: Updater,
    ops: Ops,
    threads: int,
    workers: int,
    process_workers: int,
    store: RateStore,
) -> MachineModel:
    """Return a model of this machine with ``workers`` workers; measure what ``store`` does not contain yet.

    ``process_workers`` of the workers run in one process.

    A layer is identified by its type, configuration, shapes and gradients, the kernels and the number of threads. A
    layer that belonged to a net that was timed has the time that it took there. A layer that was timed alone is scaled
    by the time of ``net``, cut by rows, over the sum of the times that its layers take alone.
    """
    times_in_net: dict[str, LayerTime] = {}

    describe = cache(describe_work)  # a search asks for the same works again and again

    def layer_time(work: LayerWork) -> LayerTime:
        description = describe(work)
        if description in times_in_net:
            return times_in_net[description]
        time = time_alone(work)
        return time._replace(forward=scale() * time.forward, backward=scale() * time.backward)

    def time_alone(work: LayerWork) -> LayerTime:
        key = f"{kernels}: {describe(work)}"
        what = f"the layer {work.layer.conf.type_name}, {_sizes((work.rows, *work.layer.shape[1:]))}, {at_once}"
        (time,) = _layer_times(store.get(key, lambda: time_layer(work, ops, threads, workers), what))
        return time

    def net_times(local: NeuralNet) -> list[LayerTime]:
        descriptions = [describe_work(work_of(stage)) for stage in local.stages]
        digest = hashlib.blake2b("\n".join(descriptions).encode(), digest_size=8).hexdigest()
        measure = partial(_net_figures, local, ops, threads, workers)
        times = _layer_times(store.get(f"{kernels}: net {digest}", measure, f"the net of a worker, {at_once}"))
        for description, time in zip(descriptions, times, strict=True):
            times_in_net.setdefault(description, time)
        return times

    @cache
    def scale() -> float:
        local = partition(net, workers, cuts=by_rows(net, workers)).locals[0]
        return _total(net_times(local)) / _total(time_alone(work_of(stage)) for stage in local.stages)

    kernels = f"{ops.name}, {workers} at once x{threads}"
    at_once = f"in {workers * threads} thread{'s' if workers * threads > 1 else ''}"
    settings = "; ".join(lines(message_fields(updater.conf.replace(learning_rate=LRGenConf()))))

    def arithmetic(concurrent: int) -> Sequence[float]:
        key = f"numbers, {concurrent} at once: {type(updater).__name__}: {settings}"
        return store.get(key, lambda: time_arithmetic(updater, concurrent), f"the updater {type(updater).__name__}")

    update, add, copy, keep = arithmetic(1)
    rates = Rates(update, add, copy, keep, update_contended=arithmetic(process_workers)[0])
    return MachineModel(rates, layer_time, net_times)


def _net_figures(net: NeuralNet, ops: Ops, threads: int, workers: int) -> list[float]:
    return [figure for time in time_net(net, ops, threads, workers) for figure in time]


def _layer_times(figures: Sequence[float]) -> list[LayerTime]:
    return [LayerTime(f, b, int(n), int(m)) for f, b, n, m in zip(*[iter(figures)] * 4, strict=True)]


def _total(times: Iterable[LayerTime]) -> float:
    return sum(time.forward + time.backward for time in times)


def work_of(stage: Stage, parts: int = 1) -> LayerWork:
    """Return a worker's work at a node of its net, or in one of ``parts`` equal parts of its rows."""
    rows, batch = rows_of(stage), stage.rows.total if stage.rows else stage.layer.shape[0]
    rows = max(rows // parts, 1)
    sources = tuple(
        (rows if shape[0] == batch else shape[0], *shape[1:]) for shape in map(tuple, stage.layer.source_shapes)
    )
    return LayerWork(stage.layer, rows, sources, stage.needs, stage.backward)


def _sizes(shape: Iterable[int]) -> str:
    return "x".join(map(str, shape))


def describe_work(work: LayerWork) -> str:
    """Return a line that identifies a layer's work, without the names of layers and params."""
    layer = work.layer
    nameless = layer.conf.replace(
        name="", srclayers=[], include=[], exclude=[], param=[], partition_dim=None, location=None, store_conf=None
    )
    conf = "; ".join(lines(message_fields(nameless)))
    shapes = " ".join(map(_sizes, (*work.sources, (work.rows, *layer.shape[1:]))))
    gradients = "".join("d" if need else "-" for need in work.needs) if work.backward else "no gradient"
    part = f" columns {layer.columns.stop - layer.columns.start} of {layer.columns.total}" if layer.columns else ""
    return f"{layer.conf.type_name} {shapes}{part} {gradients} {{ {conf} }}"

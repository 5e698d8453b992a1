"""Measures this machine's speed for layers and arithmetic on params, with training's kernels."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cache, partial
from typing import NamedTuple

from dsinga.addons.planner.layer_timing import LayerTime, LayerWork, time_arithmetic, time_layer
from dsinga.addons.planner.net_timing import time_net
from dsinga.addons.planner.rate_store import RateStore
from dsinga.addons.planner.search import by_rows
from dsinga.cutting.partitioned import PartitionedNet
from dsinga.cutting.partitioning import partition
from dsinga.job import LRGenConf
from dsinga.job.writer import lines, message_fields
from dsinga.net import NeuralNet, Stage
from dsinga.net.layer_cost import rows_of
from dsinga.ops import Ops
from dsinga.training import Updater


class Rates(NamedTuple):
    """Seconds to update a param's number, add a gradient's number, copy a byte to new or existing memory."""

    update: float
    add: float
    copy: float
    keep: float


@dataclass(frozen=True)
class MachineModel:
    """Predicts how long a machine computes layers, nets and arithmetic on params.

    ``time_net`` returns the time of each stage of a worker's net, with layers fused as in training.
    """

    rates: Rates
    time_layer: Callable[[LayerWork], LayerTime]
    time_net: Callable[[PartitionedNet, int], Sequence[LayerTime]]


def measure_machine(
    net: NeuralNet, updater: Updater, ops: Ops, threads: int, workers: int, store: RateStore
) -> MachineModel:
    """Measure this machine with ``workers`` workers, as far as ``store`` lacks figures; return the model.

    Its time is measured within a net if possible; else its time alone is scaled accordingly.
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

    def figures_of(cut: PartitionedNet, number: int) -> Sequence[float]:
        """Measure four figures for each stage of a worker's net, then the seconds to update a number."""
        local = cut.locals[number].fused
        shared = sorted(name for name in local.params if len(cut.parts[name].users) == len(cut.locals))
        descriptions = [settings, *(describe_work(work_of(stage)) for stage in local.stages)]
        text = "\n".join([*descriptions, str([name in shared for name in local.params])])
        digest = hashlib.blake2b(text.encode(), digest_size=8).hexdigest()
        measure = partial(_net_figures, local, shared, updater, ops, threads, workers)
        figures = store.get(f"{kernels}: net {digest}", measure, f"the net of a worker, {at_once}")
        for description, time in zip(descriptions[1:], _layer_times(figures[:-1]), strict=True):
            times_in_net.setdefault(description, time)
        return figures

    def net_times(cut: PartitionedNet, number: int) -> list[LayerTime]:
        return _layer_times(figures_of(cut, number)[:-1])

    @cache
    def rows_cut() -> PartitionedNet:
        return partition(net, workers, cuts=by_rows(net, workers))

    @cache
    def scale() -> float:
        alone = (time_alone(work_of(stage)) for stage in rows_cut().locals[0].stages)
        return _total(net_times(rows_cut(), 0)) / _total(alone)

    kernels = f"{ops.name} in {ops.precision}, {workers} at once x{threads}"
    at_once = f"in {workers * threads} thread{'s' if workers * threads > 1 else ''}"
    settings = f"{type(updater).__name__}: " + "; ".join(
        lines(message_fields(updater.conf.replace(learning_rate=LRGenConf())))
    )

    add, copy, keep = store.get(f"numbers, {workers} at once", partial(time_arithmetic, workers), "sums and copies")
    return MachineModel(Rates(figures_of(rows_cut(), 0)[-1], add, copy, keep), layer_time, net_times)


def _net_figures(
    net: NeuralNet, shared: Sequence[str], updater: Updater, ops: Ops, threads: int, workers: int
) -> list[float]:
    times, update = time_net(net, shared, updater, ops, threads, workers)
    return [*(figure for time in times for figure in time), update]


def _layer_times(figures: Sequence[float]) -> list[LayerTime]:
    return [LayerTime(f, b, int(n), int(m)) for f, b, n, m in zip(*[iter(figures)] * 4, strict=True)]


def _total(times: Iterable[LayerTime]) -> float:
    return sum(time.forward + time.backward for time in times)


def work_of(stage: Stage, parts: int = 1) -> LayerWork:
    """Describe a worker's work at a node of its net, or in one of ``parts`` parts of its rows."""
    rows, batch = rows_of(stage), stage.rows.total if stage.rows else stage.layer.shape[0]
    rows = max(rows // parts, 1)
    sources = tuple(
        (rows if shape[0] == batch else shape[0], *shape[1:]) for shape in map(tuple, stage.layer.source_shapes)
    )
    return LayerWork(stage.layer, rows, sources, stage.needs, stage.backward)


def _sizes(shape: Iterable[int]) -> str:
    return "x".join(map(str, shape))


def describe_work(work: LayerWork) -> str:
    """Identify a layer's work in a line of text, without names of layers and params."""
    layer = work.layer
    nameless = layer.conf.replace(
        name="",
        srclayers=[],
        include=[],
        exclude=[],
        param=[],
        partition_dim=None,
        partition_grid=[],
        location=None,
        store_conf=None,
    )
    conf = "; ".join(lines(message_fields(nameless)))
    shapes = " ".join(map(_sizes, (*work.sources, (work.rows, *layer.shape[1:]))))
    gradients = "".join("d" if need else "-" for need in work.needs) if work.backward else "no gradient"
    part = f" columns {layer.columns.stop - layer.columns.start} of {layer.columns.total}" if layer.columns else ""
    part += " of a region" if layer.region else ""
    return f"{type(layer).__name__} {shapes}{part} {gradients} {{ {conf} }}"

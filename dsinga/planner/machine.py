"""What this machine takes for a layer and for a number of a param: measured once, with the real kernels, and kept."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from dsinga.job import LRGenConf
from dsinga.job.writer import lines, message_fields
from dsinga.net import NeuralNet, Stage
from dsinga.ops import Ops
from dsinga.planner.measure import LayerTime, Work, time_layer, time_net, time_numbers
from dsinga.planner.store import RateStore
from dsinga.training import Updater


class Rates(NamedTuple):
    """Seconds to update a number of a param, to add a number of a gradient, and to copy a byte."""

    update: float
    add: float
    copy: float


@dataclass(frozen=True)
class Machine:
    """``rates``, and the time that a worker takes for a layer, forward and backward."""

    rates: Rates
    time: Callable[[Work], LayerTime]


def measured_machine(net: NeuralNet, updater: Updater, ops: Ops, threads: int, crowd: int, store: RateStore) -> Machine:
    """Return this machine as it is measured with ``crowd`` workers, where ``store`` does not know it already.

    A layer is told by its type, configuration, shapes and what is wanted of it, with the kernels and threads used.
    What layers take alone is stretched by what the whole of ``net`` takes over the sum of its layers. Not shortened:
    the sum may be longer because workers wait for each other after every layer, as they do where features are cut.
    """

    def alone(work: Work) -> LayerTime:
        known = store.get(f"{kernels}: {describe(work)}", lambda: time_layer(work, ops, threads, crowd))
        return LayerTime(known[0], known[1], int(known[2]), int(known[3]))

    def time(work: Work) -> LayerTime:
        one = alone(work)
        return one._replace(forward=stretch * one.forward, backward=stretch * one.backward)

    kernels = f"{ops.name}, {crowd} at once x{threads}"
    works = [work_of(stage, crowd) for stage in net.stages]
    name = hashlib.blake2b("\n".join(map(describe, works)).encode(), digest_size=8).hexdigest()
    rows = works[0].rows
    (whole,) = store.get(f"{kernels}: net {name}", lambda: [time_net(net, rows, ops, threads, crowd)])
    stretch = max(whole / sum(one.forward + one.backward for one in map(alone, works)), 1.0)
    settings = "; ".join(lines(message_fields(updater.conf.replace(learning_rate=LRGenConf()))))
    numbers = f"numbers, {crowd} at once: {type(updater).__name__}: {settings}"
    rates = Rates(*store.get(numbers, lambda: time_numbers(updater, crowd)))
    return Machine(rates, time)


def work_of(stage: Stage, parts: int = 1) -> Work:
    """Return what a worker has to do at a node of its net, or in one of ``parts`` that cut it by rows once more."""
    rows, whole = rows_of(stage), stage.rows.total if stage.rows else stage.layer.shape[0]
    rows = max(rows // parts, 1)
    sources = tuple(
        (rows if shape[0] == whole else shape[0], *shape[1:]) for shape in map(tuple, stage.layer.source_shapes)
    )
    return Work(stage.layer, rows, sources, stage.needs, stage.backward)


def rows_of(stage: Stage) -> int:
    """Return how many rows of its batch a worker computes at a node."""
    return stage.rows.stop - stage.rows.start if stage.rows else stage.layer.shape[0]


def describe(work: Work) -> str:
    """Return what tells one layer's work from another's, as one line."""
    layer = work.layer
    plain = layer.conf.replace(
        name="", srclayers=[], include=[], exclude=[], param=[], partition_dim=None, location=None, store_conf=None
    )
    conf = "; ".join(lines(message_fields(plain)))
    shapes = " ".join("x".join(map(str, shape)) for shape in (*work.sources, (work.rows, *layer.shape[1:])))
    wanted = "".join("d" if need else "-" for need in work.needs) if work.backward else "no gradient"
    part = f" columns {layer.columns.stop - layer.columns.start} of {layer.columns.total}" if layer.columns else ""
    return f"{layer.conf.type_name} {shapes}{part} {wanted} {{ {conf} }}"

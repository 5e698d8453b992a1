"""What this machine takes for a layer and for a number of a param: measured once, with the real kernels, and kept."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cache, partial
from typing import NamedTuple

from dsinga.job import LRGenConf
from dsinga.job.writer import lines, message_fields
from dsinga.net import NeuralNet, Stage, partition
from dsinga.ops import Ops
from dsinga.planner.measure import LayerTime, Work, rows_of, time_layer, time_numbers
from dsinga.planner.store import RateStore
from dsinga.planner.strategies import by_rows
from dsinga.planner.walk import walk
from dsinga.training import Updater


class Rates(NamedTuple):
    """Seconds to update a number of a param, to add a number of a gradient, to copy a byte to new or kept memory.

    ``crowded`` are those of an update if all workers of a process do updates at the same time.
    """

    update: float
    add: float
    copy: float
    keep: float
    crowded: float


@dataclass(frozen=True)
class Machine:
    """``rates``, the time that a worker takes for a layer, and what each stage of a worker's net takes in its place."""

    rates: Rates
    time: Callable[[Work], LayerTime]
    walk: Callable[[NeuralNet], Sequence[LayerTime]]


def measured_machine(
    net: NeuralNet, updater: Updater, ops: Ops, threads: int, crowd: int, tenants: int, store: RateStore
) -> Machine:
    """Return this machine as it is measured with ``crowd`` workers, where ``store`` does not know it already.

    ``tenants`` of them live in one process.

    A layer is told by its type, configuration, shapes and what is wanted of it, with the kernels and threads used. Of
    one that has been walked through, the time in its place holds. What others take alone is scaled by what a walk
    through ``net``, cut by rows, takes over the sum of what its layers take alone.
    """
    placed: dict[str, LayerTime] = {}

    def time(work: Work) -> LayerTime:
        told = describe(work)
        if told in placed:
            return placed[told]
        one = alone(work)
        return one._replace(forward=scale() * one.forward, backward=scale() * one.backward)

    def alone(work: Work) -> LayerTime:
        (one,) = _times(store.get(f"{kernels}: {describe(work)}", lambda: time_layer(work, ops, threads, crowd)))
        return one

    def walked(local: NeuralNet) -> list[LayerTime]:
        told = [describe(work_of(stage)) for stage in local.stages]
        name = hashlib.blake2b("\n".join(told).encode(), digest_size=8).hexdigest()
        measured = partial(_walk, local, ops, threads, crowd)
        found = _times(store.get(f"{kernels}: net {name}", measured))
        for one, seconds in zip(told, found, strict=True):
            placed.setdefault(one, seconds)
        return found

    @cache
    def scale() -> float:
        local = partition(net, crowd, cuts=by_rows(net, crowd)).locals[0]
        return _sum(walked(local)) / _sum(alone(work_of(stage)) for stage in local.stages)

    kernels = f"{ops.name}, {crowd} at once x{threads}"
    settings = "; ".join(lines(message_fields(updater.conf.replace(learning_rate=LRGenConf()))))

    def numbers(many: int) -> Sequence[float]:
        what = f"numbers, {many} at once: {type(updater).__name__}: {settings}"
        return store.get(what, lambda: time_numbers(updater, many))

    update, add, copy, keep = numbers(1)
    return Machine(Rates(update, add, copy, keep, crowded=numbers(tenants)[0]), time, walked)


def _walk(net: NeuralNet, ops: Ops, threads: int, crowd: int) -> list[float]:
    return [figure for one in walk(net, ops, threads, crowd) for figure in one]


def _times(figures: Sequence[float]) -> list[LayerTime]:
    return [LayerTime(f, b, int(n), int(m)) for f, b, n, m in zip(*[iter(figures)] * 4, strict=True)]


def _sum(times: Iterable[LayerTime]) -> float:
    return sum(one.forward + one.backward for one in times)


def work_of(stage: Stage, parts: int = 1) -> Work:
    """Return what a worker has to do at a node of its net, or in one of ``parts`` that cut it by rows once more."""
    rows, whole = rows_of(stage), stage.rows.total if stage.rows else stage.layer.shape[0]
    rows = max(rows // parts, 1)
    sources = tuple(
        (rows if shape[0] == whole else shape[0], *shape[1:]) for shape in map(tuple, stage.layer.source_shapes)
    )
    return Work(stage.layer, rows, sources, stage.needs, stage.backward)


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

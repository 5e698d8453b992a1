"""Measures each layer and pass in an iteration, on one worker that computes the whole batch."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import rich.box
import rich.console
import rich.table

from dsinga.job import AlgType, Job, Phase
from dsinga.job.enums import PRECISIONS
from dsinga.layers import Context, Rows
from dsinga.layers.interface.declarations import SourceKind
from dsinga.layers.interface.layer import Array, Layer
from dsinga.net import NeuralNet, create_net
from dsinga.net.layer_cost import layer_cost
from dsinga.ops import cpu_ops
from dsinga.reading.batch_reader import BatchReader, WorkerBatches
from dsinga.reading.checked_job import CheckedJob, check_job
from dsinga.training import algorithm, create_updater, initial_values
from dsinga.training.local_updater import LocalUpdater

WARM_UP = 5  # iterations that are not counted


class Pass(NamedTuple):
    """Identifies a row of a profile: a layer's "forward" or "backward", or "update" or "rest" without a layer."""

    layer: str
    name: str


class PassWork(NamedTuple):
    """A pass's work in an iteration: arithmetic operations, and bytes of arrays read and written."""

    operations: int
    bytes: int


UPDATE, REST = Pass("", "update"), Pass("", "rest")
NO_WORK = PassWork(0, 0)


def profile(job: Job | CheckedJob, steps: int, roots: Sequence[str] = ()) -> dict[str, Any]:
    """Train for a warm-up and ``steps`` iterations in this thread, and measure the median time of each layer's passes.

    One thread computes the whole batch by the job's algorithm and updates the params. ``rows`` are in execution order:
    forward passes, backward passes, "update" and "rest". The rest includes kCD's work outside of layers. Layers that
    kBP fuses (:mod:`dsinga.net.fusion`) have one row a pass, named after the first layer.

    Operations leave out gradients of sources that need none (:func:`dsinga.net.layer_cost.layer_cost`). Bytes count
    each array that a pass reads or writes once, a lower bound; of sparse params only rows looked up. kCD has neither.
    """
    checked = check_job(job, roots, [Phase.kTrain])
    job, reader = checked.job, checked.reader(Phase.kTrain)
    net = create_net(job.neuralnet, Phase.kTrain, reader.infos)
    clock = Clock()
    totals, rows = [], []
    for total in _iterations(job, net, reader, clock, WARM_UP + steps):
        row = clock.take()
        totals.append(total)
        rows.append(row | {REST: total - sum(row.values())})
    passes = [*(pass_ for pass_ in rows[0] if pass_.layer), UPDATE, REST]
    seconds = {pass_: statistics.median(row.get(pass_, 0.0) for row in rows[WARM_UP:]) for pass_ in passes}
    iteration = statistics.median(totals[WARM_UP:])
    contrastive = job.train_one_batch.alg is AlgType.kCD
    works = {pass_: work for pass_, work in clock.work.items() if pass_ == UPDATE or not contrastive}
    types = {node.layer.name: node.layer.conf.type_name for node in net.nodes}
    return {
        "batch": reader.batchsize,
        "ms_per_iteration": 1e3 * iteration,
        "rows": [_row(pass_, types, works.get(pass_, NO_WORK), seconds[pass_], iteration) for pass_ in passes],
    }


class Clock:
    """Observer that adds up the seconds and work of an iteration's passes."""

    def __init__(self) -> None:
        self.work: dict[Pass, PassWork] = {}
        self._seconds: dict[Pass, float] = {}
        self._counting = True  # work is counted in the first iteration only, because counting takes time

    def __call__(self, layer: Layer, name: str, compute: Callable[..., Any], *arguments: Any) -> Any:
        """Compute and time a pass of a layer."""
        return self.time(
            Pass(layer.name, name), lambda: compute(*arguments), lambda computed: _work(layer, arguments, computed)
        )

    def time(self, pass_: Pass, call: Callable[[], Any], work: Callable[[Any], PassWork]) -> Any:
        """Time ``call``, return its result, and add the seconds and ``work(result)`` to the pass."""
        started = time.perf_counter()
        computed = call()
        self._seconds[pass_] = self._seconds.get(pass_, 0.0) + time.perf_counter() - started
        if self._counting:
            before, added = self.work.get(pass_, NO_WORK), work(computed)
            self.work[pass_] = PassWork(before.operations + added.operations, before.bytes + added.bytes)
        return computed

    def take(self) -> dict[Pass, float]:
        """Return the seconds of the finished iteration, and start again at zero."""
        seconds, self._seconds, self._counting = self._seconds, {}, False
        return seconds


def _iterations(job: Job, net: NeuralNet, reader: BatchReader, clock: Clock, steps: int) -> Iterator[float]:
    ops = cpu_ops(PRECISIONS[job.precision])
    ops.set_threads(1)
    train, updater = algorithm(job.train_one_batch), create_updater(job.updater)
    kept = LocalUpdater(updater, net.params)
    kept.put(initial_values(net.params, job.seed))
    rows = Rows(0, reader.batchsize, reader.batchsize)
    input_rows = {node.layer.name: node.rows or rows for node in net.nodes if node.layer.is_input}
    touched = 3 + 2 * len(updater.state_slots)  # arrays: reads the gradient, reads and writes the value and the state

    read = WorkerBatches(reader, input_rows)
    for step in range(steps):
        records = read(step)
        ctx = Context(ops, Phase.kTrain, rows, job.seed, step, observer=clock)

        def push(name: str, gradient: Array, step: int = step) -> None:
            flat = gradient.reshape(-1) if hasattr(gradient, "reshape") else gradient  # SparseRows have no shape
            work = PassWork(0, touched * gradient.nbytes)
            clock.time(UPDATE, lambda: kept.update(step, name, 0, flat), lambda _: work)

        started = time.perf_counter()
        train(net, kept.values, records, ctx, push)
        yield time.perf_counter() - started


def _work(layer: Layer, arguments: Sequence[Any], computed: Any) -> PassWork:
    params, sources, *rest = arguments
    cost, sparse = layer_cost(layer), any(spec.sparse for spec in layer.params)
    numbers, read = math.prod(layer.shape), (() if sparse else params, sources)
    if len(rest) == 1:  # a forward pass, with ctx as its only other argument
        return PassWork(numbers if sparse else cost.forward, _bytes((*read, computed.feature)))
    _, grad, needs, _ = rest
    # A recurrent layer always computes the gradient of its state.
    both = any(needs) or layer.source_kind is SourceKind.kRecurrent
    operations = numbers if sparse else cost.backward if both else cost.forward
    return PassWork(operations, _bytes((*read, grad, computed)))


def _bytes(arrays: Any) -> int:
    if isinstance(arrays, (tuple, list)):
        return sum(map(_bytes, arrays))
    return getattr(arrays, "nbytes", 0)


def _row(pass_: Pass, types: Mapping[str, str], work: PassWork, seconds: float, iteration: float) -> dict[str, Any]:
    return {
        "layer": pass_.layer,
        "type": types.get(pass_.layer, ""),
        "pass": pass_.name,
        "ms": 1e3 * seconds,
        "gflop_per_second": _rate(work.operations, seconds),
        "gbyte_per_second": _rate(work.bytes, seconds),
        "share": seconds / iteration,
    }


def print_precisions(float32: Mapping[str, Any], bf16: Mapping[str, Any], console: rich.console.Console) -> None:
    """Print two profiles, in kFloat32 and in kBF16, side by side, in milliseconds, with their ratio."""
    table = rich.table.Table(rich.table.Column("layer", overflow="fold"), "type", "pass", box=rich.box.SIMPLE)
    for name in ("kFloat32", "kBF16", "ratio"):
        table.add_column(name, justify="right", no_wrap=True)
    rows = [(row["layer"], row["type"], row["pass"], row["ms"]) for row in float32["rows"]]
    rows.append(("", "", "iteration", float32["ms_per_iteration"]))
    for (layer, type_, pass_, ms), other in zip(
        rows, [*(row["ms"] for row in bf16["rows"]), bf16["ms_per_iteration"]], strict=True
    ):
        table.add_row(layer, type_, pass_, f"{ms:,.3f}", f"{other:,.3f}", f"{other / ms:.2f}" if ms else "")
    console.print(f"one worker with one thread, which computes the whole batch of {float32['batch']}; milliseconds")
    console.print(table)


def _rate(count: int, seconds: float) -> float | None:
    return 1e-9 * count / seconds if count and seconds > 0 else None


def print_profile(figures: Mapping[str, Any], console: rich.console.Console) -> None:
    """Print a profile from the result of :func:`profile`."""
    table = rich.table.Table(rich.table.Column("layer", overflow="fold"), "type", "pass", box=rich.box.SIMPLE)
    for name in ("ms", "GFLOP/s", "GB/s", "share"):
        table.add_column(name, justify="right", no_wrap=True)
    for row in figures["rows"]:
        rates = (row["gflop_per_second"], row["gbyte_per_second"])
        cells = (f"{row['ms']:,.3f}", *("" if rate is None else f"{rate:,.1f}" for rate in rates))
        table.add_row(row["layer"], row["type"], row["pass"], *cells, f"{row['share']:.1%}")
    console.print(
        f"one worker with one thread, which computes the whole batch of {figures['batch']} and updates by itself: "
        f"{figures['ms_per_iteration']:,.3f} ms an iteration"
    )
    console.print(table)

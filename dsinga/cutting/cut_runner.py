"""Computes a net cut for several workers in threads of this process, on whole params and whole batches."""

from __future__ import annotations

import itertools
import os
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from types import MappingProxyType
from typing import Any, TypeVar

import numpy as np

from dsinga.base.cores import available_cores
from dsinga.base.registry import register
from dsinga.cutting.gradient_sums import JoinedGradients
from dsinga.cutting.partitioned import FEATURES, WHOLE_LAYER, PartitionedNet, cut_regions, split_params
from dsinga.cutting.partitioning import partition
from dsinga.cutting.phases import check_whole, cut_nets, evaluation_passes
from dsinga.cutting.thread_group import run_in_threads
from dsinga.cutting.turns import check_turns
from dsinga.job import Phase
from dsinga.layers import Context, Records, Rows
from dsinga.layers.interface.context import cut_evenly, rows_of_batch
from dsinga.net import NeuralNet
from dsinga.net.neuralnet import usable_threads
from dsinga.ops import Ops, Processor, cpu_ops
from dsinga.passes.captured_passes import CapturedPasses, passes_of
from dsinga.passes.opened_job import OpenedJob
from dsinga.passes.predictor import ONE_CORE, BatchResult, Predictor, on_host
from dsinga.training import Algorithm, Metrics, Push, Updater, add_metrics, forward
from dsinga.training.metrics import add_blocks

T = TypeVar("T")
KEPT_NETS = 8  # a net is cut again for each phase and batch size


@register("engine", "cut")
class CutRunner:
    """Runs passes of a net cut for ``workers`` workers, each in a thread, so that one process needs no cluster.

    ``count_threads`` returns a worker's number of kernel threads for a net. ``gather`` is the job's ``fullc_gather``.
    As many workers compute at a time as there are cores, at most ``cores``. ``in_tree`` is for workers that
    are blocks, with sums in a tree. In training, at most ``in_memory`` of them are in memory (:func:`run_group`), by
    default all. ``sizes`` has the rows of each worker in a batch of training, if they are not even.
    """

    def __init__(
        self, workers: int, count_threads: Callable[[NeuralNet], int], gather: bool, precision: str,
        cores: int | None = None, in_tree: bool = False, in_memory: int | None = None, sizes: Sequence[int] = (),
    ):  # fmt: skip
        self._cores = min(cores or available_cores(), available_cores())
        self.workers, self.gather, self._count_threads, self.in_tree = workers, gather, count_threads, in_tree
        self._precision, self._kept_blocks, self._sizes = precision, in_memory or workers, sizes
        self._cuts: dict[int, tuple[PartitionedNet, Sequence[Rows]]] = {}
        # By process, since a fork has no threads; kept, because kernels are made once for each thread.
        self._pools: dict[int, ThreadPoolExecutor] = {}
        self._lock = threading.Lock()
        self._opened_kernels: tuple[Ops, CapturedPasses | None] | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_cuts": {}, "_pools": {}, "_lock": None, "_opened_kernels": None}

    def __setstate__(self, state: Mapping[str, Any]) -> None:
        vars(self).update(state, _lock=threading.Lock())

    def open(self, opened: OpenedJob, updater: Updater) -> None:
        """Cut all nets of a job as on a cluster.

        Raises JobError if a layer cannot be cut as the job asks, or a cut param has an updater that needs it whole.
        """
        nets = cut_nets(opened.nets, opened.readers, self.gather)
        check_whole(updater, nets[Phase.kTrain].parts, nets[Phase.kTrain].whole, in_blocks=True)
        self._check_turns(nets[Phase.kTrain])
        cuts = [(net, opened.readers[phase]) for phase, net in nets.items()]
        cuts += [(net, reader) for passes in evaluation_passes(opened, nets).values() for net, reader, _ in passes]
        self._cuts = {id(net.whole): (net, reader.parts) for net, reader in cuts}

    def _check_turns(self, net: PartitionedNet) -> None:
        if net.is_training and self._kept_blocks < self.workers:
            check_turns(net)

    def predictor(self, net: NeuralNet, seed: int) -> Predictor:
        """Return a predictor that computes ``net`` in several threads; each call gives the params."""
        return _CutPredictor(self, net, seed)

    def backward(
        self, algorithm: Algorithm, net: NeuralNet, values: Mapping[str, np.ndarray], records: Mapping[str, Records],
        ctx: Context, push: Push, *, memory: Mapping[int, Sequence[np.ndarray]] = MappingProxyType({}),
    ) -> Metrics:  # fmt: skip
        """Push the gradients of whole params, and return the metrics by layer, of a batch's rows ``ctx.rows``.

        A gradient is pushed when the last worker has computed its part. ``memory`` is for large gradients
        (:func:`dsinga.base.buffers.use_bases`).
        """
        rows, micro_batch, skips = ctx.rows.stop - ctx.rows.start, ctx.micro_batch, ctx.skips
        cut, parts = self.cut(net, rows)
        joined = JoinedGradients(cut, push, self.in_tree)
        keeps_all = self._kept_blocks == self.workers  # else a recording would hold the memory that is saved
        passes = self._kernels()[1] if keeps_all or net.is_small else None
        compute_part = joined.sums.compute(algorithm, lambda worker: memory, passes)

        def compute(local: NeuralNet, arrays: Mapping[str, Any], own: Mapping[str, Records], ctx: Context) -> Metrics:
            own_rows = ctx.rows if micro_batch is None else rows_of_batch(ctx.rows, micro_batch)
            return compute_part(local, arrays, own, ctx.changed(skips=skips, rows=own_rows, micro_batch=micro_batch))

        done = self.run(compute, cut, values, records, parts, ctx.seed, ctx.step)
        joined.finish()
        return self.add_up(done)

    def _kernels(self) -> tuple[Ops, CapturedPasses | None]:
        """Return the kernels, and the passes that they have recorded."""
        if self._opened_kernels is None:
            ops = cpu_ops(self._precision)
            self._opened_kernels = ops, passes_of(ops, "training passes")
        return self._opened_kernels

    def add_up(self, metrics: Sequence[Metrics]) -> Metrics:
        """Add up the metrics of all workers."""
        return add_blocks(dict(enumerate(metrics))) if self.in_tree else add_metrics(metrics)

    def run(
        self, compute: Callable[[NeuralNet, Mapping[str, Any], Mapping[str, Records], Context], T], cut: PartitionedNet,
        values: Mapping[str, np.ndarray], records: Mapping[str, Records], rows: Sequence[Rows], seed: int, step: int,
    ) -> list[T]:  # fmt: skip
        """Call ``compute`` for each worker of a cut net with its net, params and rows; return the results."""
        with self._lock:
            if (process := os.getpid()) not in self._pools:
                self._pools = {process: ThreadPoolExecutor(self.workers, "dsinga-local")}
            ops = self._kernels()[0]
            ops.enter()
            parts = {name: ops.asarray(value) for name, value in split_params(cut.parts, values).items()}
            threads = self._count_threads(cut.whole)
            at_once = max(1, min(self._cores, usable_threads(cut.whole, 1)) // threads)

            def work(worker: int, ctx: Context) -> T:
                ctx.ops.enter()
                ctx.ops.set_threads(threads)
                local = cut.locals[worker]
                return compute(local, parts, _records_of(local, records, ctx.rows), ctx)

            return run_in_threads(
                cut, ops, work, seed=seed, step=step, rows=rows, pool=self._pools[process],
                at_once=at_once, in_tree=self.in_tree,
                in_memory=self._kept_blocks if cut.is_training else None,
            )  # fmt: skip

    def cut(self, net: NeuralNet, rows: int) -> tuple[PartitionedNet, Sequence[Rows]]:
        """Cut a net for the workers, or return the net that was cut before; return each worker's rows, too.

        Raises JobError for a layer that cannot be cut, or whose parts cannot take turns (:func:`check_turns`).
        """
        with self._lock:
            if id(net) not in self._cuts:
                if len(self._cuts) >= KEPT_NETS:
                    del self._cuts[next(iter(self._cuts))]
                parts = cut_evenly(rows, self.workers)
                if net.phase is Phase.kTrain and sum(self._sizes) == rows:
                    stops = itertools.accumulate(self._sizes)
                    parts = [Rows(stop - size, stop, rows) for size, stop in zip(self._sizes, stops, strict=True)]
                cut = partition(net, self.workers, parts, gather=self.gather)
                self._check_turns(cut)
                self._cuts[id(net)] = cut, parts  # it refers to the net, so that its id stays its own
            return self._cuts[id(net)]


class _CutPredictor(Predictor):
    """Computes features and metrics of batches with a cut net, in threads."""

    def __init__(self, runner: CutRunner, net: NeuralNet, seed: int):
        super().__init__(net, seed=seed)
        self._runner = runner

    def forward(
        self, records: Mapping[str, Records], rows: int, keep: Collection[str] = (), *,
        params: Mapping[str, np.ndarray] | None = None, step: int = 0, processor: Processor = ONE_CORE,
    ) -> BatchResult:  # fmt: skip
        """Compute a batch's metrics and the features ``keep``, without the features' labels."""
        for name in keep:
            self.net.position(name)  # raises UserError

        def compute(
            local: NeuralNet, values: Mapping[str, Any], own: Mapping[str, Records], ctx: Context
        ) -> BatchResult:
            outputs, metrics = forward(local, values, own, ctx, [name for name in keep if name in local.positions])
            return {name: on_host(output, ctx.ops) for name, output in outputs.items()}, metrics

        cut, parts = self._runner.cut(self.net, rows)
        results = self._runner.run(compute, cut, params or {}, records, parts, self._seed, step)
        metrics = self._runner.add_up([metrics for _, metrics in results])
        features = [{name: feature.data for name, feature in outputs.items()} for outputs, _ in results]
        return {name: Records(join_features(cut, name, features), None) for name in keep}, metrics


def _records_of(net: NeuralNet, records: Mapping[str, Records], rows: Rows) -> dict[str, Records]:
    inputs = [node for node in net.nodes if node.layer.is_input]
    return {node.layer.name: records[node.layer.name].part(node.rows or rows) for node in inputs}


def join_features(net: PartitionedNet, name: str, outputs: Sequence[Mapping[str, np.ndarray]]) -> np.ndarray:
    """Join a layer's feature from its parts at the workers."""
    cut = net.cuts[name]
    if cut.dim == WHOLE_LAYER:
        return outputs[cut.location][name]
    if cut.grid:
        return _join_regions(net, name, outputs)
    axis = net.whole.layer(name).cut.axis if cut.dim == FEATURES else 0
    return np.concatenate([features[name] for features in outputs], axis=axis)


def _join_regions(net: PartitionedNet, name: str, outputs: Sequence[Mapping[str, np.ndarray]]) -> np.ndarray:
    layer, cut, first = net.whole.layer(name), net.cuts[name], outputs[0][name]
    rows, shape = len(first), layer.space_shape
    joined = np.empty((rows, *shape[1:]), first.dtype)
    for region, features in zip(cut_regions(shape, cut.dim, cut.grid), outputs, strict=True):
        part = region.of(joined)
        part[...] = features[name].reshape(part.shape)
    return joined.reshape(rows, *layer.shape[1:])

"""Computes a net cut for several workers in threads of this process, on whole params and whole batches."""

from __future__ import annotations

import itertools
import threading
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from types import MappingProxyType
from typing import Any, TypeVar

import numpy as np

from dsinga.base import buffers
from dsinga.base.cores import available_cores
from dsinga.base.registry import register
from dsinga.cutting.partitioned import FEATURES, WHOLE_LAYER, ParamPart, PartitionedNet, cut_regions, split_params
from dsinga.cutting.partitioning import partition
from dsinga.cutting.phases import check_whole, cut_nets, evaluation_passes
from dsinga.cutting.thread_group import ThreadPeers, run_in_threads
from dsinga.job import Phase
from dsinga.layers import Context, Records, Rows
from dsinga.layers.interface.context import cut_evenly, rows_of_batch
from dsinga.net import NeuralNet
from dsinga.ops import Ops, Processor, SparseRows, cpu_ops
from dsinga.ops.sparse import add_up, to_host, whole_shape
from dsinga.passes.opened_job import OpenedJob
from dsinga.passes.predictor import ONE_CORE, BatchResult, Predictor, on_host
from dsinga.training import Algorithm, Metrics, Push, Updater, add_metrics, forward

T = TypeVar("T")
LARGE = 1 << 18  # bytes; gradients that should not all wait in memory
KEPT_NETS = 8  # a net is cut again for each phase and batch size


@register("engine", "cut")
class CutRunner:
    """Runs passes of a net cut for ``workers`` workers, each in a thread, so that one process needs no cluster.

    ``count_threads`` returns a worker's number of kernel threads for a net. ``gather`` is the job's ``fullc_gather``.
    As many workers compute at a time as there are cores, at most ``cores``. ``sizes`` has the rows of each worker in a
    batch of training, if they are not even.
    """

    def __init__(
        self, workers: int, count_threads: Callable[[NeuralNet], int], gather: bool, precision: str,
        cores: int | None = None, sizes: Sequence[int] = (),
    ):  # fmt: skip
        self._cores = min(cores or available_cores(), available_cores())
        self.workers, self.gather, self._count_threads = workers, gather, count_threads
        self._precision, self._sizes = precision, sizes
        self._cuts: dict[int, tuple[PartitionedNet, Sequence[Rows]]] = {}
        self._pool: ThreadPoolExecutor | None = None  # kept, because kernels are made once for each thread
        self._lock = threading.Lock()

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_cuts": {}, "_pool": None, "_lock": None}

    def __setstate__(self, state: Mapping[str, Any]) -> None:
        vars(self).update(state, _lock=threading.Lock())

    def open(self, opened: OpenedJob, updater: Updater) -> None:
        """Cut all nets of a job as on a cluster.

        Raises JobError if a layer cannot be cut as the job asks, or a cut param has an updater that needs it whole.
        """
        nets = cut_nets(opened.nets, opened.readers, self.gather)
        check_whole(updater, nets[Phase.kTrain].parts, nets[Phase.kTrain].whole, in_blocks=True)
        cuts = [(net, opened.readers[phase]) for phase, net in nets.items()]
        cuts += [(net, reader) for passes in evaluation_passes(opened, nets).values() for net, reader, _ in passes]
        self._cuts = {id(net.whole): (net, reader.parts) for net, reader in cuts}

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
        joined = JoinedGradients(cut, push)

        def compute(local: NeuralNet, arrays: Mapping[str, Any], own: Mapping[str, Records], ctx: Context) -> Metrics:
            assert isinstance(ctx.peers, ThreadPeers)
            peers = ctx.peers
            ctx = replace(ctx, skips=skips)
            if micro_batch is not None:
                ctx = replace(ctx, rows=rows_of_batch(ctx.rows, micro_batch), micro_batch=micro_batch)

            def push_part(name: str, gradient: Any) -> None:
                whole = whole_shape(to_host(gradient, ctx.ops), local.params[name].shape)
                is_large = whole.nbytes >= LARGE
                joined.add(peers.worker, name, whole)
                if is_large:
                    del gradient, whole
                    peers.take_turns()  # so that the others add theirs before this one computes more

            with buffers.use_bases(memory):
                return algorithm(local, arrays, own, ctx, push_part)

        done = self.run(compute, cut, values, records, parts, ctx.seed, ctx.step)
        joined.finish()
        return add_metrics(done)

    def run(
        self, compute: Callable[[NeuralNet, Mapping[str, Any], Mapping[str, Records], Context], T], cut: PartitionedNet,
        values: Mapping[str, np.ndarray], records: Mapping[str, Records], rows: Sequence[Rows], seed: int, step: int,
    ) -> list[T]:  # fmt: skip
        """Call ``compute`` for each worker of a cut net with its net, params and rows; return the results."""
        with self._lock:
            self._pool = self._pool or ThreadPoolExecutor(self.workers, "dsinga-local")
            ops: Ops = cpu_ops(self._precision)
            ops.enter()
            parts = {name: ops.asarray(value) for name, value in split_params(cut.parts, values).items()}
            threads = self._count_threads(cut.whole)

            def work(worker: int, ctx: Context) -> T:
                ctx.ops.enter()
                ctx.ops.set_threads(threads)
                local = cut.locals[worker]
                return compute(local, parts, _records_of(local, records, ctx.rows), ctx)

            return run_in_threads(
                cut, ops, work, seed=seed, step=step, rows=rows, pool=self._pool,
                at_once=max(1, self._cores // threads),
            )  # fmt: skip

    def cut(self, net: NeuralNet, rows: int) -> tuple[PartitionedNet, Sequence[Rows]]:
        """Cut a net for the workers, or return the net that was cut before; return each worker's rows, too."""
        with self._lock:
            if id(net) not in self._cuts:
                if len(self._cuts) >= KEPT_NETS:
                    del self._cuts[next(iter(self._cuts))]
                parts = cut_evenly(rows, self.workers)
                if net.phase is Phase.kTrain and sum(self._sizes) == rows:
                    stops = itertools.accumulate(self._sizes)
                    parts = [Rows(stop - size, stop, rows) for size, stop in zip(self._sizes, stops, strict=True)]
                cut = partition(net, self.workers, parts, gather=self.gather)
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
        metrics = add_metrics(metrics for _, metrics in results)
        features = [{name: feature.data for name, feature in outputs.items()} for outputs, _ in results]
        return {name: Records(join_features(cut, name, features), None) for name in keep}, metrics


def _records_of(net: NeuralNet, records: Mapping[str, Records], rows: Rows) -> dict[str, Records]:
    inputs = [node for node in net.nodes if node.layer.is_input]
    return {node.layer.name: records[node.layer.name].part(node.rows or rows) for node in inputs}


class JoinedGradients:
    """Joins workers' gradients of parts, and pushes the gradient of a whole param when it is complete. Thread-safe."""

    def __init__(self, net: PartitionedNet, push: Push):
        self._net, self._push, self._lock = net, push, threading.Lock()
        self._sums = {name: OrderedSum(part.users) for name, part in net.parts.items()}
        self._missing: dict[str, int] = {}  # by param: how many gradients
        self._parts: dict[str, list[str]] = {}  # by param
        for name, part in net.parts.items():
            self._parts.setdefault(part.param, []).append(name)
            self._missing[part.param] = self._missing.get(part.param, 0) + len(part.users)

    def add(self, worker: int, name: str, gradient: np.ndarray | SparseRows) -> None:
        """Add a worker's gradient of a part, which may be overwritten."""
        part = self._net.parts[name]
        with self._lock:
            if not part.gathered or worker == part.users[0]:  # otherwise each user has the whole gradient
                self._sums[name].add(worker, gradient)
            self._missing[part.param] -= 1
            if not self._missing[part.param]:
                self._push_whole(part.param)

    def finish(self) -> None:
        """Push the gradients that some worker has pushed no part of."""
        for param, missing in self._missing.items():
            if missing:
                self._push_whole(param)

    def _push_whole(self, param: str) -> None:
        totals = [(self._net.parts[name], self._sums[name].total()) for name in self._parts[param]]
        parts = [(part, total) for part, total in totals if total is not None]
        if parts and not self._net.whole.params[param].static:
            self._push(param, _join_parts(self._net.whole.params[param].shape, parts))


class OrderedSum:
    """The sum of several workers' gradients of a param, added in the order of the workers, like on servers."""

    def __init__(self, workers: Sequence[int]):
        self._left = deque(workers)
        self._sum: np.ndarray | None = None
        self._waiting: dict[int, np.ndarray | SparseRows] = {}

    def add(self, worker: int, gradient: np.ndarray | SparseRows) -> None:
        """Add a worker's gradient, or keep it until those before it have come."""
        self._waiting[worker] = gradient
        while self._left and isinstance(first := self._waiting.get(self._left[0]), np.ndarray):
            self._add(first)
            del self._waiting[self._left.popleft()]

    def total(self) -> np.ndarray | SparseRows | None:
        """Return the sum of what has come, None for nothing; sparse if all gradients are."""
        rest = [self._waiting[worker] for worker in self._left if worker in self._waiting]
        if any(isinstance(gradient, SparseRows) for gradient in rest):
            return add_up(rest if self._sum is None else [self._sum, *rest])
        for gradient in rest:
            assert isinstance(gradient, np.ndarray)
            self._add(gradient)
        return self._sum

    def _add(self, gradient: np.ndarray) -> None:
        if self._sum is None:
            self._sum = gradient
        else:
            self._sum = np.add(self._sum, gradient, out=self._sum if self._sum.flags.writeable else None)


def _join_parts(
    shape: tuple[int, ...], parts: Sequence[tuple[ParamPart, np.ndarray | SparseRows]]
) -> np.ndarray | SparseRows:
    if parts[0][0].axis is None:
        return parts[0][1]
    sparse = [(part, gradient) for part, gradient in parts if isinstance(gradient, SparseRows)]
    if len(sparse) == len(parts):
        starts = [part.start if part.axis == 0 else 0 for part, _ in sparse]
        rows = np.unique(np.concatenate([g.rows + start for start, (_, g) in zip(starts, sparse, strict=True)]))
        values = np.zeros((rows.size, *shape[1:]), np.float32)
        for start, (part, gradient) in zip(starts, sparse, strict=True):
            columns = slice(None) if part.axis == 0 else slice(part.start, part.stop)
            values[np.searchsorted(rows, gradient.rows + start), columns] = gradient.values
        return SparseRows(rows, values, shape)
    whole = np.zeros(shape, np.float32)
    for part, array in parts:
        part.of(whole)[...] = np.asarray(array)
    return whole


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

"""Computes a net cut for several workers in threads of this process, on whole params and whole batches."""

from __future__ import annotations

import functools
import operator
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any, TypeVar

import numpy as np

from dsinga.base.registry import register
from dsinga.cutting.partitioned import FEATURES, WHOLE_LAYER, ParamPart, PartitionedNet, cut_regions, split_params
from dsinga.cutting.partitioning import partition
from dsinga.cutting.thread_group import run_in_threads
from dsinga.layers import Context, Records, Rows
from dsinga.layers.interface.context import cut_evenly, rows_of_batch
from dsinga.net import NeuralNet
from dsinga.ops import Ops, Processor, SparseRows, cpu_ops
from dsinga.ops.sparse import add_up, to_host, whole_shape
from dsinga.passes.predictor import ONE_CORE, BatchResult, Predictor, on_host
from dsinga.training import Algorithm, Metrics, add_metrics, forward, name_metrics

T = TypeVar("T")
KEPT_NETS = 8  # a net is cut again for each phase and batch size


@register("engine", "cut")
class CutRunner:
    """Runs passes of a net cut for ``workers`` workers, each in a thread, so that one process needs no cluster.

    ``count_threads`` returns a worker's number of kernel threads for a net. ``gather`` is the job's ``fullc_gather``.
    """

    def __init__(self, workers: int, count_threads: Callable[[NeuralNet], int], gather: bool, precision: str):
        self.workers, self.gather, self._count_threads = workers, gather, count_threads
        self._precision = precision
        self._cuts: dict[int, PartitionedNet] = {}
        self._pool: ThreadPoolExecutor | None = None  # kept, because kernels are made once for each thread
        self._lock = threading.Lock()

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_cuts": {}, "_pool": None, "_lock": None}

    def __setstate__(self, state: Mapping[str, Any]) -> None:
        vars(self).update(state, _lock=threading.Lock())

    def predictor(self, net: NeuralNet, seed: int) -> Predictor:
        """Return a predictor that computes ``net`` in several threads; each call gives the params."""
        return _CutPredictor(self, net, seed)

    def backward(
        self, algorithm: Algorithm, net: NeuralNet, values: Mapping[str, np.ndarray], records: Mapping[str, Records],
        ctx: Context,
    ) -> tuple[dict[str, np.ndarray | SparseRows], Metrics]:  # fmt: skip
        """Return a batch's gradients, in the shapes of whole params, and its metrics."""
        rows, micro_batch = ctx.rows.stop - ctx.rows.start, ctx.micro_batch

        def compute(local: NeuralNet, arrays: Mapping[str, Any], own: Mapping[str, Records], ctx: Context) -> Any:
            pushed: dict[str, Any] = {}
            if micro_batch is not None:
                ctx = replace(ctx, rows=rows_of_batch(ctx.rows, micro_batch), micro_batch=micro_batch)
            metrics = algorithm(local, arrays, own, ctx, pushed.__setitem__)
            return {name: to_host(gradient, ctx.ops) for name, gradient in pushed.items()}, metrics

        cut, done = self.run(compute, net, values, records, rows, ctx.seed, ctx.step)
        pushed = [
            {name: whole_shape(gradient, local.params[name].shape) for name, gradient in gradients.items()}
            for local, (gradients, _) in zip(cut.locals, done, strict=True)
        ]
        metrics = name_metrics(cut.whole, add_metrics(metrics for _, metrics in done))
        return join_gradients(cut, pushed), metrics

    def run(
        self, compute: Callable[[NeuralNet, Mapping[str, Any], Mapping[str, Records], Context], T], net: NeuralNet,
        values: Mapping[str, np.ndarray], records: Mapping[str, Records], rows: int, seed: int, step: int,
    ) -> tuple[PartitionedNet, list[T]]:  # fmt: skip
        """Call ``compute`` for each worker with its net, params and rows; return the cut net and the results."""
        with self._lock:
            cut = self._cut(net, rows)
            self._pool = self._pool or ThreadPoolExecutor(self.workers, "dsinga-local")
            ops: Ops = cpu_ops(self._precision)
            ops.enter()
            parts = {name: ops.asarray(value) for name, value in split_params(cut.parts, values).items()}
            threads = self._count_threads(net)

            def work(worker: int, ctx: Context) -> T:
                ctx.ops.enter()
                ctx.ops.set_threads(threads)
                local = cut.locals[worker]
                return compute(local, parts, _records_of(local, records, ctx.rows), ctx)

            row_parts = cut_evenly(rows, self.workers)
            return cut, run_in_threads(cut, ops, work, seed=seed, step=step, rows=row_parts, pool=self._pool)

    def _cut(self, net: NeuralNet, rows: int) -> PartitionedNet:
        if id(net) not in self._cuts:
            if len(self._cuts) >= KEPT_NETS:
                del self._cuts[next(iter(self._cuts))]
            cut = partition(net, self.workers, cut_evenly(rows, self.workers), gather=self.gather)
            self._cuts[id(net)] = cut  # it refers to the net, so that its id stays its own
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
            local: NeuralNet, values: Mapping[str, Any], parts: Mapping[str, Records], ctx: Context
        ) -> BatchResult:
            outputs, metrics = forward(local, values, parts, ctx, [name for name in keep if name in local.positions])
            return {name: on_host(output, ctx.ops) for name, output in outputs.items()}, metrics

        cut, results = self._runner.run(compute, self.net, params or {}, records, rows, self._seed, step)
        metrics = name_metrics(cut.whole, add_metrics(metrics for _, metrics in results))
        features = [{name: feature.data for name, feature in outputs.items()} for outputs, _ in results]
        return {name: Records(join_features(cut, name, features), None) for name in keep}, metrics


def _records_of(net: NeuralNet, records: Mapping[str, Records], rows: Rows) -> dict[str, Records]:
    inputs = [node for node in net.nodes if node.layer.is_input]
    return {node.layer.name: records[node.layer.name].part(node.rows or rows) for node in inputs}


def join_gradients(
    net: PartitionedNet, pushed: Sequence[Mapping[str, np.ndarray | SparseRows]]
) -> dict[str, np.ndarray | SparseRows]:
    """Join the gradients of all workers to gradients of whole params, added in the order of the workers."""
    by_param: dict[str, list[tuple[ParamPart, np.ndarray | SparseRows]]] = {}
    for name, part in net.parts.items():
        if net.whole.params[part.param].static:
            continue
        gradients = [pushed[user][name] for user in part.users if name in pushed[user]]
        total = gradients[0] if part.gathered or len(gradients) == 1 else add_gradients(gradients)
        by_param.setdefault(part.param, []).append((part, total))
    return {name: _join_parts(net.whole.params[name].shape, parts) for name, parts in by_param.items()}


def add_gradients(gradients: Sequence[np.ndarray | SparseRows]) -> np.ndarray | SparseRows:
    """Return the ordered sum of several gradients of one param; sparse if all are."""
    if any(isinstance(gradient, SparseRows) for gradient in gradients):
        return add_up(gradients)
    return functools.reduce(operator.add, gradients)


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

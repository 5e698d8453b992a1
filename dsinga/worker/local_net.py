"""LocalNet, the nets of a job on numpy arrays in this process: forward and backward passes, without Dask or servers."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from dsinga.data import read_mean
from dsinga.errors import UserError
from dsinga.job import ClusterConf, Job, LayerConf, Phase, check
from dsinga.layers import Context, RecordInfo, Records, Rows
from dsinga.net import NeuralNet, create_net, input_layers
from dsinga.net.needed_layers import needed_layers
from dsinga.ops import SparseRows, get_ops
from dsinga.training import Metrics, add_metrics, algorithm, check_params, forward, initial_values
from dsinga.training.divergence import check_metrics
from dsinga.worker.batch_reader import open_batch_reader
from dsinga.worker.bind_records import find_phase
from dsinga.worker.local_cut import KEPT_NETS, CutRunner
from dsinga.worker.local_updater import LocalUpdater
from dsinga.worker.param_slices import Arrays

FEATURE_BYTES = 1 << 25  # of all layers in one pass of predict and evaluate: enough rows that kernels are fast
Batch = Any  # an array (B, ...), or several by the names of their input layers


class Forward(NamedTuple):
    """The result of a forward pass: features by layer, and the means of the metrics over the batch."""

    outputs: Arrays
    metrics: dict[str, float]

    @property
    def loss(self) -> float:
        """The mean loss. Raises KeyError for a pass without a loss layer."""
        return self.metrics["loss"]


class Backward(NamedTuple):
    """The result of a backward pass: gradients by param, and the means of the metrics over the batch.

    For a param that is not trainable, such as a running mean, the gradient is its new value.
    """

    gradients: dict[str, np.ndarray | SparseRows]
    metrics: dict[str, float]

    @property
    def loss(self) -> float:
        """The mean loss. Raises KeyError for an algorithm that reports none."""
        return self.metrics["loss"]


class LocalNet:
    """The nets of a job, whole or cut for several workers, which compute numpy arrays in threads of this process.

    Params are plain dictionaries of float32 arrays that the caller keeps. The same batches give the bits of
    :func:`dsinga.train`, with one worker; a cut net gives those of a cluster with as many workers.

    Args:
        job: the job; its data are not read.
        x: records (n, ...), or several such arrays by the names of their input layers. Only shape and dtype matter.
            Without them the shapes of the job's stores are used.
        y: labels (n,) or (n, ...), None for a job without.
        workers: for how many workers the net is cut; by default as many as the job names in a worker group.
        threads: cores for large kernels; by default all, divided among the workers. Small kernels use one.
        roots: where relative paths in the job are looked up after the working directory.

    Raises UserError for what is wrong with the job.
    """

    def __init__(
        self,
        job: Job,
        x: Batch = None,
        y: Batch = None,
        *,
        workers: int | None = None,
        threads: int | None = None,
        roots: Sequence[str] = (),
    ):
        self.job = job if x is None else _with_paths(job)
        check(self.job.replace(train_steps=1, epochs=0), [Phase.kTrain])  # the number of steps is the caller's
        self.workers = workers or (job.cluster or ClusterConf()).nworkers_per_group
        self._threads, self._roots = threads, roots
        self._algorithm = algorithm(job.train_one_batch)
        self._shapes = None if x is None else (x, y)
        self._infos: dict[Phase, dict[str, RecordInfo]] = {}
        self._nets: dict[Any, NeuralNet] = {}
        self._cut = CutRunner(self.workers, threads, (job.cluster or ClusterConf()).fullc_gather)
        self._ops = get_ops().for_worker()
        self._passes = 0

    @property
    def net(self) -> NeuralNet:
        """The whole training net."""
        return self._whole(Phase.kTrain)

    def initial_params(self) -> Arrays:
        """Return the initial value of each param, float32 by name: those with which training of the job begins."""
        return initial_values(self.net.params, self.job.seed)

    def updater(self) -> LocalUpdater:
        """Return a new updater, as the job describes it, at step 0."""
        return LocalUpdater(self.job.updater, self.net.params)

    def forward(
        self,
        params: Mapping[str, np.ndarray],
        x: Batch,
        y: Batch = None,
        *,
        layers: Sequence[str] = (),
        phase: str = "test",
        step: int = 0,
    ) -> Forward:
        """Compute the features of ``layers`` for a batch of any size; by default of the layers that are no sources.

        Without ``y`` only what needs no labels is computed, and the feature of a softmax loss or of a sigmoid
        cross-entropy loss is its probabilities. ``step`` selects the random numbers, in the phase "train". Raises
        UserError for bad input.
        """
        outputs, metrics = self._compute(params, x, y, layers, find_phase(phase), step)
        return Forward(outputs, _means(metrics))

    def _compute(
        self, params: Mapping[str, np.ndarray], x: Batch, y: Batch, layers: Sequence[str], phase: Phase, step: int = 0
    ) -> tuple[Arrays, Metrics]:
        """Return the features and the metrics, as sums and counts, of a forward pass."""
        unlabelled, cut_rows = None if y is not None else tuple(layers), self._cut_rows(x)
        net = self._whole(phase, unlabelled, cut_rows)
        keep = tuple(layers) or _last_layers(net)
        records, rows = self._records(net, x, y)
        if cut_rows:
            values = self._values(net, params)
            outputs, metrics = self._cut.forward(net, values, records, rows, keep, self.job.seed, step)
        else:
            ctx = self._context(net, rows, step)
            computed, metrics = forward(net, self._values(net, params), records, ctx, keep)
            outputs = {name: self._ops.to_numpy(output.feature) for name, output in computed.items()}
        return {name: np.ascontiguousarray(array) for name, array in outputs.items()}, metrics

    def backward(
        self, params: Mapping[str, np.ndarray], x: Batch, y: Batch = None, *, step: int | None = None
    ) -> Backward:
        """Compute the gradient of the mean loss of a batch of any size for each param, by the job's algorithm.

        ``step`` selects the random numbers, as of dropout; by default it is the number of earlier calls. A gradient of
        an embedding may be sparse rows: its method ``dense()`` returns an array. Raises UserError for bad input,
        Diverged where a metric is not finite.
        """
        step = self._passes if step is None else step
        self._passes = step + 1
        cut_rows = self._cut_rows(x)
        net = self._whole(Phase.kTrain, None, cut_rows)
        records, rows = self._records(net, x, y)
        values = self._values(net, params)
        if cut_rows:
            gradients, metrics = self._cut.backward(self._algorithm, net, values, records, rows, self.job.seed, step)
        else:
            pushed: dict[str, Any] = {}
            metrics = self._algorithm(net, values, records, self._context(net, rows, step), pushed.__setitem__)
            gradients = {name: self._to_host(gradient) for name, gradient in pushed.items()}
        check_metrics(metrics, step)
        shapes = {name: param.shape for name, param in net.params.items()}
        dense = {
            name: gradient if isinstance(gradient, SparseRows) else gradient.reshape(shapes[name])
            for name, gradient in gradients.items()
        }
        return Backward(dense, _means(metrics))

    def predict(
        self, params: Mapping[str, np.ndarray], x: Batch, layer: str, *, batchsize: int | None = None
    ) -> np.ndarray:
        """Return the feature of ``layer`` for all records, (n, ...), computed in batches that bound the memory."""
        net, rows = self._whole(Phase.kTest, (layer,)), _length(x)
        size = batchsize or _batch_rows(net)
        result = None
        for start in range(0, max(rows, 1), size):
            part = self.forward(params, _part(x, start, start + size), layers=(layer,)).outputs[layer]
            if result is None:
                result = part if len(part) == rows else np.empty((rows, *part.shape[1:]), part.dtype)
            if result is not part:
                result[start : start + size] = part
        assert result is not None
        return result

    def evaluate(
        self, params: Mapping[str, np.ndarray], x: Batch, y: Batch = None, *, batchsize: int | None = None
    ) -> dict[str, float]:
        """Return the mean loss and metrics over all records, computed in batches that bound the memory."""
        net, rows = self._whole(Phase.kTest), _length(x)
        size = batchsize or _batch_rows(net)
        parts: list[Metrics] = []
        for start in range(0, rows, size):
            part, labels = _part(x, start, start + size), None if y is None else _part(y, start, start + size)
            parts.append(self._compute(params, part, labels, (), Phase.kTest)[1])
        return _means(add_metrics(parts))

    def feature_shape(self, layer: str) -> tuple[int, ...]:
        """Return the shape of the feature of ``layer`` for one record. Raises UserError for an unknown layer."""
        return self._whole(Phase.kTest, (layer,)).layer(layer).shape[1:]

    def _context(self, net: NeuralNet, rows: int, step: int) -> Context:
        self._ops.enter()
        if self._threads is not None:
            self._ops.set_threads(self._threads)
        return Context(self._ops, net.phase, Rows(0, rows, rows), self.job.seed, step)

    def _values(self, net: NeuralNet, params: Mapping[str, np.ndarray]) -> dict[str, Any]:
        check_params(net, params)
        return {name: self._ops.asarray(np.ascontiguousarray(params[name], np.float32)) for name in net.params}

    def _to_host(self, gradient: Any) -> np.ndarray | SparseRows:
        return gradient if isinstance(gradient, SparseRows) else self._ops.to_numpy(gradient)

    def _cut_rows(self, x: Batch) -> int:
        """Return for how many rows a net is cut that computes ``x``, 0 where the net is not cut.

        A net is cut for one batch size. A batch of fewer records than workers is computed by one of them.
        """
        rows = _length(x) if self.workers > 1 else 0
        return rows if rows >= self.workers else 0

    def _whole(self, phase: Phase, unlabelled: tuple[str, ...] | None = None, rows: int = 0) -> NeuralNet:
        """Return the uncut net of a phase; where names are given, only what these layers need, without labels.

        It computes batches of any size. To cut it, it must be made for ``rows`` rows.
        """
        key = phase, unlabelled, rows
        if key not in self._nets:
            if len(self._nets) >= KEPT_NETS:
                del self._nets[next(iter(self._nets))]
            conf, infos = self.job.neuralnet, self._record_infos(phase)
            if rows:
                infos = {name: replace(info, batchsize=rows) for name, info in infos.items()}
            if unlabelled is not None:
                conf = needed_layers(conf, phase, unlabelled)
                names = {layer.name for layer in conf.layer}
                infos = {name: info for name, info in infos.items() if name in names}
            self._nets[key] = create_net(conf, phase, infos)
        return self._nets[key]

    def _record_infos(self, phase: Phase) -> dict[str, RecordInfo]:
        if phase not in self._infos:
            if self._shapes is None:
                self._infos[phase] = dict(open_batch_reader(self.job, phase, 1, self._roots).infos)
            else:
                self._infos[phase] = self._infos_of_arrays(phase, *self._shapes)
        return self._infos[phase]

    def _infos_of_arrays(self, phase: Phase, x: Batch, y: Batch) -> dict[str, RecordInfo]:
        layers = input_layers(self.job.neuralnet, phase)
        arrays = _by_layer(x, [layer.name for layer in layers], "records")
        labels = _by_layer(y, [layer.name for layer in layers], "labels") if y is not None else {}
        infos = {}
        for layer in layers:
            store = layer.store_conf
            label = labels.get(layer.name)
            infos[layer.name] = RecordInfo(
                tuple(np.shape(arrays[layer.name])[1:]),
                max(1, sum(store.batchsize) if store else 1),
                has_labels=label is not None,
                label_shape=() if label is None else tuple(np.shape(label)[1:]),
                label_dtype=np.float32 if np.asarray(label).dtype.kind == "f" else np.int64,
                mean=read_mean(store.mean_file, self._roots) if store and store.mean_file else None,
                std=read_mean(store.std_file, self._roots) if store and store.std_file else None,
            )
        return infos

    def _records(self, net: NeuralNet, x: Batch, y: Batch) -> tuple[dict[str, Records], int]:
        """Return the records of the input layers of ``net``, and their number."""
        layers = [node.layer.name for node in net.nodes if node.layer.is_input]
        arrays = _by_layer(x, layers, "records")
        labels = _by_layer(y, layers, "labels") if y is not None else {}
        records = {name: Records(as_records(arrays[name]), as_labels(labels.get(name))) for name in layers}
        rows = len(records[layers[0]].data)
        for name in layers:
            shape = self._record_infos(net.phase)[name].shape
            for what, array in (("records", records[name].data), ("labels", records[name].labels)):
                if array is not None and len(array) != rows:
                    raise UserError(f"layer {name!r} gets {len(array)} {what} in a batch of {rows} records")
            if math.prod(records[name].data.shape[1:]) != math.prod(shape):
                got = records[name].data.shape[1:]
                raise UserError(f"layer {name!r} gets records of shape {got}, but the net was made for {shape}")
        if not rows:
            raise UserError("the batch is empty; give it at least 1 record")
        return records, rows


def as_records(array: Any) -> np.ndarray:
    """Return records in the dtype that stores have: uint8 and int32 stay, bool becomes uint8, others float32."""
    array = np.asarray(array)
    if array.dtype in (np.uint8, np.int32, np.float32):
        return array
    return array.astype(np.uint8 if array.dtype == bool else np.float32)


def as_labels(array: Any) -> np.ndarray | None:
    """Return labels in the dtype that stores have: floats as float32, others as int64."""
    if array is None:
        return None
    array = np.asarray(array)
    return array.astype(np.float32 if array.dtype.kind == "f" else np.int64, copy=False)


def _with_paths(job: Job) -> Job:
    """Return a job whose input layers may lack the path of a store, with a path that stands for arrays."""

    def with_path(layer: LayerConf) -> LayerConf:
        store = layer.store_conf
        return layer if store is None or store.path else layer.replace(store_conf=store.replace(path="arrays"))

    return job.replace(neuralnet=job.neuralnet.replace(layer=[with_path(layer) for layer in job.neuralnet.layer]))


def _by_layer(batch: Batch, layers: Sequence[str], what: str) -> Mapping[str, Any]:
    """Return the arrays of a batch by input layer. Raises UserError where one is missing."""
    if not isinstance(batch, Mapping):
        if len(layers) == 1 or (what == "labels" and layers):
            return {layers[0]: batch}
        raise UserError(f"the net has the input layers {', '.join(layers)}; give {what} as a dictionary by layer")
    missing = [name for name in layers if name not in batch]
    if missing and what == "records":
        raise UserError(f"the batch lacks records for the input layer {missing[0]!r}")
    return batch


def _part(batch: Batch, start: int, stop: int) -> Batch:
    if isinstance(batch, Mapping):
        return {name: array[start:stop] for name, array in batch.items()}
    return batch[start:stop]


def _length(batch: Batch) -> int:
    return len(next(iter(batch.values())) if isinstance(batch, Mapping) else batch)


def _last_layers(net: NeuralNet) -> tuple[str, ...]:
    sources = {source for node in net.nodes for source in node.sources}
    return tuple(node.layer.name for position, node in enumerate(net.nodes) if position not in sources)


def _batch_rows(net: NeuralNet) -> int:
    """Return how many rows to compute at a time, so that the features of all layers take FEATURE_BYTES or less."""
    row_bytes = 4 * sum(math.prod(node.layer.shape) // node.layer.shape[0] for node in net.nodes)
    return max(1, FEATURE_BYTES // max(1, row_bytes))


def _means(metrics: Mapping[str, tuple[float, float]]) -> dict[str, float]:
    return {name: total / count for name, (total, count) in metrics.items() if count}

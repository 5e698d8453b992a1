"""Defines LocalNet, which computes a job's nets on numpy arrays in this process."""

from __future__ import annotations

import functools
import logging
import threading
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any, NamedTuple
from weakref import WeakValueDictionary

import numpy as np

from dsinga.base.arguments import check_whole, counted
from dsinga.base.arrays import ParamArrays
from dsinga.base.cores import available_cores
from dsinga.base.errors import Diverged, UserError
from dsinga.checkpoint import port_to_net
from dsinga.engine.nets_by_shape import NetsByShape, gradient_input, last_layers, open_cut_nets
from dsinga.job import ClusterConf, Job, Phase
from dsinga.job.enums import PRECISIONS, find_phase
from dsinga.layers import Context, Records, Rows
from dsinga.layers.metrics.composed_metrics import metric_values
from dsinga.net import NeuralNet
from dsinga.net.neuralnet import usable_threads
from dsinga.ops import Processor, SparseRows
from dsinga.ops.sparse import to_host
from dsinga.ops.types import is_plain
from dsinga.passes.captured_pass import CapturedPass
from dsinga.passes.predictor import BatchResult, Predictor, ThreadKernels, batch_rows, evaluate, has_codes, in_batches
from dsinga.passes.processors import check_precision, forward_processor
from dsinga.passes.replayed import owned, replayed
from dsinga.passes.training_step import MicroBatches, TrainingStep, Updates
from dsinga.reading.batch_reader import divide_batch
from dsinga.reading.bind_records import Batch, batch_records, by_layer, length_of, part_of_batch, row_of_zeros
from dsinga.reading.checked_job import CheckedJob, check_job
from dsinga.reading.learnt_statistics import weighed
from dsinga.training import (
    Metrics,
    add_metrics,
    algorithm,
    bp,
    check_params,
    check_patterns,
    create_updater,
    initial_values,
    name_metrics,
)
from dsinga.training.divergence import is_finite_gradient, param_gradient_fault
from dsinga.training.local_updater import LocalUpdater

_log = logging.getLogger(__name__)


class Means(dict[str, Any]):
    """Metrics by name, with the sums and counts behind them, which add up over batches.

    The sums of a cut net have names of its layers, too.
    """

    def __init__(self, sums: Metrics, net: NeuralNet | None = None):
        super().__init__(metric_values(sums if net is None else name_metrics(net, sums)))
        self.sums = sums


class Forward(NamedTuple):
    """The result of a forward pass: outputs by layer, and the batch's mean metrics."""

    outputs: ParamArrays
    metrics: Means

    @property
    def loss(self) -> float:
        """The mean loss. Raises KeyError for a pass without a loss layer."""
        return self.metrics["loss"]


class Backward(NamedTuple):
    """The result of a backward pass: gradients by param, and the batch's mean metrics.

    The gradient of a param that is not trainable, such as a running mean, is its new value.
    """

    gradients: dict[str, np.ndarray | SparseRows]
    metrics: Means

    @property
    def loss(self) -> float:
        """The mean loss. Raises KeyError for an algorithm that reports none."""
        return self.metrics["loss"]


class LocalNet:
    """Computes a job's nets on numpy arrays, in threads of this process, for training loops of your own.

    Params are plain dictionaries of float32 arrays that the caller keeps. The bits equal :func:`dsinga.train`'s with as
    many workers. A GPU computes uncut nets if the job's ``gpu`` or the setting ``dsinga.device`` requests one.

    A loop that resumes sets ``updater.steps`` for the learning rate, and passes ``step=`` to :meth:`backward` for
    random numbers.

    Args:
        job: the job; its data are not read.
        x: records (n, ...), or several such arrays by input layer, for shape and dtype. By default the shapes of the
            job's stores.
        y: labels (n,) or (n, ...), None for a job without.
        workers: for how many workers to cut the net, by default the job's ``blocks``, or its workers in a group.
        threads: cores for large kernels, divided among the workers; by default as many as the net can use.
        roots: where the job's relative paths are looked up after the working directory.
        is_small: whether to compute small products in the fastest way; a row's bits then depend on the batch size.
    """

    def __init__(
        self, job: Job | CheckedJob, x: Batch = None, y: Batch = None, *, workers: int | None = None,
        threads: int | None = None, roots: Sequence[str] = (), is_small: bool = False,
    ):  # fmt: skip
        if not isinstance(job, Job | CheckedJob):
            remedy = "of a model of dsinga.nn, write LocalNet(model.job(train_steps=1), x, y)"
            raise UserError(f"LocalNet takes a Job, not {type(job).__name__}; {remedy}")
        shapes = [None if batch is None else part_of_batch(batch, 0, 1) for batch in (x, y)]
        self._arguments = (job, *shapes), {"workers": workers, "threads": threads, "roots": roots, "is_small": is_small}
        checked = check_job(job, roots, [Phase.kTrain], needs_paths=x is None)
        if checked.job.params:
            checked = checked.with_job(weighed(checked.job, checked.job.params))
        self.job = job = checked.job
        self._roots = checked.roots
        if workers and job.blocks not in (0, workers):
            text = f"LocalNet cuts a batch for the job's {counted(job.blocks, 'block')}, not for {workers} workers"
            raise UserError(f"{text}; leave workers out, or blocks out of the job")
        self.workers = workers or job.blocks or (job.cluster or ClusterConf()).nworkers_per_group
        self._threads = threads
        self._cores = available_cores()
        self._algorithm = algorithm(job.train_one_batch)
        self._nets = NetsByShape(checked, None if x is None else (x, y), self._create_predictor)
        self._cut = open_cut_nets(job, self.workers, self._count_threads) if self.workers > 1 else None
        self._is_small = is_small
        self._by_thread: dict[int, ThreadKernels] = {}
        self._processor: Processor | None = None  # chosen for the first net that is made
        if self.workers > 1 and job.gpu:
            _log.warning("the nets of %d workers in a process are computed by CPU cores, not by a GPU", self.workers)
        self._captured: WeakValueDictionary[Hashable, CapturedPass] = WeakValueDictionary()
        self._overflow: Any = "ignore" if is_small else None  # metrics show it, as where numpy does not compute
        self._passes = 0

    def of_job(self, job: Job) -> LocalNet:
        """Return a LocalNet of another job, for arrays of the same shapes."""
        return LocalNet(job, *self._arguments[0][1:])

    def __getstate__(self) -> dict[str, Any]:
        """Return the arguments from which a pickle makes a copy."""
        return {"arguments": self._arguments, "passes": self._passes}

    def __setstate__(self, state: dict[str, Any]) -> None:
        positional, keywords = state["arguments"]
        self.__init__(*positional, **keywords)  # type: ignore[misc]
        self._passes = state["passes"]

    @property
    def net(self) -> NeuralNet:
        """The whole training net."""
        return self._nets.predictor(Phase.kTrain).net

    def unlabelled_net(self, layers: Sequence[str], phase: Phase = Phase.kTest) -> NeuralNet:
        """Return the net that predicts these layers without labels; by default all layers that need none."""
        return self._nets.predictor(phase, tuple(layers)).net

    def initial_params(self, known: Mapping[str, np.ndarray] = MappingProxyType({})) -> ParamArrays:
        """Return the initial value of each param, float32 by name.

        Values come from ``known``, the job's ``params``, its ``checkpoint_path``, or the initialisers.
        """
        missing = {name: param for name, param in self.net.params.items() if name not in known}
        start = port_to_net(missing, self.job.checkpoint_path, self._roots)
        start |= {name: np.array(array, np.float32) for name, array in self.job.params.items() if name in missing}
        others = {name: param for name, param in missing.items() if name not in start}
        values = {**initial_values(others, self.job.seed), **start, **known}
        return {name: values[name] for name in (*self.net.params, *known)}

    def updater(self) -> LocalUpdater:
        """Return a new optimizer, as the job configures it, at step 0."""
        check_patterns(self.job.updater, self.net.params)
        return LocalUpdater(create_updater(self.job.updater), self.net.params)

    def forward(
        self, params: Mapping[str, np.ndarray], x: Batch, y: Batch = None, *, layers: Sequence[str] = (),
        phase: str = "test", step: int = 0,
    ) -> Forward:  # fmt: skip
        """Compute the outputs of ``layers`` for a batch; by default of the layers that no layer reads.

        Without ``y`` only layers that need no labels are computed; a softmax or sigmoid cross-entropy loss then gives
        its probabilities. ``step`` selects random numbers in the phase "train". Raises UserError for bad input.
        """
        return self._forward(params, x, y, tuple(layers), find_phase(phase), step)

    def _forward(
        self, params: Mapping[str, np.ndarray], x: Batch, y: Batch = None, layers: tuple[str, ...] = (),
        phase: Phase = Phase.kTest, step: int = 0, first: int = 0,
    ) -> Forward:  # fmt: skip
        """Compute a batch like :meth:`forward`; messages number its records from ``first``."""
        key = phase, layers, *_kind(params, x, y)
        if (captured := self._captured.get(key)) is not None:
            result = captured.launch_on_arrays(params, x, y, step)
            if result is not None:
                outputs, metrics = result.outputs, result.metrics
                return Forward({name: outputs[name].feature.copy() for name in layers or outputs}, Means(metrics))
        predictor = self._nets.predictor(phase, None if y is not None else layers, self._cut_rows(x))
        net = predictor.net
        records, rows = self._records(net, x, y, first)
        with np.errstate(over=self._overflow, invalid=self._overflow):
            features, metrics = predictor.forward(
                records, rows, layers or last_layers(net), params=self._values(net, params), step=step
            )
        self._keep(key, predictor.last_pass, net, records, x, y)
        return Forward({name: feature.data for name, feature in features.items()}, Means(metrics, net))

    def _keep(
        self, key: Hashable, captured: CapturedPass | None, net: NeuralNet, records: Mapping[str, Records], x: Batch,
        y: Batch, has_gradients: bool = False,
    ) -> None:  # fmt: skip
        """Keep a recorded pass, to compute the next batch of its kind faster."""
        if captured is None or self.job.skip_bad_batches or net.by_step:
            return
        given, of_layer = by_layer(x, net.inputs, "records"), {} if y is None else by_layer(y, net.inputs, "labels")
        for name, (data, labels) in records.items():
            if data is not given[name] or labels is not of_layer.get(name) or (labels is not None and labels.ndim > 2):
                return
        if captured.can_launch_on_arrays(has_gradients):
            self._captured[key] = captured

    def backward(
        self, params: Mapping[str, np.ndarray], x: Batch, y: Batch = None, *,
        gradients: Mapping[str, np.ndarray] | None = None, step: int | None = None,
    ) -> Backward:  # fmt: skip
        """Compute the gradient of a batch's mean loss for each param.

        ``gradients`` replace the job's loss: by layer, the gradient of each record's loss by the layer's output, (n,
        ...). Then only these layers and their sources are computed. The only metric, "loss", is the mean of
        gradient·output.

        ``step`` selects the random numbers, as of dropout, by default the number of earlier calls. A gradient of an
        embedding may be sparse rows: its method ``dense()`` returns an array. Raises UserError for bad input, Diverged
        if a metric or a gradient is not finite.
        """
        if gradients is not None and (y is not None or not gradients):
            raise UserError("gradients stand for a loss: give those of at least one layer, and no y")
        step = self._passes if step is None else step
        self._passes = step + 1
        key = "backward", *_kind(params, x, y)
        if gradients is None and (captured := self._captured.get(key)) is not None:
            result = captured.launch_on_arrays(params, x, y, step)
            if result is not None:
                return Backward(dict(owned(result.outputs, copies=True)), Means(result.metrics))
        compute = self._algorithm if gradients is None else bp
        names = tuple(gradients or ())
        cut_rows = self._cut_rows(x, self.job.passes)
        net = self._nets.predictor(Phase.kTrain, None, cut_rows, gradients=names).net
        if self._processor is not None:
            check_precision(self.job, ((self._processor.device,),))
        if gradients:
            given = {gradient_input(name): gradient for name, gradient in gradients.items()}
            x = {**by_layer(x, [name for name in net.inputs if name not in given], "records"), **given}
        records, rows = self._records(net, x, y, gradients=names)
        parts, values = divide_batch(rows, self.job.passes), self._values(net, params)
        pushed = _KeptGradients()
        if cut_rows:
            assert self._cut is not None, "one worker computes whole nets"
            compute = functools.partial(self._cut.backward, compute)
        ops, _, passes = self._open()
        if ops.device_count() and (len(parts) > 1 or (names and has_codes(net))):
            passes = None  # the host checks codes
        ops.set_threads(self._count_threads(net))
        ctx = Context(ops, net.phase, Rows(0, rows, rows), self.job.seed, step)
        batches: MicroBatches = [(records, ctx)]
        if len(parts) > 1:
            parts_of = ({name: each.part(part) for name, each in records.items()} for part in parts)
            batches = zip(parts_of, (replace(ctx, rows=part, micro_batch=part) for part in parts), strict=True)
        with np.errstate(over=self._overflow, invalid=self._overflow):
            if not cut_rows and passes is None:
                values = {name: ops.asarray(value) for name, value in values.items()}
            compute = replayed(compute, passes, copies=True)
            metrics = TrainingStep(compute, net, len(parts), repeats=not cut_rows).run(step, values, batches, pushed)
        assert metrics is not None, "no batch is skipped"
        if passes is not None and gradients is None and len(parts) == 1:
            self._keep(key, passes.last, net, records, x, y, has_gradients=True)
        on_host = {name: to_host(gradient, ops) for name, gradient in pushed.items()}
        for name, gradient in on_host.items() if ops.device_count() else ():
            if not is_finite_gradient(gradient):
                raise Diverged(param_gradient_fault(name, step))
        return Backward(on_host, Means(metrics, net))

    def predict(
        self, params: Mapping[str, np.ndarray], x: Batch, layer: str, *, batchsize: int | None = None
    ) -> np.ndarray:
        """Return the output of ``layer`` for all records, (n, ...), in batches of bounded memory."""
        if batchsize is not None:
            check_whole("batchsize", batchsize, 1)
        net, rows = self._nets.predictor(Phase.kTest, (layer,)).net, length_of(x)
        if not rows:
            return self.predict(params, row_of_zeros(x), layer)[:0]

        def compute(start: int, stop: int) -> np.ndarray:
            batch = part_of_batch(x, start, stop)
            return self._forward(params, batch, layers=(layer,), first=start).outputs[layer]

        return in_batches(compute, rows, batchsize or batch_rows(net))

    def evaluate(
        self, params: Mapping[str, np.ndarray], x: Batch, y: Batch = None, *, batchsize: int | None = None
    ) -> Means:
        """Return the mean loss and metrics over all records, in batches of bounded memory."""
        if batchsize is not None:
            check_whole("batchsize", batchsize, 1)
        net, rows = self._nets.predictor(Phase.kTest).net, length_of(x)
        size = batchsize or batch_rows(net)

        def forward(_net: NeuralNet, size: int, _keep: Sequence[str], _batches: int) -> Iterator[BatchResult]:
            for start in range(0, max(rows, 1), size):  # of no records, a batch is refused
                labels = None if y is None else part_of_batch(y, start, start + size)
                batch = part_of_batch(x, start, start + size)
                yield {}, self._forward(params, batch, labels, first=start).metrics.sums

        return Means(add_metrics(evaluate([(net, size, 0)], forward)), net)

    def feature_shape(self, layer: str) -> tuple[int, ...]:
        """Return the shape of a layer's output for one record."""
        return self._nets.predictor(Phase.kTest, (layer,)).net.layer(layer).shape[1:]

    def _records(
        self, net: NeuralNet, x: Batch, y: Batch, first: int = 0, gradients: tuple[str, ...] = ()
    ) -> tuple[dict[str, Records], int]:
        infos = self._nets.infos(net.phase, gradients)
        return batch_records(net, x, y, infos, first=first, allows_nonfinite=self.job.skip_bad_batches)

    def _create_predictor(self, net: NeuralNet, is_cut: bool) -> Predictor:
        if self._processor is None:
            self._processor = Processor(1, None, PRECISIONS[self.job.precision])
            if self.workers == 1:
                self._processor = forward_processor(self.job, net)
        if is_cut and self._cut is not None:
            return self._cut.predictor(net, self.job.seed)
        threads = self._count_threads(net)
        return Predictor(net, seed=self.job.seed, ops=lambda: self._open().ops, threads=threads)

    def _open(self) -> ThreadKernels:
        kernels = self._by_thread.get(thread := threading.get_ident())
        if kernels is None:
            assert self._processor is not None, "there is a net whose passes these kernels compute"
            ops = self._processor.ops()
            if self._is_small:
                ops = ops.with_fast_rounding()
            kernels = self._by_thread[thread] = ThreadKernels.open(ops, {}, "backward passes")
        kernels.ops.enter()
        return kernels

    def _count_threads(self, net: NeuralNet) -> int:
        if self.job.blocks:  # as in training: results may depend on the number of threads
            return 1
        usable = self._threads or usable_threads(net, self.workers)
        return max(1, min((self._threads or self._cores) // self.workers, usable))

    def _values(self, net: NeuralNet, params: Mapping[str, np.ndarray]) -> ParamArrays:
        values = {}
        for name, shape in net.shapes.items():
            value = params.get(name)
            if not is_plain(value) or value.shape != shape:
                check_params(net, params)
                value = np.ascontiguousarray(params[name], np.float32)
            values[name] = value
        return values

    def _cut_rows(self, x: Batch, micro_batches: int = 1) -> int:
        """Return how many rows the net for ``x`` must be cut for; 0 for an uncut net.

        One worker computes fewer records than workers, unless the net is cut by space.
        """
        rows = length_of(x) // micro_batches if self.workers > 1 else 0
        return rows if rows >= self.workers or self.job.neuralnet.by_space else 0


class _KeptGradients(dict[str, Any], Updates):
    def push(self, name: str, gradient: Any) -> None:
        self[name] = gradient


def _kind(params: Mapping[str, np.ndarray], x: Batch, y: Batch) -> tuple[Hashable, ...]:
    """Return the key that batches of one recorded pass share: kind, params and thread."""
    array = next(iter(x.values()), None) if type(x) is dict else x
    shape = array.shape if type(array) is np.ndarray else None
    forms = type(x) is dict, type(y) is dict, y is None
    return *forms, shape, id(next(iter(params.values()), None)), threading.get_ident()

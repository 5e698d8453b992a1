"""Captures training iterations and evaluations of a worker on a GPU as CUDA graphs."""

from __future__ import annotations

import logging
from collections.abc import Hashable, Mapping
from typing import TYPE_CHECKING, Any

from dsinga.addons.gpu.captured_exchange import ExchangedIterations
from dsinga.addons.gpu.device_params import DeviceParams
from dsinga.job import ClusterConf, Job, UpdaterConf
from dsinga.layers import Context, Records
from dsinga.layers.dense.batchnorm import BatchNorm
from dsinga.net import NeuralNet
from dsinga.ops import Array
from dsinga.passes.captured_pass import CapturedPass
from dsinga.passes.captured_passes import CapturedPasses
from dsinga.passes.training_step import TrainingStep
from dsinga.training import Algorithm, Metrics, Updater, algorithm, bp, forward

if TYPE_CHECKING:
    from dsinga.cluster.worker.exchange import Exchange

_log = logging.getLogger(__name__)


class CapturedIterations:
    """Captures and repeats the iterations and evaluations of a worker on a device as graphs, if possible.

    ``params`` are the values on the device, which ``updates`` changes; ``is_local`` says that the worker updates them
    all itself.
    """

    def __init__(
        self, ops: Any, step: TrainingStep, updater: Updater, params: Mapping[str, Array], updates: Any,
        is_local: bool = True,
    ):  # fmt: skip
        self._step, self._updater = step, updater
        self._params, self._updates, self._is_local = params, updates, is_local
        self._training, self._evaluation = CapturedPasses(ops, "training iterations"), CapturedPasses(ops, "tests")
        self._running: CapturedPass | None = None  # that which was launched, and how often
        self._count = 0
        self._why_not = why_not(is_local, step.algorithm, updater.conf, step.micro_batches, step.skips)
        self._exchanged: ExchangedIterations | None = None
        if not is_local and not self._why_not:
            assert isinstance(updates, DeviceParams)
            self._exchanged = ExchangedIterations(ops, step, updates)
        if self._why_not:
            _log.info("training iterations are not captured as CUDA graphs: %s", self._why_not)

    def train(self, records: Mapping[str, Records], ctx: Context) -> Metrics | None:
        """Run an iteration; return its metrics, or None if it changed nothing and must run eagerly."""
        if self._why_not:
            return None
        if self._exchanged is not None:
            return self._exchanged.train(records, ctx)

        def compute(on_device: Mapping[str, Records], _: Mapping[str, Array], ctx: Context) -> None:
            bp(self._step.net, self._params, on_device, ctx, self._updates.push)
            self._updates.finish()

        skip = self._updates.skip
        result = self._training.compute(self._key(ctx), self._step.net, records, ctx, compute, replay=skip)
        if result is None:
            self._updates.discard()
            self._updates.begin(ctx.step)
            return None
        metrics: Metrics = result.metrics
        return metrics

    def begin(self, step: int) -> None:
        """Return to ``step`` after launches of it or later steps that changed nothing."""
        if self._is_local and not self._why_not:
            self._updates.begin(step)

    def launch(self, records: Mapping[str, Records], ctx: Context) -> bool:
        """Launch the graph of an iteration without waiting; return whether it has one.

        Call :meth:`finish` before another graph is launched.
        """
        if not self._is_local or self._why_not:
            return False
        launched = self._training.launch(self._key(ctx), records, ctx.step, self._running)
        if launched is None:
            return False
        self._running, self._count = launched, self._count + 1
        self._updates.skip()
        return True

    def finish(self) -> Metrics | None:
        """Return the metrics of the earliest running iteration; None if one is not finite.

        Then neither it nor later launches have changed a param.
        """
        assert self._running is not None
        metrics = self._training.finish(self._running, self._step.net)
        self._count = 0 if metrics is None else self._count - 1
        if not self._count:
            self._running = None
        return metrics

    def _key(self, ctx: Context) -> Hashable:
        return ctx.rows, self._updater.averages_at(ctx.step)

    def evaluate(self, net: NeuralNet, records: Mapping[str, Records], ctx: Context) -> Metrics | None:
        """Return a batch's metrics in another phase; None if the pass must run eagerly."""
        if not self._is_local:
            return None

        def compute(on_device: Mapping[str, Records], _: Mapping[str, Array], ctx: Context) -> None:
            forward(net, self._params, on_device, ctx)

        result = self._evaluation.compute((net, ctx.phase, ctx.rows), net, records, ctx, compute)
        return None if result is None else result.metrics

    def clear(self) -> None:
        """Drop all graphs, because params have new addresses."""
        self._training.clear()
        self._evaluation.clear()
        if self._exchanged is not None:
            self._exchanged.clear()


class GraphCapture:
    """Repeats passes on a GPU as CUDA graphs (:class:`dsinga.ops.Capture`)."""

    def __init__(self, ops: Any):
        self._ops = ops

    def iterations(
        self, step: TrainingStep, updater: Updater, params: Any, updates: Any, is_local: bool = True
    ) -> CapturedIterations:
        """Create the object that captures and repeats a worker's iterations."""
        return CapturedIterations(self._ops, step, updater, params, updates, is_local)

    def exchange(self, exchange: Exchange, **options: Any) -> DeviceParams:
        """Return the worker's params on the device, exchanged with servers through ``exchange``."""
        return DeviceParams(exchange, ops=self._ops, **options)


def why_not(is_local: bool, algorithm: Algorithm, updater: UpdaterConf, micro_batches: int, skips_batches: bool) -> str:
    """Return why no iteration of a job can be captured; "" if its layers decide."""
    if algorithm is not bp:
        return "only back-propagation is"
    if is_local and updater.clip_global_norm:
        return "clip_global_norm adds up the norms of all gradients in host memory"
    if micro_batches > 1:
        return "batches are computed in micro_batches"
    if skips_batches:
        return "skip_bad_batches looks at all gradients before it changes a param"
    return ""


def describe_capture(job: Job, net: NeuralNet) -> str:
    """Describe how a job's iterations on GPUs are captured, or why not, as far as known."""
    cluster = job.cluster or ClusterConf()
    is_single = cluster.nworker_groups == cluster.nworkers_per_group == 1
    reason = why_not(is_single, algorithm(job.train_one_batch), job.updater, job.passes, job.skip_bad_batches)
    layers = [node.layer for node in net.nodes if isinstance(node.layer, BatchNorm)]
    norms = [layer.name for layer in layers if layer.synchronized and not layer.use_global_stats]
    if not reason and norms and cluster.nworkers_per_group > 1:
        reason = f"statistics of workers are added up in host memory, unless {', '.join(norms)} has synchronized: false"
    sparse = [param.name for param in net.params.values() if param.spec.sparse and param.trainable]
    if not reason and sparse:
        reason = f"gradients have few rows, of {', '.join(sparse)}"
    if reason:
        return f"on GPUs, training iterations are not captured as CUDA graphs: {reason}"
    several = "on GPUs, a training iteration is several CUDA graphs, between which params are exchanged"
    return "" if is_single else several

"""Training iterations and evaluations of a worker that computes on a device, captured as graphs."""

from __future__ import annotations

import logging
from collections.abc import Hashable, Mapping
from typing import Protocol

from dsinga.cluster.worker.captured_exchange import ExchangedIterations
from dsinga.cluster.worker.device_params import DeviceParams
from dsinga.job import UpdaterConf
from dsinga.layers import Context, Records
from dsinga.net import NeuralNet
from dsinga.ops import Array, Ops
from dsinga.passes.captured_passes import CapturedPass, CapturedPasses, recorded
from dsinga.passes.training_step import TrainingStep, Updates
from dsinga.training import Algorithm, Metrics, Updater, bp, forward
from dsinga.training.metrics import UnreadMetrics

_log = logging.getLogger(__name__)


class LocalUpdates(Updates, Protocol):
    """The updates of params that a worker keeps itself, which may be captured."""

    def begin(self, step: int) -> None:
        """Make ``step`` the present step."""

    def discard(self) -> None:
        """Forget the gradients that were pushed in the present step."""


class CapturedIterations:
    """The iterations and evaluations of a worker that computes on a device, each captured where that can be.

    Args:
        ops: its kernels.
        step: its training steps.
        updater: the updater of its params.
        params: the values of its params on the device.
        updates: changes them.
        is_local: whether the worker updates all params itself.
    """

    def __init__(
        self,
        ops: Ops,
        step: TrainingStep,
        updater: Updater,
        params: Mapping[str, Array],
        updates: LocalUpdates | DeviceParams,
        is_local: bool = True,
    ):
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

    def train(self, step: int, records: Mapping[str, Records], ctx: Context) -> Metrics | None:
        """Run the iteration of a step; return its metrics, None where it has changed nothing and must be called."""
        if self._why_not:
            return None
        if self._exchanged is not None:
            return self._exchanged.train(step, records, ctx)

        def compute(on_device: Mapping[str, Records], unread: list[UnreadMetrics]) -> None:
            bp(self._step.net, self._params, on_device, recorded(ctx, unread), self._updates.push)
            self._updates.finish()

        net, skip = self._step.net, self._updates.skip
        result = self._training.compute(self._key(step, ctx), net, step, records, compute, skip)
        if result is None:
            self._updates.discard()
            self._updates.begin(step)
            return None
        return result.metrics

    def begin(self, step: int) -> None:
        """Make ``step`` the present one again, where it or one after it was launched and changed nothing.

        With servers none is launched before the one before it has ended.
        """
        if self._is_local and not self._why_not:
            self._updates.begin(step)

    def launch(self, step: int, records: Mapping[str, Records], ctx: Context) -> bool:
        """Launch the graph of an iteration without waiting for it; return whether it has one.

        :meth:`finish` must be called for each, before another one is launched than the graph that runs.
        """
        if not self._is_local or self._why_not:
            return False
        launched = self._training.launch(self._key(step, ctx), step, records, self._running)
        if launched is None:
            return False
        self._running, self._count = launched, self._count + 1
        self._updates.skip()
        return True

    def finish(self) -> Metrics | None:
        """Return the metrics of the first iteration that runs.

        None if one of them is not finite: neither it nor one that was launched after it has changed a param.
        """
        assert self._running is not None
        metrics = self._training.finish(self._running, self._step.net)
        self._count = 0 if metrics is None else self._count - 1
        if not self._count:
            self._running = None
        return metrics

    def _key(self, step: int, ctx: Context) -> Hashable:
        return ctx.rows, self._updater.averages_at(step)

    def evaluate(self, net: NeuralNet, batch: int, records: Mapping[str, Records], ctx: Context) -> Metrics | None:
        """Return the metrics of a batch of another phase; None where the pass must be called."""
        if not self._is_local:
            return None

        def compute(on_device: Mapping[str, Records], unread: list[UnreadMetrics]) -> None:
            forward(net, self._params, on_device, recorded(ctx, unread))

        result = self._evaluation.compute((net, ctx.phase, ctx.rows), net, batch, records, compute)
        return None if result is None else result.metrics

    def clear(self) -> None:
        """Forget all graphs, because params have other addresses now."""
        self._training.clear()
        self._evaluation.clear()
        if self._exchanged is not None:
            self._exchanged.clear()


def why_not(is_local: bool, algorithm: Algorithm, updater: UpdaterConf, micro_batches: int, skips_batches: bool) -> str:
    """Return why no iteration of a job can be captured, "" if that depends on its layers.

    ``is_local`` says that a worker updates all params itself.
    """
    if algorithm is not bp:
        return "only back-propagation is"
    if is_local and updater.clip_global_norm:
        return "clip_global_norm adds up the norms of all gradients in host memory"
    if micro_batches > 1:
        return "batches are computed in micro_batches"
    if skips_batches:
        return "skip_bad_batches looks at all gradients before it changes a param"
    return ""

"""Training iterations and evaluations of a worker that updates all of its params on its device, captured as graphs."""

from __future__ import annotations

import logging
from collections.abc import Hashable, Mapping

from dsinga.job import UpdaterConf
from dsinga.layers import Context, Records
from dsinga.net import NeuralNet
from dsinga.ops import Ops
from dsinga.passes.captured_passes import CapturedPass, CapturedPasses, recorded
from dsinga.training import Algorithm, Metrics, bp, forward
from dsinga.training.divergence import are_finite
from dsinga.training.metrics import UnreadMetrics
from dsinga.worker.config import WorkerConfig
from dsinga.worker.device_params import DeviceParams

_log = logging.getLogger(__name__)


class CapturedIterations:
    """The iterations and evaluations of a worker that computes on a device, each captured where that can be.

    Args:
        config: that of the worker.
        ops: its kernels.
        params: its params.
    """

    def __init__(self, config: WorkerConfig, ops: Ops, params: DeviceParams):
        self._config, self._params = config, params
        self._training, self._evaluation = CapturedPasses(ops, "training iterations"), CapturedPasses(ops, "tests")
        self._running: CapturedPass | None = None  # that which was launched, and how often
        self._count = 0
        micro_batches = max(reader.micro_batches for reader in config.readers.values())
        self._why_not = why_not(params.is_local, config.algorithm, config.updater.conf, micro_batches)
        if self._why_not:
            _log.info("training iterations are not captured as CUDA graphs: %s", self._why_not)

    def train(self, net: NeuralNet, step: int, records: Mapping[str, Records], ctx: Context) -> Metrics | None:
        """Run the iteration of a step; return its metrics, None where it has changed nothing and must be called."""
        if self._why_not or (self._config.skip_bad_batches and not are_finite(records)):
            return None

        def compute(on_device: Mapping[str, Records], unread: list[UnreadMetrics]) -> None:
            bp(net, self._params, on_device, recorded(ctx, unread), self._params.push)
            self._params.finish()

        result = self._training.compute(self._key(step, ctx), net, step, records, compute, self._params.skip)
        if result is None:
            self._params.discard()
            self._params.begin(step)
            return None
        return result.metrics

    def begin(self, step: int) -> None:
        """Make ``step`` the present one again, where it or one after it was launched and changed nothing."""
        if not self._why_not:
            self._params.begin(step)

    def launch(self, step: int, records: Mapping[str, Records], ctx: Context) -> bool:
        """Launch the graph of an iteration without waiting for it; return whether it has one.

        :meth:`finish` must be called for each, before another one is launched than the graph that runs.
        """
        if self._why_not or self._config.skip_bad_batches:
            return False
        launched = self._training.launch(self._key(step, ctx), step, records, self._running)
        if launched is None:
            return False
        self._running, self._count = launched, self._count + 1
        self._params.skip()
        return True

    def finish(self, net: NeuralNet) -> Metrics | None:
        """Return the metrics of the first iteration that runs.

        None if one of them is not finite: neither it nor one that was launched after it has changed a param.
        """
        assert self._running is not None
        metrics = self._training.finish(self._running, net)
        self._count = 0 if metrics is None else self._count - 1
        if not self._count:
            self._running = None
        return metrics

    def _key(self, step: int, ctx: Context) -> Hashable:
        return ctx.rows, self._config.updater.averages_at(step)

    def evaluate(self, net: NeuralNet, batch: int, records: Mapping[str, Records], ctx: Context) -> Metrics | None:
        """Return the metrics of a batch of another phase; None where the pass must be called."""
        if not self._params.is_local:
            return None

        def compute(on_device: Mapping[str, Records], unread: list[UnreadMetrics]) -> None:
            forward(net, self._params, on_device, recorded(ctx, unread))

        result = self._evaluation.compute((net, ctx.phase, ctx.rows), net, batch, records, compute)
        return None if result is None else result.metrics

    def clear(self) -> None:
        """Forget all graphs, because params have other addresses now."""
        self._training.clear()
        self._evaluation.clear()


def why_not(is_local: bool, algorithm: Algorithm, updater: UpdaterConf, micro_batches: int) -> str:
    """Return why no iteration of a job can be captured, "" if that depends on its layers.

    ``is_local`` says that a worker updates all params itself.
    """
    if not is_local:
        return "params are exchanged with servers"
    if algorithm is not bp:
        return "only back-propagation is"
    if updater.clip_global_norm:
        return "clip_global_norm adds up the norms of all gradients in host memory"
    if micro_batches > 1:
        return "batches are computed in micro_batches"
    return ""

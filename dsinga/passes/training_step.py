"""One training step: computes the gradients of a batch and pushes them, unless numbers are not finite."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, NoReturn, Protocol, cast

import numpy as np

from dsinga.base.arrays import first_not_finite
from dsinga.base.errors import Diverged, UserError
from dsinga.layers import Context, Layer, Records, Rows
from dsinga.layers.interface.context import PassObserver
from dsinga.net import NeuralNet, cut_evenly
from dsinga.ops import Array, Ops, SparseRows
from dsinga.ops.interface import PassResult
from dsinga.ops.recorded_array import RecordedResult
from dsinga.ops.types import NotCapturable
from dsinga.passes.captured_passes import CapturedPasses
from dsinga.training import Algorithm, Metrics, Push, accumulate, bp
from dsinga.training.divergence import (
    all_finite,
    are_finite,
    check_layer_gradient,
    check_metrics,
    check_params_finite,
    first_bad_gradient,
    is_finite_gradient,
    param_gradient_fault,
)

# The records and the context of each part of a batch that is computed at once.
MicroBatches = Iterable[tuple[Mapping[str, Records], Context]]


class Updates(Protocol):
    """The receiver of a step's gradients: it applies them to params in this process, or sends them to servers."""

    def push(self, name: str, gradient: Any) -> None:
        """Take the gradient of a param; called once for each param in a step."""

    def push_all(self, gradients: Mapping[str, Any]) -> str | None:
        """Take all gradients of a step if they are finite; else none, and return the name of one that is not."""

    def finish(self) -> None:
        """End the step after all gradients have been pushed."""

    def skip(self) -> None:
        """End the step without gradients, so that no param changes."""


class KeptGradients(dict[str, Any]):
    """An Updates that only stores the gradients, by the names of params."""

    def push(self, name: str, gradient: Any) -> None:
        """Store a gradient."""
        self[name] = gradient

    def push_all(self, gradients: Mapping[str, Any]) -> str | None:
        """Store all gradients."""
        self.update(gradients)
        return first_bad_gradient(gradients)

    def finish(self) -> None:
        """Do nothing."""

    def skip(self) -> None:
        """Do nothing."""


@dataclass(frozen=True)
class TrainingStep:
    """Runs the training steps of one net with one algorithm.

    Attributes:
        algorithm: computes gradients and metrics of records.
        net: the net, or a worker's part of it.
        micro_batches: how many parts of a batch are computed one after the other.
        skips: whether a batch with numbers that are not finite is left out, in place of ending the run.
        repeats: whether a pass may be repeated, to find the layer whose gradient is not finite: it sends nothing.
        passes: replays passes of back-propagation in place of calls, where it can; None where all are called.
        keeps_gradients: whether gradients must outlive the step; else the next replay may overwrite them.
    """

    algorithm: Algorithm
    net: NeuralNet
    micro_batches: int = 1
    skips: bool = False
    repeats: bool = False
    passes: CapturedPasses | None = None
    keeps_gradients: bool = False

    def run(self, step: int, params: Mapping[str, Array], batches: MicroBatches, updates: Updates) -> Metrics | None:
        """Compute the micro-batches of a step and push their gradients; return the metrics, None for a skipped batch.

        Raises Diverged where a metric or a gradient in host memory is not finite, and where a batch would be skipped
        because a param is not: then every batch would.
        """
        if self.skips:
            return self._run_or_skip(step, params, batches, updates)
        if self._can_replay and self.micro_batches == 1:
            ((records, ctx),) = batches
            if (replayed := self._replay(self.net, params, records, ctx)) is not None:
                if (lost := updates.push_all(replayed.outputs)) is not None:
                    self._fail(lost, step, params, records, ctx)
                updates.finish()
                metrics: Metrics = replayed.metrics
                return metrics
            batches = [(records, ctx)]
        last: list[tuple[Mapping[str, Records], Context]] = []

        def noted() -> Iterator[tuple[Mapping[str, Records], Context]]:
            for batch in batches:
                last[:] = [batch]
                yield batch

        def push(name: str, gradient: Any) -> None:
            if not is_finite_gradient(gradient):
                self._fail(name, step, params, *last[0])
            updates.push(name, gradient)

        metrics = self._accumulate(params, noted(), push)
        check_metrics(metrics, step)
        updates.finish()
        return metrics

    def _fail(
        self, name: str, step: int, params: Mapping[str, Array], records: Mapping[str, Records], ctx: Context
    ) -> NoReturn:
        """Raise Diverged for a param whose gradient is not finite, naming the layer where that began."""

        def observe(layer: Layer, direction: str, compute: Any, *arguments: Any) -> Any:
            computed = compute(*arguments)
            if direction == "backward":
                check_layer_gradient(layer, arguments[3], computed, ctx)
            return computed

        if self.repeats:
            observed = replace(ctx, observer=cast(PassObserver, observe))
            self.algorithm(self.net, params, records, observed, lambda name, gradient: None)
        raise Diverged(param_gradient_fault(name, step))

    def _run_or_skip(
        self, step: int, params: Mapping[str, Array], batches: MicroBatches, updates: Updates
    ) -> Metrics | None:
        """Push gradients only if the gradients, metrics and records of all workers of the group are finite.

        All workers take the same decision, by the number of workers with numbers that are not finite.
        """
        gradients: list[tuple[str, Any]] = []
        contexts: list[Context] = []
        is_good = True

        def checked() -> Iterator[tuple[Mapping[str, Records], Context]]:
            nonlocal is_good
            for records, ctx in batches:
                is_good = is_good and are_finite(records)
                contexts.append(replace(ctx, skips=True))
                yield records, contexts[-1]

        with np.errstate(over="ignore", invalid="ignore"):
            metrics = self._accumulate(params, checked(), lambda name, gradient: gradients.append((name, gradient)))
        is_good = is_good and all_finite(metrics) and first_not_finite(dict(gradients)) is None
        not_finite = contexts[-1].all_reduce("not finite", np.array([not is_good], np.float32))
        if not_finite[0]:
            check_params_finite(params, step)
            updates.skip()
            return None
        for name, gradient in gradients:
            updates.push(name, gradient)
        updates.finish()
        return metrics

    def _accumulate(self, params: Mapping[str, Array], batches: MicroBatches, push: Any) -> Metrics:
        algorithm = self._replay_or_call if self._can_replay else self.algorithm
        return accumulate(algorithm, self.net, params, batches, self.micro_batches, push)

    @property
    def _can_replay(self) -> bool:
        return self.passes is not None and self.algorithm is bp

    def _replay_or_call(
        self, net: NeuralNet, params: Mapping[str, Array], records: Mapping[str, Records], ctx: Context, push: Push
    ) -> Metrics:
        """Compute a micro-batch as back-propagation does, by replaying what was captured where it can."""
        if (replayed := self._replay(net, params, records, ctx)) is None:
            return bp(net, {name: ctx.ops.asarray(value) for name, value in params.items()}, records, ctx, push)
        for name, gradient in replayed.outputs.items():
            push(name, gradient)
        metrics: Metrics = replayed.metrics
        return metrics

    def _replay(
        self, net: NeuralNet, params: Mapping[str, Array], records: Mapping[str, Records], ctx: Context
    ) -> PassResult | None:
        """Return metrics and gradients of a micro-batch by replaying what was captured; None where it cannot."""
        assert self.passes is not None
        net = net.at(ctx.step)
        if ctx.observer is not None:  # which is told each layer
            return None

        def compute(batch: Mapping[str, Records], values: Mapping[str, Array], ctx: Context) -> KeptGradients:
            pushed = KeptGradients()
            bp(net, values, batch, without_peers(ctx), pushed.push)
            if any(isinstance(gradient, SparseRows) for gradient in pushed.values()):
                raise NotCapturable("gradients have few rows")
            return pushed

        result = self.passes.compute((net, ctx.rows), net, records, ctx, compute, params)
        if result is None:
            return None
        copies = self.keeps_gradients or self.micro_batches > 1
        if not copies and RecordedResult not in map(type, result.outputs.values()):
            return result
        gradients = {name: owned(gradient, copies) for name, gradient in result.outputs.items()}
        return PassResult(result.metrics, gradients)


def owned(gradient: Any, copies: bool) -> Any:
    """Return a gradient of a replay: a copy if asked for, unless it is new in each pass."""
    if isinstance(gradient, RecordedResult):
        return gradient.value
    return gradient.copy() if copies else gradient


def rows_of(records: Mapping[str, Records], rows: Rows) -> dict[str, Records]:
    """Return the given rows of each input layer's records, as views."""
    return {name: part_of(of_layer, rows) for name, of_layer in records.items()}


def part_of(records: Records, rows: Rows) -> Records:
    """Return the given rows of records, as views."""
    (start, stop, _), (data, labels) = rows, records
    return Records(data[start:stop], None if labels is None else labels[start:stop])


def divide_batch(rows: int, micro_batches: int) -> list[Rows]:
    """Return the rows of each micro-batch of a batch. Raises UserError where they would not be equal."""
    if rows % micro_batches:
        raise UserError(
            f"a batch of {rows} records cannot be divided into {micro_batches} equal micro_batches, as the job has"
        )
    return cut_evenly(rows, micro_batches)


def to_host(gradient: Any, ops: Ops) -> np.ndarray | SparseRows:
    """Return a gradient in host memory; sparse rows are always there."""
    return gradient if isinstance(gradient, SparseRows) else ops.to_numpy(gradient)


def whole_shape(gradient: np.ndarray | SparseRows, shape: tuple[int, ...]) -> np.ndarray | SparseRows:
    """Return a gradient in the shape of its param; sparse rows have the right shape already."""
    return gradient if isinstance(gradient, SparseRows) else gradient.reshape(shape)


class _NoPeers:
    """In place of the other workers of a group, whose arrays cross the host within a pass."""

    def send(self, *_: Any) -> None:
        raise NotCapturable("layers exchange arrays with other workers of the group")

    def receive(self, *_: Any) -> Any:
        raise NotCapturable("layers exchange arrays with other workers of the group")


def without_peers(ctx: Context) -> Context:
    """Return the context of a recorded pass, which refuses arrays of other workers before any is sent."""
    if ctx.peers is None:
        return ctx
    peers = _NoPeers()
    return replace(ctx, peers=peers, all_reduce=peers.receive, all_gather=peers.receive)

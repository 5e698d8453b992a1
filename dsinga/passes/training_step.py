"""Runs a training step: computes a batch's gradients, and hands them over if all numbers are finite."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, NoReturn, Protocol

import numpy as np

from dsinga.base.arrays import first_not_finite
from dsinga.base.errors import Diverged
from dsinga.layers import Context, Records
from dsinga.net import NeuralNet
from dsinga.ops import Array
from dsinga.training import Algorithm, Metrics, Push, accumulate
from dsinga.training.divergence import (
    CheckedPush,
    all_finite,
    are_finite,
    check_metrics,
    check_params_finite,
    find_bad_gradient,
    first_bad_gradient,
    param_gradient_fault,
)

# The records and the context of each part of a batch that is computed at once.
MicroBatches = Iterable[tuple[Mapping[str, Records], Context]]


class Updates(Protocol):
    """Receives the gradients of a training step, to apply them here or send them to servers."""

    def push(self, name: str, gradient: Any) -> None:
        """Receive the gradient of a param."""

    def push_all(self, gradients: Mapping[str, Any]) -> str | None:
        """Receive all gradients of a step if they are finite; else return the name of one that is not."""
        lost = first_bad_gradient(gradients)
        for name, gradient in gradients.items() if lost is None else ():
            self.push(name, gradient)
        return lost

    def finish(self) -> None:
        """End the step, after all gradients."""
        return

    def skip(self) -> None:
        """End the step without changing a param."""
        return


@dataclass(frozen=True)
class TrainingStep:
    """Runs training steps: an algorithm, such as back-propagation, on a net.

    Attributes:
        skips: whether to skip a batch with NaN or infinity.
        repeats: whether a pass may be repeated to find the layer of a bad gradient.
    """

    algorithm: Algorithm
    net: NeuralNet
    micro_batches: int = 1
    skips: bool = False
    repeats: bool = False

    def run(self, step: int, params: Mapping[str, Array], batches: MicroBatches, updates: Updates) -> Metrics | None:
        """Compute and hand over the gradients of a step; return metrics, None if skipped.

        Raises Diverged if a metric, or a gradient in host memory, is not finite; with ``skips`` only for a param.
        """
        if self.skips:
            return self._run_or_skip(step, params, batches, updates)
        last: list[Any] = []  # the records and the context that were computed last

        def fail(name: str) -> NoReturn:
            if self.repeats:
                find_bad_gradient(self.algorithm, self.net, params, *last)
            raise Diverged(param_gradient_fault(name, step))

        push = CheckedPush(updates, fail)
        metrics = accumulate(
            functools.partial(self._compute, last), self.net, params, batches, self.micro_batches, push
        )
        check_metrics(metrics, step)
        updates.finish()
        return metrics

    # A method: a closure in the traceback of an error keeps what it refers to, even when its frame is cleared.
    def _compute(self, last: list[Any], net: NeuralNet, params: Any, records: Any, ctx: Context, push: Push) -> Metrics:
        last[:] = records, ctx
        return self.algorithm(net, params, records, ctx, push)

    def _run_or_skip(
        self, step: int, params: Mapping[str, Array], batches: MicroBatches, updates: Updates
    ) -> Metrics | None:
        """Hand over gradients only if all workers of the group have finite gradients, metrics and records."""
        gradients: list[tuple[str, Any]] = []
        contexts: list[Context] = []
        is_good = True

        def checked() -> Iterator[tuple[Mapping[str, Records], Context]]:
            nonlocal is_good
            for records, ctx in batches:
                is_good = is_good and are_finite(records)
                contexts.append(replace(ctx, skips=True))
                yield records, contexts[-1]

        def push(name: str, gradient: Any) -> None:
            gradients.append((name, gradient))

        with np.errstate(over="ignore", invalid="ignore"):
            metrics = accumulate(self.algorithm, self.net, params, checked(), self.micro_batches, push)
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

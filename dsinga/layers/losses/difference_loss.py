"""Losses of the difference of two sources: kEuclideanLoss, kHuberLoss, kAbsoluteLoss.

Targets may be fields with masked points and point weights (:mod:`dsinga.layers.losses.field_targets`).
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np

from dsinga.base.registry import register
from dsinga.job.component import Settings, setting
from dsinga.job.limits import NonNegative, Positive
from dsinga.layers.interface.context import Context
from dsinga.layers.interface.declarations import Cut, SourceKind
from dsinga.layers.interface.layer import (
    Array,
    Arrays,
    Gradients,
    Output,
    Shape,
    from_matrix,
    to_matrix,
)
from dsinga.layers.losses.field_targets import MASKED, STD, WEIGHTED, FieldTargets, field_targets
from dsinga.layers.losses.pair_loss import (
    WEIGHTS,
    PairLoss,
    gradient_of_weights,
    in_parts,
    weighted_rows,
    weighted_sum,
    weights_of,
)


class DifferenceLoss(PairLoss):
    """Base of losses of x - target, which is the feature; a subclass defines the loss of a number and its derivative.

    With the settings ``masked``, ``weighted`` or ``std`` the target is a field (B, C, *space). The feature is then (x -
    target) / std, 0 at masked points.
    """

    settings: Any
    source_kind = SourceKind.kVectors
    cut = Cut(gathered_because=PairLoss.cut.gathered_because, by_space=True)
    steepness: ClassVar[int] = 1
    """The derivative of the loss, as a multiple of ``_slopes``."""
    targets: FieldTargets | None = None
    weighs_steps = True

    @property
    def field_shape(self) -> Shape:
        return self.source_shapes[0]

    def takes_points(self, source: int) -> bool:
        return source != WEIGHTS

    def check_sizes(self) -> None:
        self.targets = field_targets(self)
        if self.targets is None:
            super().check_sizes()

    @property
    def masked(self) -> bool:
        """Whether targets may be NaN, for points that do not count."""
        return self.targets is not None and self.targets.masked

    def check_sources(self, sources: Arrays, ctx: Context) -> None:
        """Raise UserError, with row, channel and point, for a target that is NaN and not masked."""
        targets = self.targets or FieldTargets(self, self.source_shapes[1], False, False)
        targets.check(sources[1], ctx)

    def compute_feature(self, params: Arrays, sources: Arrays, ctx: Context) -> Output:
        weights, points = weights_of(sources, WEIGHTS, ctx.ops), None
        if self.targets is None:
            difference = to_matrix(sources[0], ctx.ops) - to_matrix(sources[1], ctx.ops)
        else:
            points = self.targets.weights(sources[1], ctx.ops)
            difference = self.targets.difference(sources[0], sources[1], ctx.ops).reshape(-1, self.shape[1])
        if weights is None and points is None:
            loss = self._sum(difference, ctx) * self.settings.scale
        elif weights is not None and weights.ndim == 2:
            losses = weighted_rows(self._elements(difference, ctx), weights)
            loss = losses.sum(dtype=np.float64) * self.settings.scale
        else:
            loss = weighted_sum(self._losses(difference, ctx, points), weights, self.settings.scale)
        if not ctx.training and isinstance(loss, float) and not math.isfinite(loss):
            self.check_sources(sources, ctx)  # training does so itself
        return Output(difference, metrics={"loss": (loss, self.counted_rows(difference.shape[0]))})

    def compute_gradient(
        self, params: Arrays, sources: Arrays, output: Output, grad: Any, needs: Sequence[bool], ctx: Context
    ) -> Gradients:
        factor, weights = self.settings.scale / ctx.rows.total, weights_of(sources, WEIGHTS, ctx.ops)
        if self.targets is None:
            slopes = weighted_rows(self._slopes(output.feature, ctx), weights)
            grads: list[Array | None] = [
                from_matrix(slopes * (sign * self.steepness * factor), source, ctx.ops) if need else None
                for sign, source, need in zip((1, -1), sources[:WEIGHTS], needs[:WEIGHTS], strict=True)
            ]
        else:
            grads = self._gradients_of_fields(self.targets, sources, output.feature, weights, needs, ctx)
        for need in needs[WEIGHTS:]:
            points = None if self.targets is None else self.targets.weights(sources[1], ctx.ops)
            if need and weights is not None and weights.ndim == 2:
                losses = in_parts(self._elements(output.feature, ctx), weights).sum(axis=2, dtype=np.float64)
            else:
                losses = self._losses(output.feature, ctx, points) if need else None
            grads.append(gradient_of_weights(losses, factor, sources[WEIGHTS]) if need else None)
        return grads, ()

    def _gradients_of_fields(
        self,
        targets: FieldTargets,
        sources: Arrays,
        difference: Array,
        weights: Array | None,
        needs: Sequence[bool],
        ctx: Context,
    ) -> list[Array | None]:
        ops, factor = ctx.ops, self.settings.scale / ctx.rows.total
        slopes = targets.fields(self._slopes(difference, ctx) * (self.steepness * factor), ops)
        targets.divide(slopes, ops)
        if (points := targets.weights(sources[1], ops)) is not None:
            slopes *= points
        if weights is not None:
            slopes *= weights[:, None, None].astype(slopes.dtype, copy=False)
        for_prediction = from_matrix(slopes.reshape(difference.shape), sources[0], ops) if needs[0] else None
        if not needs[1]:
            return [for_prediction, None]
        parts = [-slopes]
        if targets.weighted:
            losses = weighted_rows(self._elements(difference, ctx) * factor, weights)
            parts.append(targets.fields(losses, ops).sum(axis=1)[:, None])
        for_target = ops.xp.concatenate(parts, axis=1).reshape(len(slopes), math.prod(sources[1].shape[1:]))
        return [for_prediction, from_matrix(for_target, sources[1], ops)]

    def _sum(self, difference: Array, ctx: Context) -> Array:
        return self._losses(difference, ctx).sum()

    def _losses(self, difference: Array, ctx: Context, points: Array | None = None) -> Array:
        """Return the loss of each row, (B,) float64, with point weights (B, 1, points), if any."""
        losses = self._elements(difference, ctx)
        if self.targets is not None and points is not None:
            losses = self.targets.fields(losses, ctx.ops)
            losses *= points
            losses = losses.reshape(difference.shape)
        return losses.sum(axis=1, dtype=np.float64)

    def _slopes(self, difference: Array, ctx: Context) -> Array:
        """Return the derivative of the loss for each number, divided by ``steepness``, (B, n)."""
        return difference

    @abstractmethod
    def _elements(self, difference: Array, ctx: Context) -> Array:
        """Return the loss of each number, (B, n), as a new array."""


@register("layer", kEuclideanLoss=300)
class EuclideanLoss(DifferenceLoss):
    """Squared error, Σ (x - target)²·scale / B, of two sources of equal sizes.

    The feature is x - target, (B, n). With scale 1/n it is the mean squared error of n numbers.

    For fields, with ``masked``, ``weighted`` and ``std``, it is Σ w·((x - target)/std)²·scale / B over the points that
    are not masked.

    The gradient is 2(x - target)·scale/B. SINGA 0.3 has half of it: a job tuned with SINGA needs scale 0.5.
    """

    class Conf(Settings):
        """Settings of kEuclideanLoss."""

        scale: NonNegative = setting(1.0, "the factor of the loss and its gradient")
        masked: bool = setting(False, MASKED)
        weighted: bool = setting(False, WEIGHTED)
        std: list[Positive] = setting([], STD)

    steepness = 2

    def _sum(self, difference: Array, ctx: Context) -> Array:
        return ctx.ops.channel_sums(difference, difference).sum()

    def _elements(self, difference: Array, ctx: Context) -> Array:
        return difference * difference


@register("layer", kHuberLoss=753)
class HuberLoss(DifferenceLoss):
    """Huber's loss, Σ h(x - target)·scale / B, of two sources of equal sizes.

    h(e) is e²/2 up to |e| = ``delta``, and delta·(|e| - delta/2) above it, so single large errors count less (Huber,
    Robust Estimation of a Location Parameter, 1964). The feature is x - target, (B, n).
    """

    class Conf(Settings):
        """Settings of kHuberLoss."""

        delta: Positive = setting(1.0, "the error beyond which the loss is linear")
        scale: NonNegative = setting(1.0, "the factor of the loss and its gradient")
        masked: bool = setting(False, MASKED)
        weighted: bool = setting(False, WEIGHTED)
        std: list[Positive] = setting([], STD)

    settings: Conf

    def _slopes(self, difference: Array, ctx: Context) -> Array:
        return ctx.ops.xp.minimum(ctx.ops.xp.maximum(difference, -self.settings.delta), self.settings.delta)

    def _elements(self, difference: Array, ctx: Context) -> Array:
        slopes = self._slopes(difference, ctx)
        return slopes * (difference - slopes / 2)


@register("layer", kAbsoluteLoss=770)
class AbsoluteLoss(DifferenceLoss):
    """Absolute error, Σ |x - target|·scale / B, of two sources of equal sizes.

    The feature is x - target, (B, n). The derivative is 0 where x equals the target. For fields, the loss is Σ w·|x -
    target|/std·scale / B over the points that are not masked.
    """

    class Conf(Settings):
        """Settings of kAbsoluteLoss."""

        scale: NonNegative = setting(1.0, "the factor of the loss and its gradient")
        masked: bool = setting(False, MASKED)
        weighted: bool = setting(False, WEIGHTED)
        std: list[Positive] = setting([], STD)

    def _slopes(self, difference: Array, ctx: Context) -> Array:
        return ctx.ops.xp.sign(difference)

    def _elements(self, difference: Array, ctx: Context) -> Array:
        return ctx.ops.xp.abs(difference)

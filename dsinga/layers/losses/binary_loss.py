"""Losses of binary classification: kSigmoidCrossEntropyLoss, and kFocalLoss, which weighs hard examples more."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from dsinga.base.registry import register
from dsinga.job.component import Settings, setting
from dsinga.job.limits import NonNegative, Unit
from dsinga.layers.interface.context import Context
from dsinga.layers.interface.declarations import SourceKind
from dsinga.layers.interface.layer import Array, Arrays, Gradients, Output, from_matrix, to_matrix
from dsinga.layers.losses.pair_loss import (
    WEIGHTS,
    PairLoss,
    gradient_of_weights,
    in_parts,
    weighted_rows,
    weighted_sum,
    weights_of,
)
from dsinga.ops import Ops
from dsinga.ops.numpy.elementwise import FLT_MIN

ROUNDING = 1e-5  # by which a target that is computed in float32, such as a mixed label, may be above 1


@register("layer", kSigmoidCrossEntropyLoss=730)
class SigmoidCrossEntropyLoss(PairLoss):
    """Binary cross-entropy, -Σ (t·log p + (1 - t)·log(1 - p))·scale / B, where p is the sigmoid of x.

    The first source gives x. The second gives as many targets t in [0, 1]: one or several yes-or-no labels of a record,
    by kLabel. The feature is p, (B, n). Metrics: "loss", and "accuracy", the share of the B·n targets with x > 0 where
    t > 0.5, and x <= 0 elsewhere. Targets outside [0, 1] are refused.
    """

    source_kind = SourceKind.kVectors

    class Conf(Settings):
        """Settings of kSigmoidCrossEntropyLoss."""

        scale: NonNegative = setting(1.0, "the factor of the loss and its gradient")

    settings: Any
    metric_names = ("loss", "accuracy")
    weighs_steps = True

    def compute_feature(self, params: Arrays, sources: Arrays, ctx: Context) -> Output:
        x, target = (to_matrix(source, ctx.ops) for source in sources[:2])
        losses = self._checked(self._losses(x, target, ctx.ops), target, sources, ctx)
        right = (x > 0) == (target > 0.5)
        if (weights := weights_of(sources, WEIGHTS, ctx.ops)) is None:
            loss, accuracy = losses.sum(dtype=np.float64) * self.settings.scale, (right.sum(), math.prod(x.shape))
        elif weights.ndim == 2:
            loss = weighted_rows(losses, weights).sum(dtype=np.float64) * self.settings.scale
            hits = weighted_rows(right.astype(losses.dtype), weights).sum(dtype=np.float64)
            accuracy = hits, weights.sum(dtype=np.float64) * (x.shape[1] // weights.shape[1])
        else:
            loss = weighted_sum(losses.sum(axis=1, dtype=np.float64), weights, self.settings.scale)
            accuracy = weighted_sum(right.sum(axis=1), weights), weights.sum(dtype=np.float64) * x.shape[1]
        return Output(ctx.ops.sigmoid(x), metrics={"loss": (loss, x.shape[0]), "accuracy": accuracy})

    def compute_gradient(
        self, params: Arrays, sources: Arrays, output: Output, grad: Any, needs: Sequence[bool], ctx: Context
    ) -> Gradients:
        x, target = (to_matrix(source, ctx.ops) for source in sources[:2])
        weights, factor = weights_of(sources, WEIGHTS, ctx.ops), self.settings.scale / ctx.rows.total
        grads: list[Array | None] = [None] * len(sources)
        for index, slopes in enumerate((self._slopes, self._target_slopes)):
            if needs[index]:
                dx = weighted_rows(slopes(x, target, output.feature, ctx.ops) * factor, weights)
                grads[index] = from_matrix(dx, sources[index], ctx.ops)
        if any(needs[WEIGHTS:]):
            losses = self._losses(x, target, ctx.ops)
            parts = losses if weights is None else in_parts(losses, weights)
            grads[WEIGHTS] = gradient_of_weights(parts.sum(axis=-1, dtype=np.float64), factor, sources[WEIGHTS])
        return grads, ()

    def _checked(self, losses: Array, target: Array, sources: Arrays, ctx: Context) -> Array:
        """Return ``losses`` if all targets (B, n) are in [0, 1], or raise UserError; on a device they become NaN."""
        if not target.size:
            return losses
        limits = target.min(), target.max()
        is_checked_later = ctx.unread is not None or (ctx.training and not ctx.skips)
        if type(target) is not np.ndarray and is_checked_later:
            fits = (limits[0] >= 0) & (limits[1] <= 1 + ROUNDING)
            return ctx.ops.xp.where(fits, losses, losses.dtype.type(math.nan))
        low, high = ctx.ops.read(limits)
        if low < 0 or high > 1 + ROUNDING or (math.isnan(low) and not ctx.training):
            self.check_sources(sources, ctx)
        return losses

    def check_sources(self, sources: Arrays, ctx: Context) -> None:
        """Raise UserError, with the row, for the first target that is NaN or not in [0, 1]."""
        target = ctx.ops.to_numpy(to_matrix(sources[1], ctx.ops))
        wrong = ~((target >= 0) & (target <= 1 + ROUNDING))
        if not wrong.any():
            return
        row, column = (int(index) for index in np.argwhere(wrong)[0])
        raise self.fail(
            f"takes answers from 0 to 1, but {self.source_name(1)} gives {target[row, column]:g} in row "
            f"{ctx.rows.start + row} of the batch; for several classes use kSoftmaxLoss "
            '("sparse_categorical_crossentropy"), for answers -1 and 1 give y > 0'
        )

    def _losses(self, x: Array, target: Array, ops: Ops) -> Array:
        """Return the loss of each number, (B, n)."""
        xp = ops.xp
        return xp.maximum(x, 0) - x * target + xp.log1p(xp.exp(-xp.abs(x)))

    def _slopes(self, x: Array, target: Array, p: Array, ops: Ops) -> Array:
        """Return the derivative of the loss for x, (B, n), where ``p`` is sigmoid(x)."""
        return p - target

    def _target_slopes(self, x: Array, target: Array, p: Array, ops: Ops) -> Array:
        """Return the derivative of the loss for the target, (B, n)."""
        return -x


@register("layer", kFocalLoss=771)
class FocalLoss(SigmoidCrossEntropyLoss):
    """Focal loss, Σ α'·(1 - p')^gamma·c·scale / B, where c is the loss of kSigmoidCrossEntropyLoss.

    Lin et al., Focal Loss for Dense Object Detection (2017). p' is the probability of the right answer, p·t + (1 -
    p)·(1 - t). α' is ``alpha`` for t = 1 and 1 - ``alpha`` for t = 0. Sources, feature and metrics are the same as for
    kSigmoidCrossEntropyLoss.

    It is torchvision's sigmoid_focal_loss. Keras's default has no α': set ``alpha`` 0.5 and ``scale`` 2.
    """

    class Conf(Settings):
        """Settings of kFocalLoss."""

        gamma: NonNegative = setting(
            2.0, "the exponent of 1 - p'; with a larger one, right and certain answers count less"
        )
        alpha: Unit = setting(0.25, "the weight of the answer 1; the answer 0 has the weight 1 - alpha")
        scale: NonNegative = setting(1.0, "the factor of the loss and its gradient")

    settings: Conf

    def _losses(self, x: Array, target: Array, ops: Ops) -> Array:
        alpha, miss, entropy = self._factors(x, target, ops.sigmoid(x), ops)
        return alpha * miss**self.settings.gamma * entropy

    def _slopes(self, x: Array, target: Array, p: Array, ops: Ops) -> Array:
        alpha, miss, entropy = self._factors(x, target, p, ops)
        slopes = miss**self.settings.gamma * (p - target)
        return alpha * (slopes - self._power_slopes(miss) * (2 * target - 1) * p * (1 - p) * entropy)

    def _target_slopes(self, x: Array, target: Array, p: Array, ops: Ops) -> Array:
        alpha, miss, entropy = self._factors(x, target, p, ops)
        power = miss**self.settings.gamma
        slopes = (2 * self.settings.alpha - 1) * power * entropy
        return slopes - alpha * (power * x + self._power_slopes(miss) * (2 * p - 1) * entropy)

    def _factors(self, x: Array, target: Array, p: Array, ops: Ops) -> tuple[Array, Array, Array]:
        """Return α', 1 - p' (above 0) and the cross-entropy, each (B, n)."""
        alpha = self.settings.alpha * target + (1 - self.settings.alpha) * (1 - target)
        miss = ops.xp.maximum(p + target - 2 * p * target, FLT_MIN)
        return alpha, miss, super()._losses(x, target, ops)

    def _power_slopes(self, miss: Array) -> Array:
        """Return the derivative of (1 - p')^gamma for 1 - p'."""
        return self.settings.gamma * miss ** (self.settings.gamma - 1)

"""Losses of classes at each point of a field: kFieldSoftmaxLoss, and kDiceLoss of overlapping regions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from dsinga.base.registry import register
from dsinga.job.component import Settings, setting
from dsinga.job.limits import NonNegative, Positive
from dsinga.layers.interface.context import Context
from dsinga.layers.interface.layer import Array, Arrays, Gradients, Output
from dsinga.layers.losses.pair_loss import WEIGHTS, gradient_of_weights
from dsinga.layers.losses.point_classes import WEIGHTED, PointClasses
from dsinga.ops.numpy.elementwise import FLT_MIN


@register("layer", kFieldSoftmaxLoss=821)
class FieldSoftmaxLoss(PointClasses):
    """Softmax cross-entropy of each point, -Σ w·log max(p[label], FLT_MIN)·scale / B.

    The sources give scores (B, K, *space) and labels (B, *space) or (B, 1, *space) in [0, K). Points with the label -1
    or NaN do not count. With scale 1/points it is the mean over all points.

    With ``weighted`` the last channel of the labels is w, else w is 1. A third source may give a weight for each row or
    point. The feature is p, (B, K, *space). Metrics: "loss", and "accuracy", the weighted share of points with the
    label as the most probable class.
    """

    class Conf(Settings):
        """Settings of kFieldSoftmaxLoss."""

        scale: NonNegative = setting(1.0, "the factor of the loss and its gradient")
        weighted: bool = setting(False, WEIGHTED)

    settings: Conf
    optional_sources = 1
    is_loss = True
    metric_names = ("loss", "accuracy")

    def compute_feature(self, params: Arrays, sources: Arrays, ctx: Context) -> Output:
        labels = self.point_labels(sources[1], ctx)
        classes, weights = self.placed(labels, sources, ctx)
        p, loss, hits = ctx.ops.point_softmax_loss(sources[0], classes, weights)
        counted = classes.size if weights is None else weights.sum(dtype=np.float64)
        rows = self.counted_rows(len(sources[0]))
        metrics = {"loss": (loss * self.settings.scale, rows), "accuracy": (hits, counted)}
        return Output(p, saved=(labels, classes, weights) if ctx.training else None, metrics=metrics)

    def compute_gradient(
        self, params: Arrays, sources: Arrays, output: Output, grad: Any, needs: Sequence[bool], ctx: Context
    ) -> Gradients:
        (labels, classes, weights), factor = output.saved, self.settings.scale / ctx.rows.total
        grads: list[Array | None] = [None] * len(sources)
        if needs[0]:
            grads[0] = ctx.ops.point_softmax_loss_grad(output.feature, classes, weights, factor)
        if any(needs[WEIGHTS:]):
            xp, p = ctx.ops.xp, self.by_class(output.feature)
            of_labels = p[xp.arange(len(p))[:, None], classes, xp.arange(self.points)]
            losses = -xp.log(xp.maximum(of_labels, FLT_MIN))
            if labels.weights is not None:
                losses = losses * ctx.ops.asarray(labels.weights)
            by_row = sources[WEIGHTS].size == len(losses)
            losses = losses.sum(axis=1, dtype=np.float64) if by_row else losses
            grads[WEIGHTS] = gradient_of_weights(losses, factor, sources[WEIGHTS])
        return grads, ()


@register("layer", kDiceLoss=822)
class DiceLoss(PointClasses):
    """Soft Dice loss, Σ (1 - (2·Σ w·p·t + s) / (Σ w·p + Σ w·t + s))·scale / (B·K) over rows and classes.

    The inner sums are over the points of a row. p is the softmax of the scores (B, K, *space). t is 1 for the label of
    a point, else 0. s is ``smooth``. Scores with one channel are scores of class 1 of two: p is their sigmoid. Labels
    and w are the same as for kFieldSoftmaxLoss. The feature is p, (B, K, *space).

    Milletari et al., V-Net (2016), have squares in the divisor. MONAI's DiceLoss is the same with smooth 1e-5. Keras's
    Dice sums over a batch and all classes.
    """

    class Conf(Settings):
        """Settings of kDiceLoss."""

        smooth: Positive = setting(1e-5, "the number s; with it, a class without points has no loss")
        scale: NonNegative = setting(1.0, "the factor of the loss and its gradient")
        weighted: bool = setting(False, WEIGHTED)

    settings: Conf
    is_loss = True
    metric_names = ("loss",)

    def compute_feature(self, params: Arrays, sources: Arrays, ctx: Context) -> Output:
        classes, weights = self.placed(self.point_labels(sources[1], ctx), sources[:2], ctx)
        rows = len(sources[0])
        p = ctx.ops.sigmoid(sources[0]) if self.channels == 1 else ctx.ops.point_softmax(sources[0])
        overlap, labelled, predicted = self._sums(self.by_class(p), classes, weights, ctx)
        if self.region is not None:
            overlap, labelled, predicted = ctx.sum_arrays(f"{self.name}.feature", (overlap, labelled, predicted))
        shared, both = 2 * overlap + self.settings.smooth, labelled + self.settings.smooth + predicted
        counted = self.counted_rows(rows)
        loss = (1 - shared / both)[:counted].sum() * (self.settings.scale / self.channels)
        saved = (classes, weights, shared, both) if ctx.training else None
        return Output(p, saved=saved, metrics={"loss": (loss, counted)})

    def _sums(self, p: Array, classes: Array, weights: Array | None, ctx: Context) -> tuple[Array, ...]:
        """Return Σ w·p·t, Σ w·t and Σ w·p over the points of each row, (B, K) float64 each."""
        sums = tuple(ctx.ops.xp.empty_like(p, np.float64, shape=p.shape[:2]) for _ in range(3))
        for channel in range(self.channels):
            target, of_class = self._target(classes, channel, p.dtype), p[:, channel]
            if weights is not None:
                target *= weights
            weighted = of_class if weights is None else of_class * weights
            for result, terms in zip(sums, (of_class * target, target, weighted), strict=True):
                result[:, channel] = terms.sum(axis=1, dtype=np.float64)
        return sums

    def _target(self, classes: Array, channel: int, dtype: Any) -> Array:
        """Return t for a class, a new array (B, P) of 1 and 0."""
        return (classes == (channel if self.channels > 1 else 1)).astype(dtype)

    def compute_gradient(
        self, params: Arrays, sources: Arrays, output: Output, grad: Any, needs: Sequence[bool], ctx: Context
    ) -> Gradients:
        if not needs[0]:
            return (None, None), ()
        classes, weights, shared, both = output.saved
        result = ctx.ops.xp.empty_like(output.feature)
        p, slopes = self.by_class(output.feature), self.by_class(result)
        factor = self.settings.scale / (self.channels * ctx.rows.total)
        by_target, by_all = ((-2 * factor / both).astype(p.dtype), (factor * shared / both**2).astype(p.dtype))
        for channel in range(self.channels):
            slope = self._target(classes, channel, p.dtype)
            slope *= by_target[:, channel, None]
            slope += by_all[:, channel, None]
            slopes[:, channel] = slope if weights is None else slope * weights
        if self.channels == 1:
            return (ctx.ops.sigmoid_grad(output.feature, result), None), ()
        along = sum(slopes[:, channel] * p[:, channel] for channel in range(self.channels))
        for channel in range(self.channels):
            slopes[:, channel] -= along
            slopes[:, channel] *= p[:, channel]
        return (result, None), ()

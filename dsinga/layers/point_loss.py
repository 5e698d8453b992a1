"""Losses of classes for each point of a field: kFieldSoftmaxLoss, and kDiceLoss of the overlap of regions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from dsinga.job.component import Settings, setting
from dsinga.job.limits import NonNegative, Positive
from dsinga.layers.base import Array, Arrays, Gradients, Output
from dsinga.layers.context import Context
from dsinga.layers.loss import WEIGHTS, gradient_of_weights, hits_by_row, weighted_sum
from dsinga.layers.point_classes import WEIGHTED, PointClasses
from dsinga.ops.numpy_elementwise import FLT_MIN
from dsinga.registry import register


@register("layer", kFieldSoftmaxLoss=821)
class FieldSoftmaxLoss(PointClasses):
    """Softmax cross-entropy of each point, -Σ w·log max(p[label], FLT_MIN)·scale / B; the feature is p, (B, K, *space).

    The first source gives scores (B, K, *space), K of them for each point, the second labels (B, *space) or
    (B, 1, *space) in [0, K). Points whose label is -1 or NaN are left out, and the sum is divided by B all the same:
    with scale 1/points it is the mean over all points. With ``weighted`` the last channel of the labels is w, else w is
    1. A third source may give a weight for each row. Metrics: "loss", and "accuracy", the weighted share of points
    whose label is the most probable class.
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
        scores, rows = self.to_points(sources[0]), self.counted_rows(len(sources[0]))
        if weights is None:
            p, loss, hits = ctx.ops.softmax_loss(scores, classes, 1)
            metrics = {"loss": (loss * self.settings.scale, rows), "accuracy": (hits, len(classes))}
        else:
            p = ctx.ops.softmax(scores)
            loss = weighted_sum(self._losses(p, classes, ctx), weights, self.settings.scale)
            hits = weighted_sum(hits_by_row(p, classes, 1, ctx.ops), weights)
            metrics = {"loss": (loss, rows), "accuracy": (hits, weights.sum(dtype=np.float64))}
        return Output(self.from_points(p), saved=(labels, classes, weights) if ctx.training else None, metrics=metrics)

    def _losses(self, p: Array, classes: Array, ctx: Context) -> Array:
        """Return the loss of each point, (B·P,)."""
        return -ctx.ops.xp.log(ctx.ops.xp.maximum(p[ctx.ops.xp.arange(len(p)), classes], FLT_MIN))

    def compute_gradient(
        self, params: Arrays, sources: Arrays, output: Output, grad: Any, needs: Sequence[bool], ctx: Context
    ) -> Gradients:
        (labels, classes, weights), factor = output.saved, self.settings.scale / ctx.rows.total
        grads: list[Array | None] = [None] * len(sources)
        p = self.to_points(output.feature)
        if needs[0]:
            dx = ctx.ops.softmax_loss_grad(p, classes, factor)
            if weights is not None:
                dx *= weights[:, None].astype(dx.dtype, copy=False)
            grads[0] = self.from_points(dx)
        if any(needs[WEIGHTS:]):
            losses = self._losses(p, classes, ctx)
            if labels.weights is not None:
                losses = losses * ctx.ops.asarray(labels.weights)
            grads[WEIGHTS] = gradient_of_weights(_of_rows(losses, len(sources[0])), factor, sources[WEIGHTS])
        return grads, ()


def _of_rows(points: Array, rows: int) -> Array:
    """Return the sums (B,) of numbers of points (B·P,)."""
    return points.reshape(rows, points.shape[0] // max(rows, 1)).sum(axis=1, dtype=np.float64)


@register("layer", kDiceLoss=822)
class DiceLoss(PointClasses):
    """Soft Dice loss, Σ (1 - (2·Σ w·p·t + s) / (Σ w·p + Σ w·t + s))·scale / (B·K) over rows and classes.

    Milletari et al., V-Net (2016), without squares in the divisor. The inner sums are over the points of a row; p is
    the softmax over the K channels of the scores (B, K, *space), t is 1 for the label of a point, else 0, s is
    ``smooth``. Scores of one channel are of class 1 of two: p is their sigmoid, and there is one term. Labels and w are
    those of kFieldSoftmaxLoss; masked points are in no sum. MONAI's DiceLoss is the same with smooth 1e-5; Keras' Dice
    takes the sums over a batch and all classes. The feature is p, (B, K, *space).
    """

    class Conf(Settings):
        """Settings of kDiceLoss."""

        smooth: Positive = setting(1e-5, "the number s, by which a class that is nowhere has no loss")
        scale: NonNegative = setting(1.0, "the factor of the loss and its gradient")
        weighted: bool = setting(False, WEIGHTED)

    settings: Conf
    is_loss = True
    metric_names = ("loss",)

    def compute_feature(self, params: Arrays, sources: Arrays, ctx: Context) -> Output:
        classes, weights = self.placed(self.point_labels(sources[1], ctx), sources[:2], ctx)
        scores, rows = self.to_points(sources[0]), len(sources[0])
        p = ctx.ops.sigmoid(scores) if self.channels == 1 else ctx.ops.softmax(scores)
        target = self._target(classes, weights, p, ctx)
        overlap, labelled = self._sums(p * target, rows), self._sums(target, rows)
        predicted = self._sums(p if weights is None else p * weights[:, None].astype(p.dtype, copy=False), rows)
        if self.region is not None:
            overlap, labelled, predicted = ctx.sum_arrays(f"{self.name}.feature", (overlap, labelled, predicted))
        shared, both = 2 * overlap + self.settings.smooth, labelled + self.settings.smooth + predicted
        counted = self.counted_rows(rows)
        loss = (1 - shared / both)[:counted].sum() * (self.settings.scale / self.channels)
        saved = (classes, weights, shared, both) if ctx.training else None
        return Output(self.from_points(p), saved=saved, metrics={"loss": (loss, counted)})

    def _target(self, classes: Array, weights: Array | None, like: Array, ctx: Context) -> Array:
        """Return w·t as a new array (B·P, K) of the dtype of ``like``."""
        if self.channels == 1:
            target = classes[:, None].astype(like.dtype)
        else:
            target = (classes[:, None] == ctx.ops.xp.arange(self.channels)).astype(like.dtype)
        if weights is not None:
            target *= weights[:, None].astype(like.dtype, copy=False)
        return target

    def _sums(self, points: Array, rows: int) -> Array:
        """Return the sums over the points of each row, (B, K) float64."""
        return points.reshape(rows, self.points, self.channels).sum(axis=1, dtype=np.float64)

    def compute_gradient(
        self, params: Arrays, sources: Arrays, output: Output, grad: Any, needs: Sequence[bool], ctx: Context
    ) -> Gradients:
        if not needs[0]:
            return (None, None), ()
        classes, weights, shared, both = output.saved
        p, rows = self.to_points(output.feature), len(sources[0])
        factor = self.settings.scale / (self.channels * ctx.rows.total)
        by_target, by_all = -2 * factor / both, factor * shared / both**2
        slopes = self._target(classes, weights, p, ctx).reshape(rows, self.points, self.channels)
        slopes *= by_target[:, None].astype(p.dtype)
        if weights is None:
            slopes += by_all[:, None].astype(p.dtype)
        else:
            of_points = weights.reshape(rows, self.points, 1).astype(p.dtype, copy=False)
            slopes += of_points * by_all[:, None].astype(p.dtype)
        slopes = slopes.reshape(p.shape)
        dx = ctx.ops.sigmoid_grad(p, slopes) if self.channels == 1 else ctx.ops.softmax_grad(p, slopes)
        return (self.from_points(dx), None), ()

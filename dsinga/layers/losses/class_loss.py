"""Losses of classes: kSoftmaxLoss (kCudnnSoftmaxLoss), and kHingeLoss, as in support vector machines."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from dsinga.base.registry import register
from dsinga.job import HingeNorm, LayerConf
from dsinga.job.component import Settings, setting
from dsinga.job.limits import Count, NonNegative, Positive, Share
from dsinga.layers.interface.context import Context, RecordInfo
from dsinga.layers.interface.declarations import Cut, Labels, SourceKind
from dsinga.layers.interface.layer import Array, Arrays, Gradients, Layer, Output, Shape, from_matrix, to_matrix
from dsinga.layers.losses.pair_loss import (
    WEIGHTS,
    check_weights,
    gradient_of_weights,
    weighted_rows,
    weighted_sum,
    weights_of,
)
from dsinga.layers.records.label import check_shares, class_labels, required_labels
from dsinga.ops import Ops
from dsinga.ops.numpy.elementwise import FLT_MIN
from dsinga.ops.types import is_on_device


@register("layer", kSoftmaxLoss=301, kCudnnSoftmaxLoss=350)
class SoftmaxLoss(Layer):
    """Softmax cross-entropy, -Σ log max(p[label], FLT_MIN)·scale / B, where p is the softmax of the scores.

    The sources give (B, ...), K scores a row, and labels in [0, K). The feature is the probabilities p, (B, K).
    Metrics: "loss", and "accuracy", the share of rows with the label among the ``topk`` most probable classes.

    With ``label_smoothing`` ε the target is 1 - ε for the label plus ε/K for each class: -Σ (1 - ε)·log p[label] +
    ε/K·Σ log p (Szegedy et al., Rethinking the Inception Architecture for Computer Vision, 2016).

    Labels may be float32 (B, K): the target t of each class, with a sum of 1 in a row, as kMixup makes them. The loss
    is then -Σ t·log max(p, FLT_MIN)·scale / B, and the accuracy counts the class with the largest target.
    """

    source_kind = SourceKind.kVectors

    class Conf(Settings):
        """Settings of kSoftmaxLoss."""

        topk: Count = setting(
            1, "how many of the highest scores may have the label, for a prediction to count as right"
        )
        scale: NonNegative = setting(1.0, "the factor of the loss and its gradient")
        label_smoothing: Share = setting(0.0, "the share of the target that is spread over all classes; beyond SINGA")

    settings: Conf
    source_count = 2
    optional_sources = 1
    labels = Labels(source=1, per="row", shares=True)
    is_loss = True
    marks_wrong_labels = True
    metric_names = ("loss", "accuracy")
    cut = Cut(gathered_because="normalises over all classes of a row")

    def __init__(self, conf: LayerConf, source_shapes: Sequence[Shape], info: RecordInfo | None = None):
        super().__init__(conf, source_shapes, info)
        settings = self.settings
        rows, self.classes = self.source_shapes[0][0], math.prod(self.source_shapes[0][1:])
        check_weights(self, WEIGHTS)
        self.topk = self.expect_setting("topk", 1, self.classes, f"there are {self.classes} classes")
        self.scale, self.smoothing = settings.scale, settings.label_smoothing
        self.shape = (rows, self.classes)

    def compute_feature(self, params: Arrays, sources: Arrays, ctx: Context) -> Output:
        given = required_labels(self, sources[1])
        if given.dtype.kind == "f" and given.ndim > 1:
            return self._shared_feature(sources, ctx)
        weights = weights_of(sources, WEIGHTS, ctx.ops)
        labels = ctx.ops.asarray(class_labels(self, sources[1], self.classes, checked_later=True))
        if weights is not None:
            if is_on_device(sources[1]):
                labels, weights = self._marked(labels, weights, ctx)
            return self._weighted_feature(to_matrix(sources[0], ctx.ops), labels, weights, ctx)
        scores = to_matrix(sources[0], ctx.ops)
        probabilities, loss, hits = ctx.ops.softmax_loss(scores, labels, self.topk)
        if self.smoothing:
            loss = loss + self._smoothing_losses(scores, labels, ctx).sum(dtype=np.float64)
        loss = loss if self.scale == 1 else loss * self.scale  # on a device this is a kernel launch
        metrics = {"loss": (loss, len(labels)), "accuracy": (hits, len(labels))}
        return Output(probabilities, saved=(labels, None) if ctx.training else None, metrics=metrics)

    def _smoothing_losses(self, scores: Array, labels: Array, ctx: Context) -> Array:
        """Return what label smoothing adds to each row's loss, ε·(x[label] - mean of x), (B,)."""
        of_labels = scores[ctx.ops.xp.arange(len(labels)), labels]
        return (of_labels - scores.sum(axis=1) / self.classes) * self.smoothing

    def _marked(self, labels: Array, weights: Array, ctx: Context) -> tuple[Array, Array]:
        """Replace invalid labels on the device by class 0 with weight NaN, so that the loss becomes NaN."""
        xp, wrong = ctx.ops.xp, (labels < 0) | (labels >= self.classes)
        nan = weights.dtype.type(math.nan)
        return xp.where(wrong, labels.dtype.type(0), labels), xp.where(wrong, nan, weights)

    def _weighted_feature(self, scores: Array, labels: Array, weights: Array, ctx: Context) -> Output:
        probabilities, xp = ctx.ops.softmax(scores), ctx.ops.xp
        losses = -xp.log(xp.maximum(probabilities[xp.arange(len(labels)), labels], FLT_MIN))
        if self.smoothing:
            losses = losses + self._smoothing_losses(scores, labels, ctx)
        hits = _hits_by_row(probabilities, labels, self.topk, ctx.ops)
        metrics = {
            "loss": (weighted_sum(losses, weights, self.scale), len(labels)),
            "accuracy": (weighted_sum(hits, weights), weights.sum(dtype=np.float64)),
        }
        return Output(probabilities, saved=(labels, losses) if ctx.training else None, metrics=metrics)

    def _shared_feature(self, sources: Arrays, ctx: Context) -> Output:
        """Compute the loss for labels (B, K) with a probability for each class."""
        xp, shares, scores = ctx.ops.xp, required_labels(self, sources[1]), to_matrix(sources[0], ctx.ops)
        check_shares(self, shares.shape, self.classes)
        weights, largest = weights_of(sources, WEIGHTS, ctx.ops), ctx.ops.asarray(shares.argmax(axis=1))
        target = ctx.ops.asarray(shares).astype(scores.dtype)
        if self.smoothing:
            target = target * (1 - self.smoothing) + self.smoothing / self.classes
        probabilities = ctx.ops.softmax(scores)
        losses = -(target * xp.log(xp.maximum(probabilities, FLT_MIN))).sum(axis=1)
        if weights is None:
            accuracy = ctx.ops.hits(probabilities, largest, self.topk), len(shares)
        else:
            hits = _hits_by_row(probabilities, largest, self.topk, ctx.ops)
            accuracy = weighted_sum(hits, weights), weights.sum(dtype=np.float64)
        metrics = {"loss": (weighted_sum(losses, weights, self.scale), len(shares)), "accuracy": accuracy}
        return Output(probabilities, saved=(target, losses) if ctx.training else None, metrics=metrics)

    def compute_gradient(
        self, params: Arrays, sources: Arrays, output: Output, grad: Any, needs: Sequence[bool], ctx: Context
    ) -> Gradients:
        (labels, losses), factor = output.saved, self.scale / ctx.rows.total
        grads: list[Array | None] = [None] * len(sources)
        if needs[0]:
            if labels.ndim == 1:
                dx = ctx.ops.softmax_loss_grad(output.feature, labels, factor, self.smoothing)
            else:
                dx = (output.feature * labels.sum(axis=1, keepdims=True) - labels) * factor
            dx = weighted_rows(dx, weights_of(sources, WEIGHTS, ctx.ops))
            grads[0] = from_matrix(dx, sources[0], ctx.ops)
        if any(needs[WEIGHTS:]):
            grads[WEIGHTS] = gradient_of_weights(losses, factor, sources[WEIGHTS])
        return grads, ()


@register("layer", kHingeLoss=731)
class HingeLoss(Layer):
    """Hinge loss, Σ max(0, margin - x[label] + x[k])^p·scale / B over the classes k other than the label.

    Weston and Watkins, Support Vector Machines for Multi-Class Pattern Recognition (1999). p is 1 with ``norm`` L1 and
    2 with L2. The sources give (B, ...), K scores a row, and labels in [0, K). The feature is the scores, (B, K).
    Metrics: "loss", and "accuracy", the share of rows with the label among the ``topk`` highest scores.
    """

    source_kind = SourceKind.kVectors

    class Conf(Settings):
        """Settings of kHingeLoss."""

        norm: HingeNorm = setting(HingeNorm.L1, "whether violations of the margin are summed, or their squares")
        margin: Positive = setting(1.0, "by how much the label's score should be above the others")
        topk: Count = setting(
            1, "how many of the highest scores may have the label, for a prediction to count as right"
        )
        scale: NonNegative = setting(1.0, "the factor of the loss and its gradient")

    settings: Conf
    source_count = 2
    labels = Labels(source=1, per="row", of_scores=True)
    is_loss = True
    metric_names = ("loss", "accuracy")
    cut = Cut(gathered_because="compares the classes of a row")

    def __init__(self, conf: LayerConf, source_shapes: Sequence[Shape], info: RecordInfo | None = None):
        super().__init__(conf, source_shapes, info)
        settings = self.settings
        rows, self.classes = self.source_shapes[0][0], math.prod(self.source_shapes[0][1:])
        self.topk = self.expect_setting("topk", 1, self.classes, f"there are {self.classes} classes")
        self.squared, self.margin, self.scale = settings.norm is HingeNorm.L2, settings.margin, settings.scale
        self.shape = (rows, self.classes)

    def compute_feature(self, params: Arrays, sources: Arrays, ctx: Context) -> Output:
        scores, ops = to_matrix(sources[0], ctx.ops), ctx.ops
        labels = ops.asarray(class_labels(self, sources[1], self.classes))
        violation, rows = self._violations(scores, labels, ops), len(labels)
        loss = (violation * violation if self.squared else violation).sum(dtype=np.float64) * self.scale
        metrics = {"loss": (loss, rows), "accuracy": (ops.hits(scores, labels, self.topk), rows)}
        return Output(scores, saved=(violation, labels) if ctx.training else None, metrics=metrics)

    def compute_gradient(
        self, params: Arrays, sources: Arrays, output: Output, grad: Any, needs: Sequence[bool], ctx: Context
    ) -> Gradients:
        if not needs[0]:
            return (None, None), ()
        violation, labels = output.saved
        slope = 2 * violation if self.squared else (violation > 0).astype(violation.dtype)
        dx = slope * (self.scale / ctx.rows.total)
        dx[ctx.ops.xp.arange(len(labels)), labels] = -dx.sum(axis=1)
        return (from_matrix(dx, sources[0], ctx.ops), None), ()

    def _violations(self, x: Array, labels: Array, ops: Ops) -> Array:
        """Return by how much each class violates its margin to the label's score, (B, K); 0 for the label."""
        rows = ops.xp.arange(len(labels))
        violation = ops.xp.maximum(x - x[rows, labels][:, None] + self.margin, 0)
        violation[rows, labels] = 0
        return violation


def _hits_by_row(scores: Array, labels: Array, topk: int, ops: Ops) -> Array:
    """Return whether each row's label is among the ``topk`` highest ``scores`` (B, K)."""
    xp = ops.xp
    of_labels = scores[xp.arange(len(labels)), labels][:, None]
    earlier = xp.arange(scores.shape[1]) < labels[:, None]
    above = (scores > of_labels) | ((scores == of_labels) & earlier)
    return above.sum(axis=1) < topk

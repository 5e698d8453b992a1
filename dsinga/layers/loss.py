"""Losses: kSoftmaxLoss (kCudnnSoftmaxLoss), kEuclideanLoss, kHuberLoss and kSigmoidCrossEntropyLoss.

Gradients are of the mean over the global batch. The metric "loss" is (sum over the rows of this worker, rows), so that
the sums and counts of all workers add up to that mean. An optional third source gives a weight for each row; see
:mod:`dsinga.layers.sample_weights`.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np

from dsinga.job import LayerConf
from dsinga.job.component import Settings, setting
from dsinga.job.limits import Count, NonNegative, Positive, Share
from dsinga.layers.base import Array, Arrays, Gradients, Layer, Output, Shape, as_text, from_matrix, to_matrix
from dsinga.layers.context import Context, RecordInfo
from dsinga.layers.declarations import Cut, Labels, SourceKind
from dsinga.layers.label import check_topk, class_labels
from dsinga.layers.sample_weights import (
    check_weights,
    gradient_of_weights,
    hits_by_row,
    weighted_rows,
    weighted_sum,
    weights_of,
)
from dsinga.ops import Ops
from dsinga.ops.numpy_elementwise import FLT_MIN
from dsinga.registry import register

WEIGHTS = 2  # the position of the source with weights


@register("layer", kSoftmaxLoss=301, kCudnnSoftmaxLoss=350)
class SoftmaxLoss(Layer):
    """Softmax cross-entropy, -Σ log max(p[label], FLT_MIN)·scale / B; the feature is the probabilities p, (B, K).

    The first source gives (B, ...), K numbers a row; the second gives labels in [0, K). Metrics: "loss", and
    "accuracy", the share of rows whose label is among the ``topk`` most probable classes. A third source may give a
    weight for each row.

    With ``label_smoothing`` ε the target is 1 - ε for the label plus ε/K for each class (Szegedy et al., Rethinking the
    Inception Architecture for Computer Vision, 2016): -Σ (1 - ε)·log p[label] + ε/K·Σ log p.
    """

    source_kind = SourceKind.kVectors

    class Conf(Settings):
        """Settings of kSoftmaxLoss."""

        topk: Count = setting(1, "a prediction counts as right if the label is among so many highest scores")
        scale: NonNegative = setting(1.0, "the factor of the loss and its gradient")
        label_smoothing: Share = setting(0.0, "the share of the target that is spread over all classes; beyond SINGA")

    settings: Conf
    source_count: ClassVar[int | None] = 2
    optional_sources: ClassVar[int] = 1
    labels = Labels(source=1, per="row")
    is_loss: ClassVar[bool] = True
    metric_names: ClassVar[tuple[str, ...]] = ("loss", "accuracy")
    cut = Cut(gathered_because="normalises over all classes of a row")

    def __init__(self, conf: LayerConf, source_shapes: Sequence[Shape], info: RecordInfo | None = None):
        super().__init__(conf, source_shapes, info)
        settings = self.settings
        rows, self.classes = self.source_shapes[0][0], math.prod(self.source_shapes[0][1:])
        check_weights(self, WEIGHTS)
        self.topk = check_topk(self, settings.topk, self.classes, settings)
        self.scale, self.smoothing = settings.scale, settings.label_smoothing
        self.shape = (rows, self.classes)

    def compute_feature(self, params: Arrays, sources: Arrays, ctx: Context) -> Output:
        labels = ctx.ops.asarray(class_labels(self, sources[1], self.classes))
        if (weights := weights_of(sources, WEIGHTS, ctx.ops)) is not None:
            return self._weighted_feature(to_matrix(sources[0], ctx.ops), labels, weights, ctx)
        scores = to_matrix(sources[0], ctx.ops)
        probabilities, loss, hits = ctx.ops.softmax_loss(scores, labels, self.topk)
        if self.smoothing:
            loss = loss + self._smoothing_losses(scores, labels, ctx).sum(dtype=np.float64)
        loss = loss if self.scale == 1 else loss * self.scale  # on a device this is a kernel launch
        metrics = {"loss": (loss, len(labels)), "accuracy": (hits, len(labels))}
        return Output(probabilities, saved=(labels, None) if ctx.training else None, metrics=metrics)

    def _smoothing_losses(self, scores: Array, labels: Array, ctx: Context) -> Array:
        """Return what smoothing adds to the loss of each row, ε·(x[label] - mean of x), (B,)."""
        of_labels = scores[ctx.ops.xp.arange(len(labels)), labels]
        return (of_labels - scores.sum(axis=1) / self.classes) * self.smoothing

    def _weighted_feature(self, scores: Array, labels: Array, weights: Array, ctx: Context) -> Output:
        """Return the output for rows of the given ``weights`` (B,)."""
        probabilities, xp = ctx.ops.softmax(scores), ctx.ops.xp
        losses = -xp.log(xp.maximum(probabilities[xp.arange(len(labels)), labels], FLT_MIN))
        if self.smoothing:
            losses = losses + self._smoothing_losses(scores, labels, ctx)
        hits = hits_by_row(probabilities, labels, self.topk, ctx.ops)
        metrics = {
            "loss": (weighted_sum(losses, weights, self.scale), len(labels)),
            "accuracy": (weighted_sum(hits, weights), weights.sum(dtype=np.float64)),
        }
        return Output(probabilities, saved=(labels, losses) if ctx.training else None, metrics=metrics)

    def compute_gradient(
        self, params: Arrays, sources: Arrays, output: Output, grad: Any, needs: Sequence[bool], ctx: Context
    ) -> Gradients:
        (labels, losses), factor = output.saved, self.scale / ctx.rows.total
        grads: list[Array | None] = [None] * len(sources)
        if needs[0]:
            dx = ctx.ops.softmax_loss_grad(output.feature, labels, factor, self.smoothing)
            dx = weighted_rows(dx, weights_of(sources, WEIGHTS, ctx.ops))
            grads[0] = from_matrix(dx, sources[0], ctx.ops)
        if any(needs[WEIGHTS:]):
            grads[WEIGHTS] = gradient_of_weights(losses, factor, sources[WEIGHTS])
        return grads, ()


class PairLoss(Layer):
    """Base of losses that compare two sources whose rows have equal lengths; the feature is (B, n)."""

    source_count: ClassVar[int | None] = 2
    optional_sources: ClassVar[int] = 1
    cut = Cut(gathered_because="reports the loss of whole rows")
    is_loss: ClassVar[bool] = True
    metric_names: ClassVar[tuple[str, ...]] = ("loss",)

    def __init__(self, conf: LayerConf, source_shapes: Sequence[Shape], info: RecordInfo | None = None):
        super().__init__(conf, source_shapes, info)
        first, second = self.source_shapes[:2]
        if first[0] != second[0] or math.prod(first) != math.prod(second):
            raise self.fail(
                f"compares {self.source_name(0)}, {as_text(first)}, with {self.source_name(1)}, {as_text(second)}; "
                "give both as many rows, and rows as long",
                field="srclayers",
            )
        check_weights(self, WEIGHTS)
        self.shape = (first[0], math.prod(first[1:]))


class DifferenceLoss(PairLoss):
    """Base of losses of x - target, which is the feature. A subclass has the loss of a row, and its derivative."""

    settings: Any
    source_kind = SourceKind.kVectors
    steepness: ClassVar[int] = 1
    """The derivative of the loss, as a multiple of ``_slopes``."""

    def compute_feature(self, params: Arrays, sources: Arrays, ctx: Context) -> Output:
        difference = to_matrix(sources[0], ctx.ops) - to_matrix(sources[1], ctx.ops)
        if (weights := weights_of(sources, WEIGHTS, ctx.ops)) is None:
            loss = self._sum(difference, ctx) * self.settings.scale
        else:
            loss = weighted_sum(self._losses(difference, ctx), weights, self.settings.scale)
        return Output(difference, metrics={"loss": (loss, difference.shape[0])})

    def compute_gradient(
        self, params: Arrays, sources: Arrays, output: Output, grad: Any, needs: Sequence[bool], ctx: Context
    ) -> Gradients:
        factor = self.settings.scale / ctx.rows.total
        slopes = weighted_rows(self._slopes(output.feature, ctx), weights_of(sources, WEIGHTS, ctx.ops))
        grads: list[Array | None] = [
            from_matrix(slopes * (sign * self.steepness * factor), source, ctx.ops) if need else None
            for sign, source, need in zip((1, -1), sources[:WEIGHTS], needs[:WEIGHTS], strict=True)
        ]
        for need in needs[WEIGHTS:]:
            losses = self._losses(output.feature, ctx) if need else None
            grads.append(gradient_of_weights(losses, factor, sources[WEIGHTS]) if need else None)
        return grads, ()

    def _sum(self, difference: Array, ctx: Context) -> Array:
        """Return the sum of the losses of all rows."""
        return self._losses(difference, ctx).sum()

    def _slopes(self, difference: Array, ctx: Context) -> Array:
        """Return the derivative of the loss divided by ``steepness``, (B, n)."""
        return difference

    @abstractmethod
    def _losses(self, difference: Array, ctx: Context) -> Array:
        """Return the loss of each row, (B,) float64."""


@register("layer", kEuclideanLoss=300)
class EuclideanLoss(DifferenceLoss):
    """Squared error, Σ (x - target)²·scale / B over two sources of equal sizes; the feature is x - target, (B, n).

    With targets by kLabel it is n times the mean squared error of n numbers to predict. A third source may give a
    weight for each row.

    The gradient is 2(x - target)·scale/B, and its negative for the target. SINGA 0.3 has half of that, which is not
    the derivative of the loss that it reports: a job tuned with SINGA needs half the learning rate, or scale 0.5, here.
    """

    class Conf(Settings):
        """Settings of kEuclideanLoss."""

        scale: NonNegative = setting(1.0, "the factor of the loss and its gradient")

    steepness = 2

    def _sum(self, difference: Array, ctx: Context) -> Array:
        return ctx.ops.channel_sums(difference, difference).sum()

    def _losses(self, difference: Array, ctx: Context) -> Array:
        return (difference * difference).sum(axis=1, dtype=np.float64)


@register("layer", kHuberLoss=753)
class HuberLoss(DifferenceLoss):
    """Huber's loss, Σ h(x - target)·scale / B over two sources of equal sizes; the feature is x - target, (B, n).

    h(e) is e²/2 where |e| is at most ``delta``, beyond it delta·(|e| - delta/2), so that single large errors count
    less (Huber, Robust Estimation of a Location Parameter, 1964). A third source may give a weight for each row.
    """

    class Conf(Settings):
        """Settings of kHuberLoss."""

        delta: Positive = setting(1.0, "the error beyond which the loss is linear")
        scale: NonNegative = setting(1.0, "the factor of the loss and its gradient")

    settings: Conf

    def _slopes(self, difference: Array, ctx: Context) -> Array:
        return ctx.ops.xp.minimum(ctx.ops.xp.maximum(difference, -self.settings.delta), self.settings.delta)

    def _losses(self, difference: Array, ctx: Context) -> Array:
        slopes = self._slopes(difference, ctx)
        return (slopes * (difference - slopes / 2)).sum(axis=1, dtype=np.float64)


@register("layer", kSigmoidCrossEntropyLoss=730)
class SigmoidCrossEntropyLoss(PairLoss):
    """Binary cross-entropy, -Σ (t·log p + (1 - t)·log(1 - p))·scale / B; the feature is p = sigmoid(x), (B, n).

    The first source gives x, the second as many targets t in [0, 1]: several labels of a record, or one, by kLabel.
    It is computed as max(x, 0) - x·t + log(1 + exp(-|x|)), which does not overflow. A negative loss means that targets
    are not in [0, 1], such as labels of more than two classes. Metrics: "loss", and "accuracy", the share of the
    B·n targets of which x tells rightly whether they are above 0.5. A third source may give a weight for each row.
    """

    source_kind = SourceKind.kVectors

    class Conf(Settings):
        """Settings of kSigmoidCrossEntropyLoss."""

        scale: NonNegative = setting(1.0, "the factor of the loss and its gradient")

    settings: Conf
    metric_names: ClassVar[tuple[str, ...]] = ("loss", "accuracy")

    def compute_feature(self, params: Arrays, sources: Arrays, ctx: Context) -> Output:
        x, target = (to_matrix(source, ctx.ops) for source in sources[:2])
        losses, right = self._losses(x, target, ctx.ops), (x > 0) == (target > 0.5)
        if (weights := weights_of(sources, WEIGHTS, ctx.ops)) is None:
            loss, accuracy = losses.sum(dtype=np.float64) * self.settings.scale, (right.sum(), math.prod(x.shape))
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
        if needs[0]:
            dx = weighted_rows((output.feature - target) * factor, weights)
            grads[0] = from_matrix(dx, sources[0], ctx.ops)
        if needs[1]:
            grads[1] = from_matrix(weighted_rows(x * -factor, weights), sources[1], ctx.ops)
        if any(needs[WEIGHTS:]):
            losses = self._losses(x, target, ctx.ops).sum(axis=1, dtype=np.float64)
            grads[WEIGHTS] = gradient_of_weights(losses, factor, sources[WEIGHTS])
        return grads, ()

    def _losses(self, x: Array, target: Array, ops: Ops) -> Array:
        """Return the loss of each number, (B, n)."""
        xp = ops.xp
        return xp.maximum(x, 0) - x * target + xp.log1p(xp.exp(-xp.abs(x)))

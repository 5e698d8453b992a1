"""Losses that train embeddings by distances between rows, and kKLDivergenceLoss of probabilities."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from dsinga.base.registry import register
from dsinga.job import LayerConf
from dsinga.job.component import Settings, setting
from dsinga.job.limits import NonNegative, Positive
from dsinga.layers.dense.combine import SMALLEST_NORM
from dsinga.layers.interface.context import Context, RecordInfo
from dsinga.layers.interface.declarations import Cut, Labels, SourceKind
from dsinga.layers.interface.layer import Array, Arrays, Gradients, Layer, Output, Shape, from_matrix, to_matrix
from dsinga.layers.losses.pair_loss import (
    WEIGHTS,
    PairLoss,
    gradient_of_weights,
    weighted_rows,
    weighted_sum,
    weights_of,
)
from dsinga.layers.records.label import class_labels
from dsinga.ops import Ops
from dsinga.ops.numpy.elementwise import FLT_MIN


def row_sums(x: Array, y: Array, ops: Ops) -> Array:
    """Return Σ x·y of each row of two matrices (B, n): (B,)."""
    return ops.xp.einsum("ij,ij->i", x, y)


@register("layer", kCosineLoss=773)
class CosineLoss(PairLoss):
    """1 minus the cosine of the angle between two rows, Σ (1 - x·y / (|x|·|y|))·scale / B.

    The sources give two rows (B, n) of equal length. The feature is the cosine, (B, 1). It is PyTorch's
    cosine_embedding_loss for pairs that belong together. Keras's CosineSimilarity is smaller by 1.
    """

    source_kind = SourceKind.kVectors
    cut = Cut(gathered_because="compares whole rows")

    class Conf(Settings):
        """Settings of kCosineLoss."""

        scale: NonNegative = setting(1.0, "the factor of the loss and its gradient")

    settings: Conf

    def __init__(self, conf: LayerConf, source_shapes: Sequence[Shape], info: RecordInfo | None = None):
        super().__init__(conf, source_shapes, info)
        self.shape = (self.shape[0], 1)

    def compute_feature(self, params: Arrays, sources: Arrays, ctx: Context) -> Output:
        x, y = (to_matrix(source, ctx.ops) for source in sources[:2])
        xp = ctx.ops.xp
        norms = [xp.maximum(xp.sqrt(row_sums(z, z, ctx.ops)), SMALLEST_NORM)[:, None] for z in (x, y)]
        cosines = row_sums(x, y, ctx.ops)[:, None] / (norms[0] * norms[1])
        losses = 1 - cosines.reshape(len(cosines)).astype(np.float64)
        loss = weighted_sum(losses, weights_of(sources, WEIGHTS, ctx.ops), self.settings.scale)
        saved = (norms, losses) if ctx.training else None
        return Output(cosines, saved=saved, metrics={"loss": (loss, len(losses))})

    def compute_gradient(
        self, params: Arrays, sources: Arrays, output: Output, grad: Any, needs: Sequence[bool], ctx: Context
    ) -> Gradients:
        (norms, losses), factor = output.saved, self.settings.scale / ctx.rows.total
        weights, cosines = weights_of(sources, WEIGHTS, ctx.ops), output.feature
        units = [to_matrix(source, ctx.ops) / norm for source, norm in zip(sources[:2], norms, strict=True)]
        grads: list[Array | None] = [None] * len(sources)
        for index, norm in enumerate(norms):
            if needs[index]:
                slopes = (cosines * units[index] - units[1 - index]) / norm * factor
                grads[index] = from_matrix(weighted_rows(slopes, weights), sources[index], ctx.ops)
        if any(needs[WEIGHTS:]):
            grads[WEIGHTS] = gradient_of_weights(losses, factor, sources[WEIGHTS])
        return grads, ()


class DistanceLoss(Layer):
    """Base of losses of Euclidean distances between rows of sources (B, ...) of equal lengths.

    Metrics: "loss", and "accuracy", the share of rows with distances on the right side.
    """

    source_kind = SourceKind.kVectors
    is_loss = True
    metric_names = ("loss", "accuracy")
    cut = Cut(gathered_because="measures distances between whole rows")
    row_count = 2
    """The number of sources that give rows."""

    def __init__(self, conf: LayerConf, source_shapes: Sequence[Shape], info: RecordInfo | None = None):
        super().__init__(conf, source_shapes, info)
        shapes = self.source_shapes[: self.row_count]
        for index, shape in enumerate(shapes):
            fit = shape[0] == shapes[0][0] and math.prod(shape) == math.prod(shapes[0])
            self.expect_alike(fit, "give each as many rows, and rows as long", index)
        self.shape = (shapes[0][0], self.row_count - 1)

    def distances(self, sources: Arrays, ctx: Context) -> tuple[list[Array], Array]:
        """Return the differences (B, n) of the first row from each other row, and their lengths (B, others)."""
        rows = [to_matrix(source, ctx.ops) for source in sources[: self.row_count]]
        differences = [rows[0] - other for other in rows[1:]]
        lengths = [ctx.ops.xp.sqrt(row_sums(z, z, ctx.ops))[:, None] for z in differences]
        return differences, lengths[0] if len(lengths) == 1 else ctx.ops.xp.concatenate(lengths, axis=1)

    def gradients(
        self,
        differences: Sequence[Array],
        distances: Array,
        slopes: Array,
        sources: Arrays,
        needs: Sequence[bool],
        ctx: Context,
    ) -> list[Array | None]:
        """Return the gradients for the rows, given the derivatives for distances, (B, others); 0 at distance 0."""
        xp = ctx.ops.xp
        factors = xp.where(distances > 0, slopes / xp.where(distances > 0, distances, 1), 0).astype(distances.dtype)
        parts = [difference * factors[:, k : k + 1] for k, difference in enumerate(differences)]
        for_rows = [sum(parts[1:], parts[0]), *(-part for part in parts)]
        grads = zip(for_rows, sources, needs, strict=False)
        return [from_matrix(grad, source, ctx.ops) if need else None for grad, source, need in grads]


@register("layer", kContrastiveLoss=774)
class ContrastiveLoss(DistanceLoss):
    """Contrastive loss of pairs, Σ (y·d² + (1 - y)·max(0, margin - d)²)/2·scale / B, where d is the distance.

    The first two sources give rows (B, n). The third gives labels y: 1 for a pair that belongs together, else 0.
    (Hadsell, Chopra and LeCun, Dimensionality Reduction by Learning an Invariant Mapping, 2006, equation 4, has the
    opposite labels.) The feature is d, (B, 1). Metrics: "loss", and "accuracy", the share of pairs that d < margin / 2
    classifies correctly.
    """

    class Conf(Settings):
        """Settings of kContrastiveLoss."""

        margin: Positive = setting(1.0, "the distance from which rows that do not belong together count no more")
        scale: NonNegative = setting(1.0, "the factor of the loss and its gradient")

    settings: Conf
    source_count = 3
    labels = Labels(source=2, per="row")

    def compute_feature(self, params: Arrays, sources: Arrays, ctx: Context) -> Output:
        ops, settings = ctx.ops, self.settings
        together = ops.asarray(class_labels(self, sources[2], 2) == 1)[:, None]
        differences, d = self.distances(sources, ctx)
        gap = ops.xp.maximum(settings.margin - d, 0)
        losses = ops.xp.where(together, d * d, gap * gap)
        loss = losses.sum(dtype=np.float64) * (settings.scale / 2)
        right = ((d < settings.margin / 2) == together).sum()
        slopes = ops.xp.where(together, d, -gap)
        saved = (differences, slopes) if ctx.training else None
        return Output(d, saved=saved, metrics={"loss": (loss, len(d)), "accuracy": (right, len(d))})

    def compute_gradient(
        self, params: Arrays, sources: Arrays, output: Output, grad: Any, needs: Sequence[bool], ctx: Context
    ) -> Gradients:
        differences, slopes = output.saved
        slopes = slopes * (self.settings.scale / ctx.rows.total)
        return [*self.gradients(differences, output.feature, slopes, sources, needs[:2], ctx), None], ()


@register("layer", kTripletLoss=775)
class TripletLoss(DistanceLoss):
    """Triplet loss, Σ max(0, d₁ - d₂ + margin)·scale / B, which pulls rows of a kind together.

    The sources give rows (B, n): anchors, rows that belong to them, and rows that do not. d₁ and d₂ are the distances
    of an anchor to both. The feature is the distances, (B, 2). Metrics: "loss", and "accuracy", the share of rows with
    d₁ < d₂.

    It is PyTorch's triplet_margin_loss with p 2 and eps 0. Schroff et al., FaceNet (2015), use squared distances.
    """

    class Conf(Settings):
        """Settings of kTripletLoss."""

        margin: NonNegative = setting(1.0, "by how much the second distance should be the larger one")
        scale: NonNegative = setting(1.0, "the factor of the loss and its gradient")

    settings: Conf
    source_count = 3
    row_count = 3

    def compute_feature(self, params: Arrays, sources: Arrays, ctx: Context) -> Output:
        differences, distances = self.distances(sources, ctx)
        gap = distances[:, 0] - distances[:, 1] + self.settings.margin
        loss = ctx.ops.xp.maximum(gap, 0).sum(dtype=np.float64) * self.settings.scale
        right = (distances[:, 0] < distances[:, 1]).sum()
        saved = (differences, gap) if ctx.training else None
        return Output(distances, saved=saved, metrics={"loss": (loss, len(gap)), "accuracy": (right, len(gap))})

    def compute_gradient(
        self, params: Arrays, sources: Arrays, output: Output, grad: Any, needs: Sequence[bool], ctx: Context
    ) -> Gradients:
        differences, gap = output.saved
        counts = (gap > 0).astype(gap.dtype)[:, None] * (self.settings.scale / ctx.rows.total)
        slopes = ctx.ops.xp.concatenate([counts, -counts], axis=1)
        return self.gradients(differences, output.feature, slopes, sources, needs, ctx), ()


@register("layer", kKLDivergenceLoss=772)
class KLDivergenceLoss(PairLoss):
    """Kullback-Leibler divergence, Σ t·(log t - log p)·scale / B, where p is the softmax of the scores x.

    The first source gives scores (B, K). The second gives the probabilities t (B, K) of the classes, as from a teacher
    (Hinton et al., Distilling the Knowledge in a Neural Network, 2015). 0·log 0 is 0. The feature is p, (B, K).

    It is PyTorch's kl_div(log_softmax(x), t, reduction="batchmean"). Keras's loss expects p in place of x.
    """

    source_kind = SourceKind.kVectors
    cut = Cut(gathered_because="normalises over all classes of a row")

    class Conf(Settings):
        """Settings of kKLDivergenceLoss."""

        scale: NonNegative = setting(1.0, "the factor of the loss and its gradient")

    settings: Conf

    def compute_feature(self, params: Arrays, sources: Arrays, ctx: Context) -> Output:
        x, target = (to_matrix(source, ctx.ops) for source in sources[:2])
        ratios = self._log_ratios(x, target, ctx.ops)
        losses = (target * ratios).sum(axis=1, dtype=np.float64)
        loss = weighted_sum(losses, weights_of(sources, WEIGHTS, ctx.ops), self.settings.scale)
        saved = (ratios, losses) if ctx.training else None
        return Output(ctx.ops.softmax(x), saved=saved, metrics={"loss": (loss, len(losses))})

    def compute_gradient(
        self, params: Arrays, sources: Arrays, output: Output, grad: Any, needs: Sequence[bool], ctx: Context
    ) -> Gradients:
        target, (ratios, losses) = to_matrix(sources[1], ctx.ops), output.saved
        weights, factor = weights_of(sources, WEIGHTS, ctx.ops), self.settings.scale / ctx.rows.total
        grads: list[Array | None] = [None] * len(sources)
        if needs[0]:
            slopes = (output.feature * target.sum(axis=1)[:, None] - target) * factor
            grads[0] = from_matrix(weighted_rows(slopes, weights), sources[0], ctx.ops)
        if needs[1]:
            grads[1] = from_matrix(weighted_rows((ratios + 1) * factor, weights), sources[1], ctx.ops)
        if any(needs[WEIGHTS:]):
            grads[WEIGHTS] = gradient_of_weights(losses, factor, sources[WEIGHTS])
        return grads, ()

    def _log_ratios(self, x: Array, target: Array, ops: Ops) -> Array:
        """Return log t - log p, (B, K)."""
        xp = ops.xp
        shifted = x - x.max(axis=1)[:, None]
        logs = shifted - xp.log(xp.exp(shifted).sum(axis=1))[:, None]
        return xp.log(xp.maximum(target, FLT_MIN)) - logs

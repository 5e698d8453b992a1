"""Losses of the difference of two sources: kEuclideanLoss, kHuberLoss, kAbsoluteLoss; and weights of their rows.

Gradients are of the mean over the global batch. The metric "loss" is (sum over the rows of this worker, rows), so that
the sums and counts of all workers add up to that mean.

Sample weights are an optional last source of a loss, with a number that multiplies the loss of each row. With weights w
the loss is Σ wᵢ·lᵢ / B, where lᵢ is the loss of row i and B the rows of the global batch, whatever the weights add up
to. A metric that counts right predictions is their weighted share, Σ wᵢ·rightᵢ / Σ wᵢ, as in scikit-learn.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np

from dsinga.job import LayerConf
from dsinga.job.component import Settings, setting
from dsinga.job.limits import NonNegative, Positive
from dsinga.layers.base import Array, Arrays, Gradients, Layer, Output, Shape, as_text, from_matrix, to_matrix
from dsinga.layers.context import Context, RecordInfo
from dsinga.layers.declarations import Cut, SourceKind
from dsinga.ops import Ops
from dsinga.registry import register

WEIGHTS = 2  # the position of the source with weights


def check_weights(layer: Layer, position: int) -> None:
    """Raise UserError unless the source at ``position``, if there is one, has one number a row: (B,) or (B, 1)."""
    if len(layer.source_shapes) <= position:
        return
    rows, shape = layer.source_shapes[0][0], layer.source_shapes[position]
    if shape[0] != rows or math.prod(shape) != rows:
        raise layer.fail(
            f"takes one weight for each of {rows} rows from {layer.source_name(position)}, which gives "
            f"{as_text(shape)}; give it records that are one number",
            field="srclayers",
        )


def weights_of(sources: Arrays, position: int, ops: Ops) -> Array | None:
    """Return the weights (B,) as a float array of the backend, None for a loss without weights."""
    if len(sources) <= position:
        return None
    weights = sources[position]
    if weights.dtype.kind != "f":  # integers, as codes, stay in host memory
        weights = ops.asarray(np.asarray(weights, np.float32))
    return weights.reshape(len(weights))


def weighted_sum(rows: Array, weights: Array, scale: float = 1.0) -> Array:
    """Return Σ wᵢ·rowsᵢ·scale in float64, a number of the backend."""
    return (rows * weights).sum(dtype=np.float64) * scale


def weighted_rows(matrix: Array, weights: Array | None) -> Array:
    """Return a matrix (B, n) with each row times its weight; the matrix itself without weights."""
    return matrix if weights is None else matrix * weights[:, None].astype(matrix.dtype, copy=False)


def gradient_of_weights(rows: Array, factor: float, like: Array) -> Array:
    """Return the gradient for the weights, ``rows`` (B,) times ``factor``, in the shape and dtype of ``like``."""
    return (rows * factor).astype(like.dtype, copy=False).reshape(like.shape)


def hits_by_row(scores: Array, labels: Array, topk: int, ops: Ops) -> Array:
    """Return whether the label of each row is among the ``topk`` highest of ``scores`` (B, K), as :meth:`Ops.hits`."""
    xp = ops.xp
    of_labels = scores[xp.arange(len(labels)), labels][:, None]
    earlier = xp.arange(scores.shape[1]) < labels[:, None]
    above = (scores > of_labels) | ((scores == of_labels) & earlier)
    return above.sum(axis=1) < topk


class PairLoss(Layer):
    """Base of losses that compare two sources whose rows have equal lengths; the feature is (B, n)."""

    source_count = 2
    optional_sources = 1
    cut = Cut(gathered_because="reports the loss of whole rows")
    is_loss = True
    metric_names: tuple[str, ...] = ("loss",)

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


@register("layer", kAbsoluteLoss=770)
class AbsoluteLoss(DifferenceLoss):
    """Absolute error, Σ |x - target|·scale / B over two sources of equal sizes; the feature is x - target, (B, n).

    With targets by kLabel it is n times the mean absolute error of n numbers to predict. Its derivative where x is the
    target is 0. A third source may give a weight for each row.
    """

    class Conf(Settings):
        """Settings of kAbsoluteLoss."""

        scale: NonNegative = setting(1.0, "the factor of the loss and its gradient")

    def _slopes(self, difference: Array, ctx: Context) -> Array:
        return ctx.ops.xp.sign(difference)

    def _losses(self, difference: Array, ctx: Context) -> Array:
        return ctx.ops.xp.abs(difference).sum(axis=1, dtype=np.float64)

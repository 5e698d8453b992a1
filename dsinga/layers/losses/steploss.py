"""Fuses the softmax loss of each step with the kInnerProduct below it, and skips steps after the end."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dsinga.layers.dense.innerproduct import InnerProduct
from dsinga.layers.interface.context import Context
from dsinga.layers.interface.layer import Arrays, Gradients, Layer, Output, as_class, float_bytes
from dsinga.layers.losses.class_loss import SoftmaxLoss
from dsinga.layers.sequences.timedistributed import TimeDistributed


class StepScoresLoss(Layer):
    """A fused kInnerProduct and kSoftmaxLoss, both with ``per_step``, for large vocabularies.

    Back-propagation replaces both layers by it (:mod:`dsinga.net.fusion`), so that scores (B, T, K), a net's largest
    array, are never made. It has the kInnerProduct's params, and no feature.
    """

    scores: TimeDistributed
    loss: TimeDistributed

    @classmethod
    def of(cls, scores: TimeDistributed, loss: TimeDistributed) -> StepScoresLoss:
        """Fuse a kInnerProduct and its softmax loss into one layer."""
        shapes = (scores.source_shapes[0], loss.source_shapes[1])
        return as_class(cls, loss, scores=scores, loss=loss, params=scores.params, source_shapes=shapes)

    def compute_feature(self, params: Arrays, sources: Arrays, ctx: Context) -> Output:
        flat = self.loss.flatten_steps(sources, ctx.ops)
        ctx, (x, labels) = flat.context(ctx), flat.sources
        scores = self.scores.layer.compute_feature(params, [x], ctx)
        loss = self.loss.layer.compute_feature([], [scores.feature, labels], ctx)
        saved = (flat, scores._replace(feature=None), loss) if ctx.training else None
        return loss._replace(feature=None, saved=saved)

    def compute_gradient(
        self, params: Arrays, sources: Arrays, output: Output, grad: Any, needs: Sequence[bool], ctx: Context
    ) -> Gradients:
        flat, scores, loss = output.saved
        ctx, (x, labels) = flat.context(ctx), flat.sources
        (dscores, _), _ = self.loss.layer.compute_gradient([], [loss.feature, labels], loss, None, [True, False], ctx)
        (dx,), for_params = self.scores.layer.compute_gradient(params, [x], scores, dscores, needs[:1], ctx)
        return (None if dx is None else flat.spread(dx), None), for_params

    def saved_sizes(self, rows: int) -> list[int]:
        return [float_bytes(rows, self.source_shapes[0])]  # the steps before the end

    def backward_sizes(self, rows: int) -> list[int]:
        # The gradients of the scores and of the chosen steps.
        return [float_bytes(rows, self.shape), float_bytes(rows, self.source_shapes[0])]


def are_step_scores_and_loss(scores: Layer, loss: Layer) -> bool:
    """Whether two layers can be fused: a kInnerProduct and a kSoftmaxLoss of its scores, each with ``per_step``."""
    return (
        isinstance(scores, TimeDistributed)
        and isinstance(loss, TimeDistributed)
        and type(scores.layer) is InnerProduct
        and type(loss.layer) is SoftmaxLoss
        and len(loss.source_shapes) == 2
        and not any((*scores.repeated, *loss.repeated))
    )

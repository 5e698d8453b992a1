"""The loss kKLDivergenceLoss: how far the softmax of scores is from given probabilities."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from dsinga.base.registry import register
from dsinga.job.component import Settings, setting
from dsinga.job.limits import NonNegative
from dsinga.layers.interface.context import Context
from dsinga.layers.interface.declarations import Cut, SourceKind
from dsinga.layers.interface.layer import Array, Arrays, Gradients, Output, from_matrix, to_matrix
from dsinga.layers.losses.pair_loss import PairLoss
from dsinga.layers.losses.row_weights import WEIGHTS, gradient_of_weights, weighted_rows, weighted_sum, weights_of
from dsinga.ops import Ops
from dsinga.ops.numpy.elementwise import FLT_MIN


@register("layer", kKLDivergenceLoss=772)
class KLDivergenceLoss(PairLoss):
    """Kullback-Leibler divergence, Σ t·(log t - log p)·scale / B, where p is the softmax of the scores x.

    The first source gives scores (B, K), the second the probabilities t (B, K) of a record's classes, such as those of
    a teacher (Hinton et al., Distilling the Knowledge in a Neural Network, 2015), or of several people's labels; 0·log
    0 is 0. The feature is p, (B, K). It is PyTorch's kl_div(log_softmax(x), t, reduction="batchmean"); Keras' takes p
    in place of x. A third source may give a weight for each row.
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
        if (weights := weights_of(sources, WEIGHTS, ctx.ops)) is None:
            loss = losses.sum() * self.settings.scale
        else:
            loss = weighted_sum(losses, weights, self.settings.scale)
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

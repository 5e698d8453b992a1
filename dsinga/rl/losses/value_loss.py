"""Losses of values: kTDLoss for the values of actions, and kMeanLoss, the mean of any numbers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from dsinga.base.registry import register
from dsinga.job import LayerConf
from dsinga.job.component import Settings, setting
from dsinga.job.limits import NonNegative
from dsinga.layers.interface.context import Context, RecordInfo
from dsinga.layers.interface.declarations import Cut
from dsinga.layers.interface.layer import Arrays, Gradients, Layer, Output, Shape, from_matrix, to_matrix
from dsinga.rl.losses.policy_loss import check_actions, check_rows

WEIGHTS = 3  # the position of the source with weights


@register("layer", kTDLoss=736)
class TDLoss(Layer):
    """Loss of the temporal difference e = Q[action] - target of each row, scale·Σ w·h(e) / B; the feature is e, (B, 1).

    Sources: values Q (B, K), action (B, 1), target (B, 1), perhaps weights w (B, 1). h is Huber's loss: e²/2 where |e|
    is at most ``delta``, beyond it delta·(|e| - delta/2); with a ``delta`` of 0 it is e²/2 everywhere. Only Q gets a
    gradient. Metrics: "loss", and "value", the mean of Q[action].
    """

    class Conf(Settings):
        """Settings of kTDLoss."""

        delta: NonNegative = setting(1.0, "the error beyond which the loss is linear; with 0 it is squared everywhere")
        scale: NonNegative = setting(1.0, "the factor of the loss")

    settings: Conf
    source_count = 3
    optional_sources = 1
    is_loss = True
    metric_names = ("loss", "value")
    cut = Cut(gathered_because="chooses among all values of a row")

    def __init__(self, conf: LayerConf, source_shapes: Sequence[Shape], info: RecordInfo | None = None):
        super().__init__(conf, source_shapes, info)
        self.delta, self.scale = self.settings.delta, self.settings.scale
        values = self.expect_axes((2,), "values (batch, K)")
        for index, what in enumerate(("actions", "targets", "weights")[: len(self.source_shapes) - 1], start=1):
            check_rows(self, index, 1, what)
        self.shape = (values[0], 1)

    def compute_feature(self, params: Arrays, sources: Arrays, ctx: Context) -> Output:
        xp, values = ctx.ops.xp, sources[0]
        check_actions(self, sources[1], values.shape[1], ctx.ops)
        rows, actions = xp.arange(len(values)), sources[1].reshape(-1).astype(xp.int64)
        chosen = values[rows, actions]
        errors = chosen - sources[2].reshape(-1)
        slopes = xp.minimum(xp.maximum(errors, -self.delta), self.delta) if self.delta else errors
        losses = slopes * (errors - slopes / 2)
        if len(sources) > WEIGHTS:
            weights = sources[WEIGHTS].reshape(-1)
            losses, slopes = losses * weights, slopes * weights
        metrics = {
            "loss": (losses.sum(dtype=np.float64) * self.scale, len(values)),
            "value": (chosen.sum(dtype=np.float64), len(values)),
        }
        return Output(errors[:, None], saved=(rows, actions, slopes) if ctx.training else None, metrics=metrics)

    def compute_gradient(
        self, params: Arrays, sources: Arrays, output: Output, grad: Any, needs: Sequence[bool], ctx: Context
    ) -> Gradients:
        gradients: list[Any] = [None] * len(sources)
        if needs[0]:
            rows, actions, slopes = output.saved
            gradients[0] = ctx.ops.xp.zeros_like(sources[0])
            gradients[0][rows, actions] = slopes * slopes.dtype.type(self.scale / ctx.rows.total)
        return gradients, ()


@register("layer", kMeanLoss=737)
class MeanLoss(Layer):
    """scale·Σ w·x / B: the mean of a row's weighted sum as a loss; with a negative ``scale``, what is to become large.

    Sources: x (B, ...), perhaps weights w of as many numbers a row, which get no gradient; without them all are 1. The
    feature is x, (B, n). With ``scale`` -1 on a critic's value of an actor's action, whose params are static, it is the
    deterministic policy gradient (Silver et al. 2014). With weights it carries any gradient of x. Metric: "loss".
    """

    class Conf(Settings):
        """Settings of kMeanLoss."""

        scale: float = setting(1.0, "the factor of the loss")

    settings: Conf
    source_count = 1
    optional_sources = 1
    is_loss = True
    metric_names = ("loss",)
    cut = Cut(gathered_because="reports the loss of whole rows")

    def __init__(self, conf: LayerConf, source_shapes: Sequence[Shape], info: RecordInfo | None = None):
        super().__init__(conf, source_shapes, info)
        self.scale = self.settings.scale
        self.shape = (self.source_shapes[0][0], math.prod(self.source_shapes[0][1:]))
        if len(self.source_shapes) > 1:
            check_rows(self, 1, self.shape[1], "weights")

    def compute_feature(self, params: Arrays, sources: Arrays, ctx: Context) -> Output:
        x = to_matrix(sources[0], ctx.ops)
        weighted = x * to_matrix(sources[1], ctx.ops) if len(sources) > 1 else x
        return Output(x, metrics={"loss": (weighted.sum(dtype=np.float64) * self.scale, len(x))})

    def compute_gradient(
        self, params: Arrays, sources: Arrays, output: Output, grad: Any, needs: Sequence[bool], ctx: Context
    ) -> Gradients:
        gradients: list[Any] = [None] * len(sources)
        if needs[0]:
            factor = output.feature.dtype.type(self.scale / ctx.rows.total)
            if len(sources) > 1:
                dx = to_matrix(sources[1], ctx.ops) * factor
            else:
                dx = ctx.ops.xp.full_like(output.feature, factor)
            gradients[0] = from_matrix(dx, sources[0], ctx.ops)
        return gradients, ()

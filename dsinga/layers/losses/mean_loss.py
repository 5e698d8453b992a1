"""kMeanLoss: uses the mean of any feature as a loss; with weights, it injects any chosen gradient."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from dsinga.base.registry import register
from dsinga.job import LayerConf
from dsinga.job.component import Settings, setting
from dsinga.layers.interface.context import Context, RecordInfo
from dsinga.layers.interface.declarations import Cut
from dsinga.layers.interface.layer import Arrays, Gradients, Layer, Output, Shape, from_matrix, to_matrix
from dsinga.layers.losses.pair_loss import check_rows


@register("layer", kMeanLoss=737)
class MeanLoss(Layer):
    """scale·Σ w·x / B: the mean over rows of a weighted sum, as a loss. A negative ``scale`` maximizes the sum.

    Sources: x (B, ...), and optionally weights w, by default 1, without a gradient. The feature is x, (B, n). Metric:
    "loss".

    With ``scale`` -1 and a critic's value, it is the deterministic policy gradient (Silver et al. 2014).
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

"""The dropout layer, kDropout: random units are set to 0 in training."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, ClassVar

from dsinga.job import DropoutConf, DropoutUnit, LayerConf
from dsinga.layers.base import Array, Arrays, Connection, Gradients, Layer, Output, Shape, from_matrix
from dsinga.layers.context import Context, RecordInfo
from dsinga.registry import register


@register("layer", "kDropout")
class Dropout(Layer):
    """Inverted dropout: in training a random share ``dropout_ratio`` of the units is 0, the others are x/(1 - ratio).

    In other phases the feature is x. Srivastava et al., Dropout (JMLR 2014). A ``unit`` is a number, a channel of a row
    (Tompson et al., Efficient Object Localization Using Convolutional Networks, 2015), or a row, which drops a residual
    branch (Huang et al., Deep Networks with Stochastic Depth, 2016). The dropped units depend on seed, step, layer and
    global row, not on the worker.
    """

    source_count: ClassVar[int | None] = 1
    connection = Connection.kOneToOne

    def __init__(self, conf: LayerConf, source_shapes: Sequence[Shape], info: RecordInfo | None = None):
        super().__init__(conf, source_shapes, info)
        dropout = conf.dropout_conf or DropoutConf()
        self.ratio, self.unit = dropout.dropout_ratio, dropout.unit
        if not 0 <= self.ratio < 1:
            raise self.fail(
                f"dropout_ratio is {self.ratio}; give the share of units to drop, from 0 to below 1",
                dropout,
                "dropout_ratio",
            )
        self.shape = self.source_shapes[0]

    def compute_feature(self, params: Arrays, sources: Arrays, ctx: Context) -> Output:
        x = sources[0]
        if not ctx.training or self.ratio == 0:
            return Output(x)
        mask = from_matrix(ctx.ops.dropout_mask(self._numbers(ctx), self.ratio), x, ctx.ops)
        return Output(ctx.ops.multiply(x, mask), saved=mask)

    def _numbers(self, ctx: Context) -> Array:
        """Return uniform random numbers (rows, n), the same for all numbers of one unit."""
        if self.unit is DropoutUnit.kNumber:
            return self.random(ctx)
        if self.unit is DropoutUnit.kRow:
            return ctx.random(self.name, 1).repeat(math.prod(self.shape[1:]), axis=1)
        return ctx.random(self.name, self.shape[1], self.columns).repeat(math.prod(self.shape[2:]), axis=1)

    def compute_gradient(
        self, params: Arrays, sources: Arrays, output: Output, grad: Any, needs: Sequence[bool], ctx: Context
    ) -> Gradients:
        if not needs[0]:
            return (None,), ()
        return (grad if output.saved is None else ctx.ops.multiply(grad, output.saved),), ()

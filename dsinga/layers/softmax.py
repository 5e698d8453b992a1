"""The softmax layer, kSoftmax or kCudnnSoftmax: the softmax of each row."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, ClassVar

from dsinga.job import LayerConf, SoftmaxConf
from dsinga.layers.base import Array, Arrays, Gradients, Layer, Output, Shape, from_matrix, to_matrix
from dsinga.layers.context import Context, RecordInfo
from dsinga.registry import register


@register("layer", "kSoftmax", "kCudnnSoftmax")
class Softmax(Layer):
    """Softmax over each row of (B, ...), or over each of ``num_softmax_per_instance`` equal parts of a row."""

    source_count: ClassVar[int | None] = 1
    gathered_because = "normalises over all features of a row"

    def __init__(self, conf: LayerConf, source_shapes: Sequence[Shape], info: RecordInfo | None = None):
        super().__init__(conf, source_shapes, info)
        softmax = conf.softmax_conf or SoftmaxConf()
        self.shape = self.source_shapes[0]
        self.parts, columns = softmax.num_softmax_per_instance, math.prod(self.shape[1:])
        if self.parts < 1 or columns % self.parts:
            raise self.fail(
                f"cannot cut rows of {columns} into {self.parts} equal parts; "
                f"give a num_softmax_per_instance that divides {columns}",
                softmax,
                "num_softmax_per_instance",
            )
        self.width = columns // self.parts

    def compute_feature(self, params: Arrays, sources: Arrays, ctx: Context) -> Output:
        y = ctx.ops.softmax(self._to_rows(sources[0], ctx))
        return Output(self._from_rows(y, sources[0], ctx))

    def compute_gradient(
        self, params: Arrays, sources: Arrays, output: Output, grad: Any, needs: Sequence[bool], ctx: Context
    ) -> Gradients:
        if not needs[0]:
            return (None,), ()
        dx = ctx.ops.softmax_grad(self._to_rows(output.feature, ctx), self._to_rows(grad, ctx))
        return (self._from_rows(dx, sources[0], ctx),), ()

    def _to_rows(self, x: Array, ctx: Context) -> Array:
        """Return (B, ...) as (B·parts, width)."""
        matrix = to_matrix(x, ctx.ops)
        return matrix if self.parts == 1 else matrix.reshape(x.shape[0] * self.parts, self.width)

    def _from_rows(self, rows: Array, like: Array, ctx: Context) -> Array:
        matrix = rows if self.parts == 1 else rows.reshape(like.shape[0], self.parts * self.width)
        return from_matrix(matrix, like, ctx.ops)

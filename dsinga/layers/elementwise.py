"""The layers kAdd and kMultiply: the elementwise sum and product of several sources of one shape."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from typing import Any

from dsinga.job import LayerConf
from dsinga.layers.base import Array, Arrays, Connection, Gradients, Layer, Output, Shape, as_text
from dsinga.layers.context import Context, RecordInfo
from dsinga.registry import register


class ElementwiseCombination(Layer):
    """Base of layers that combine any number of sources of one shape into a feature of that shape."""

    connection = Connection.kOneToOne

    def __init__(self, conf: LayerConf, source_shapes: Sequence[Shape], info: RecordInfo | None = None):
        super().__init__(conf, source_shapes, info)
        if not self.source_shapes:
            raise self.fail("takes at least 1 source layer, not 0; correct its srclayers", field="srclayers")
        self.shape = self.source_shapes[0]
        for index, shape in enumerate(self.source_shapes):
            if shape != self.shape:
                raise self.fail(
                    f"{self.source_name(0)} gives {as_text(self.shape)}, {self.source_name(index)} {as_text(shape)}; "
                    "bring both to one shape, by kConvolution or kInnerProduct",
                    field="srclayers",
                )


@register("layer", "kAdd")
class Add(ElementwiseCombination):
    """The sum of the sources, such as x + f(x) of a residual net (He et al., Deep Residual Learning, 2016)."""

    def compute_feature(self, params: Arrays, sources: Arrays, ctx: Context) -> Output:
        return Output(reduce(ctx.ops.add, sources))

    def compute_gradient(
        self, params: Arrays, sources: Arrays, output: Output, grad: Any, needs: Sequence[bool], ctx: Context
    ) -> Gradients:
        return tuple(grad if need else None for need in needs), ()


@register("layer", "kMultiply")
class Multiply(ElementwiseCombination):
    """The product of the sources, such as x·gate(x)."""

    def compute_feature(self, params: Arrays, sources: Arrays, ctx: Context) -> Output:
        return Output(reduce(ctx.ops.multiply, sources))

    def compute_gradient(
        self, params: Arrays, sources: Arrays, output: Output, grad: Any, needs: Sequence[bool], ctx: Context
    ) -> Gradients:
        def gradient_times_others(index: int) -> Array:
            """Return the gradient times all sources but one; dividing the product by that one fails where it is 0."""
            return reduce(ctx.ops.multiply, (*sources[:index], *sources[index + 1 :]), grad)

        return tuple(gradient_times_others(index) if need else None for index, need in enumerate(needs)), ()

"""kDueling: the values of actions from the value of the situation and the advantages of actions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from dsinga.job import LayerConf
from dsinga.layers.base import Arrays, Gradients, Layer, Output, Shape, as_text
from dsinga.layers.context import Context, RecordInfo
from dsinga.registry import register


@register("layer", "kDueling")
class Dueling(Layer):
    """v + a - mean(a) of a value v (B, 1) and advantages a (B, K): (B, K) (Wang et al. 2016, equation 9)."""

    source_count: ClassVar[int | None] = 2
    gathered_because = "takes the mean over all advantages of a row"

    def __init__(self, conf: LayerConf, source_shapes: Sequence[Shape], info: RecordInfo | None = None):
        super().__init__(conf, source_shapes, info)
        value, advantages = self.source_shapes
        if value != (advantages[0], 1) or len(advantages) != 2:
            raise self.fail(
                f"takes a value {advantages[0]} x 1 and then the advantages (batch, K), but {self.source_name(0)} "
                f"gives {as_text(value)}, {self.source_name(1)} {as_text(advantages)}",
                field="srclayers",
            )
        self.shape = advantages

    def compute_feature(self, params: Arrays, sources: Arrays, ctx: Context) -> Output:
        value, advantages = sources
        return Output(advantages + (value - advantages.sum(axis=1, keepdims=True) / self.shape[1]))

    def compute_gradient(
        self, params: Arrays, sources: Arrays, output: Output, grad: Any, needs: Sequence[bool], ctx: Context
    ) -> Gradients:
        of_value = grad.sum(axis=1, keepdims=True)
        of_advantages = grad - of_value / self.shape[1] if needs[1] else None
        return [of_value if needs[0] else None, of_advantages], ()

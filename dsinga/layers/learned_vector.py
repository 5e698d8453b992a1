"""kLearnedVector: a vector that is learnt, the same for each row."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from dsinga.job import LayerConf
from dsinga.layers.base import Arrays, Gradients, Layer, Output, ParamSpec, Shape
from dsinga.layers.context import Context, RecordInfo
from dsinga.registry import register


@register("layer", "kLearnedVector")
class LearnedVector(Layer):
    """A param (n,), ``num_output`` numbers, as the feature of each row, (B, n); the source gives only B.

    It may be the logs of standard deviations of a Gaussian policy that do not depend on the situation.
    """

    source_count: ClassVar[int | None] = 1
    gathered_because = "takes nothing from its source but the number of rows"

    def __init__(self, conf: LayerConf, source_shapes: Sequence[Shape], info: RecordInfo | None = None):
        super().__init__(conf, source_shapes, info)
        settings = conf.learnedvector_conf
        if settings is None:
            raise self.fail("needs learnedvector_conf { num_output: ... }")
        self.shape = (self.source_shapes[0][0], settings.num_output)
        self.params = (ParamSpec("vector", (settings.num_output,)),)

    def compute_feature(self, params: Arrays, sources: Arrays, ctx: Context) -> Output:
        rows = ctx.ops.xp.zeros((len(sources[0]), *self.shape[1:]), params[0].dtype)
        return Output(rows + params[0])

    def compute_gradient(
        self, params: Arrays, sources: Arrays, output: Output, grad: Any, needs: Sequence[bool], ctx: Context
    ) -> Gradients:
        return [ctx.ops.xp.zeros_like(sources[0]) if needs[0] else None], [grad.sum(axis=0)]

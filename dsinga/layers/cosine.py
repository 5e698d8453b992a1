"""kCosineSimilarity: the cosine of the angle between the rows of two features."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from dsinga.job import CosineSimilarityConf, LayerConf
from dsinga.layers.base import Arrays, Gradients, Layer, Output, Shape, as_text, from_matrix, to_matrix
from dsinga.layers.context import Context, RecordInfo
from dsinga.registry import register

SMALLEST_NORM = 1e-8  # as PyTorch's: a shorter row counts as one of this length


@register("layer", "kCosineSimilarity")
class CosineSimilarity(Layer):
    """``scale``·x·y / (|x|·|y|) of each row of two sources (B, ...) of equal size: (B, 1).

    The similarity is from -``scale`` to ``scale``; that of a row of zeros is 0.
    """

    source_count: ClassVar[int | None] = 2
    gathered_because = "compares the features of a row"

    def __init__(self, conf: LayerConf, source_shapes: Sequence[Shape], info: RecordInfo | None = None):
        super().__init__(conf, source_shapes, info)
        self.scale = (conf.cosinesimilarity_conf or CosineSimilarityConf()).scale
        first, second = self.source_shapes
        if first != second:
            raise self.fail(
                f"compares rows of equal shapes, but {self.source_name(0)} gives {as_text(first)}, "
                f"{self.source_name(1)} {as_text(second)}; give both the same num_output",
                field="srclayers",
            )
        self.shape = (first[0], 1)

    def compute_feature(self, params: Arrays, sources: Arrays, ctx: Context) -> Output:
        xp = ctx.ops.xp
        x, y = (to_matrix(source, ctx.ops) for source in sources)
        inverse_x, inverse_y = (
            1 / xp.maximum(xp.sqrt(xp.einsum("ij,ij->i", z, z)[:, None]), SMALLEST_NORM) for z in (x, y)
        )
        cosine = xp.einsum("ij,ij->i", x, y)[:, None] * inverse_x * inverse_y
        return Output(cosine * x.dtype.type(self.scale), saved=(cosine, inverse_x, inverse_y) if ctx.training else None)

    def compute_gradient(
        self, params: Arrays, sources: Arrays, output: Output, grad: Any, needs: Sequence[bool], ctx: Context
    ) -> Gradients:
        cosine, inverse_x, inverse_y = output.saved
        x, y = (to_matrix(source, ctx.ops) for source in sources)
        slope = grad * grad.dtype.type(self.scale)
        pairs = ((x, inverse_x, y * inverse_y), (y, inverse_y, x * inverse_x))
        gradients = [
            from_matrix(slope * inverse * (unit - cosine * inverse * z), source, ctx.ops) if need else None
            for need, source, (z, inverse, unit) in zip(needs, sources, pairs, strict=True)
        ]
        return gradients, ()

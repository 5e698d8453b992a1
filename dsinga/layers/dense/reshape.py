"""kReshape: rows of another shape."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Annotated, Any

from dsinga.base.registry import register
from dsinga.job import LayerConf
from dsinga.job.component import Settings, setting
from dsinga.job.limits import Range
from dsinga.layers.interface.context import Context, RecordInfo
from dsinga.layers.interface.declarations import Bfloat16, Cut, SourceKind
from dsinga.layers.interface.layer import Arrays, Gradients, Layer, Output, Shape, as_text, from_matrix, to_matrix

Size = Annotated[int, Range(-1)]  # of an axis; -1 for the size that is left


@register("layer", kReshape=760)
class Reshape(Layer):
    """Its source with rows of another shape: (B, ...) to (B, *shape).

    The numbers of a row keep their order, that of the axes from the first to the last: (C, H, W) of images.
    """

    class Conf(Settings):
        """Settings of kReshape."""

        shape: list[Size] = setting(
            [], "the shape of a row, without the batch; one axis may be -1, the size that is left; by default a vector"
        )

    settings: Conf
    source_count = 1
    source_kind = SourceKind.kVectors
    cut = Cut(gathered_because="gives the features of a row another order of axes")
    bf16 = Bfloat16.kFeatures

    def __init__(self, conf: LayerConf, source_shapes: Sequence[Shape], info: RecordInfo | None = None):
        super().__init__(conf, source_shapes, info)
        source, sizes = self.source_shapes[0], list(self.settings.shape) or [-1]
        numbers = math.prod(source[1:])
        if 0 in sizes or sizes.count(-1) > 1:
            raise self.fail(
                f"has the shape {as_text(sizes)}; give whole numbers above 0, one of which may be -1 for the size that "
                "is left",
                self.settings,
                "shape",
            )
        known = math.prod(size for size in sizes if size != -1)
        if numbers % known or (-1 not in sizes and numbers != known):
            raise self.fail(
                f"cannot make rows of {as_text(sizes)} of those of {self.source_name(0)}, {as_text(source[1:])}, which "
                f"have {numbers} numbers; give a shape of as many",
                self.settings,
                "shape",
            )
        self.shape = (source[0], *(numbers // known if size == -1 else size for size in sizes))

    def compute_feature(self, params: Arrays, sources: Arrays, ctx: Context) -> Output:
        x = sources[0]
        return Output(ctx.ops.unflatten(to_matrix(x, ctx.ops), (len(x), *self.shape[1:])))

    def compute_gradient(
        self, params: Arrays, sources: Arrays, output: Output, grad: Any, needs: Sequence[bool], ctx: Context
    ) -> Gradients:
        return (from_matrix(to_matrix(grad, ctx.ops), sources[0], ctx.ops) if needs[0] else None,), ()

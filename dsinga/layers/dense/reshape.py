"""Layers that reshape rows (kReshape), reorder their axes (kPermute), or repeat them as steps (kRepeat)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Annotated, Any

from dsinga.base.registry import register
from dsinga.job import LayerConf
from dsinga.job.component import Settings, required, setting
from dsinga.job.limits import Count, Range, Steps
from dsinga.layers.interface.checks import shape_text
from dsinga.layers.interface.context import Context, RecordInfo
from dsinga.layers.interface.declarations import Bfloat16, Cut, Keeps, SourceKind
from dsinga.layers.interface.layer import Arrays, Gradients, Layer, Output, Shape, from_matrix, shaped, to_matrix


@register("layer", kPermute=891)
class Permute(Layer):
    """The source with the axes of rows in another order: (B, n1, n2, ...) to (B, n_dims[0], n_dims[1], ...).

    ``dims`` counts axes after the batch from 1, as Keras's Permute.
    """

    class Conf(Settings):
        """Settings of kPermute."""

        dims: list[Count] = setting([], "the axes of a row in their new order, counted from 1; each once")

    settings: Conf
    source_count = 1
    cut = Cut(gathered_because="gives the features of a row another order of axes")
    keeps = Keeps(sources=0, feature=False)

    def __init__(self, conf: LayerConf, source_shapes: Sequence[Shape], info: RecordInfo | None = None):
        super().__init__(conf, source_shapes, info)
        source, dims = self.source_shapes[0], list(self.settings.dims)
        if sorted(dims) != list(range(1, len(source))):
            text = f"has dims {dims}, but {self.source_name(0)} gives rows of {shape_text(source[1:])}"
            raise self.fail(f"{text}; give each of the numbers 1 to {len(source) - 1} once", field="dims")
        self.order = (0, *dims)
        self.shape = tuple(source[axis] for axis in self.order)

    def compute_feature(self, params: Arrays, sources: Arrays, ctx: Context) -> Output:
        return Output(sources[0].transpose(self.order))

    def compute_gradient(
        self, params: Arrays, sources: Arrays, output: Output, grad: Any, needs: Sequence[bool], ctx: Context
    ) -> Gradients:
        back = [self.order.index(axis) for axis in range(len(self.order))]
        return (grad.transpose(back) if needs[0] else None,), ()


@register("layer", kRepeat=892)
class Repeat(Layer):
    """The source repeated at each of several steps, as Keras's RepeatVector: (B, ...) to (B, times, ...)."""

    class Conf(Settings):
        """Settings of kRepeat."""

        times: Steps = required("the number of steps")

    settings: Conf
    source_count = 1
    cut = Cut(gathered_because="has steps where others have features")
    keeps = Keeps(sources=0, feature=False)

    def __init__(self, conf: LayerConf, source_shapes: Sequence[Shape], info: RecordInfo | None = None):
        super().__init__(conf, source_shapes, info)
        rows, *others = self.source_shapes[0]
        self.shape = (rows, self.settings.times, *others)

    def compute_feature(self, params: Arrays, sources: Arrays, ctx: Context) -> Output:
        return Output(ctx.ops.xp.stack([sources[0]] * self.settings.times, axis=1))

    def compute_gradient(
        self, params: Arrays, sources: Arrays, output: Output, grad: Any, needs: Sequence[bool], ctx: Context
    ) -> Gradients:
        return (grad.sum(axis=1) if needs[0] else None,), ()


Size = Annotated[int, Range(-1)]  # of an axis; -1 for the size that is left


@register("layer", kReshape=760)
class Reshape(Layer):
    """The source with rows of another shape: (B, ...) to (B, *shape), by default vectors.

    The numbers of a row keep their order, from the first axis to the last: (C, H, W) for images.
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
    keeps = Keeps(sources=0, feature=False)

    def __init__(self, conf: LayerConf, source_shapes: Sequence[Shape], info: RecordInfo | None = None):
        super().__init__(conf, source_shapes, info)
        source, sizes = self.source_shapes[0], list(self.settings.shape) or [-1]
        numbers = math.prod(source[1:])
        if 0 in sizes or sizes.count(-1) > 1:
            remedy = "give whole numbers above 0, one of which may be -1 for the size that is left"
            raise self.fail(f"has the shape {shape_text(sizes)}; {remedy}", field="shape")
        known = math.prod(size for size in sizes if size != -1)
        if numbers % known or (-1 not in sizes and numbers != known):
            raise self.fail(
                f"cannot make rows of {shape_text(sizes)} of those of {self.source_name(0)}, {shape_text(source[1:])}, "
                f"which have {numbers} numbers; give a shape of as many",
                field="shape",
            )
        self.shape = (source[0], *(numbers // known if size == -1 else size for size in sizes))

    def compute_feature(self, params: Arrays, sources: Arrays, ctx: Context) -> Output:
        x = sources[0]
        keeps_features = x.ndim > 2 and x.shape[-1] == self.shape[-1]
        return Output(shaped(x, (len(x), *self.shape[1:]), keeps_features, ctx.ops))

    def compute_gradient(
        self, params: Arrays, sources: Arrays, output: Output, grad: Any, needs: Sequence[bool], ctx: Context
    ) -> Gradients:
        return (from_matrix(to_matrix(grad, ctx.ops), sources[0], ctx.ops) if needs[0] else None,), ()

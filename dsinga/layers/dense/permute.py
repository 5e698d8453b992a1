"""kPermute and kRepeat: the axes of rows in another order, and a feature at each of several steps."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dsinga.base.registry import register
from dsinga.job import LayerConf
from dsinga.job.component import Settings, required, setting
from dsinga.job.limits import Count, Steps
from dsinga.layers.interface.context import Context, RecordInfo
from dsinga.layers.interface.declarations import Cut
from dsinga.layers.interface.layer import Arrays, Gradients, Layer, Output, Shape, as_text


@register("layer", kPermute=891)
class Permute(Layer):
    """Its source with the axes of rows in another order: (B, n1, n2, ...) to (B, n_dims[0], n_dims[1], ...).

    ``dims`` counts the axes after the batch from 1, as Keras's Permute does: [2, 1] swaps the axes of matrices.
    """

    class Conf(Settings):
        """Settings of kPermute."""

        dims: list[Count] = setting([], "the axes of a row in their new order, counted from 1; each once")

    settings: Conf
    source_count = 1
    cut = Cut(gathered_because="gives the features of a row another order of axes")

    def __init__(self, conf: LayerConf, source_shapes: Sequence[Shape], info: RecordInfo | None = None):
        super().__init__(conf, source_shapes, info)
        source, dims = self.source_shapes[0], list(self.settings.dims)
        if sorted(dims) != list(range(1, len(source))):
            raise self.fail(
                f"has dims {dims}, but {self.source_name(0)} gives rows of {as_text(source[1:])}; give each of the "
                f"numbers 1 to {len(source) - 1} once",
                self.settings,
                "dims",
            )
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
    """Its source at each of several steps: (B, ...) to (B, times, ...).

    Keras's RepeatVector, for rows of any shape.
    """

    class Conf(Settings):
        """Settings of kRepeat."""

        times: Steps = required("the number of steps")

    settings: Conf
    source_count = 1
    cut = Cut(gathered_because="has steps where others have features")

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

"""The pooling layer, kPooling, also by SINGA's names kCPooling and kCudnnPool."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from dsinga.job import LayerConf, PoolingConf, PoolMethod
from dsinga.layers.base import Arrays, Connection, Gradients, Layer, Output, Shape, as_text
from dsinga.layers.context import Context, RecordInfo
from dsinga.layers.window import as_images, sliding_window
from dsinga.registry import register


@register("layer", "kPooling", "kCPooling", "kCudnnPool")
class Pooling(Layer):
    """Maximum or mean over each window of an image: (B, C, H, W) to (B, C, H', W'), sizes rounded down.

    The mean divides by kh·kw, so padding counts as zeros; padding is never a maximum. With ``global_pooling`` the
    window is the whole image and the feature (B, C, 1, 1).
    """

    source_count: ClassVar[int | None] = 1
    connection: Connection | None = Connection.kOneToOne

    def __init__(self, conf: LayerConf, source_shapes: Sequence[Shape], info: RecordInfo | None = None):
        super().__init__(conf, source_shapes, info)
        settings = conf.pooling_conf or PoolingConf()
        if len(self.source_shapes[0]) == 3:
            self.connection, self.gathered_because = None, "takes images (height, width) of a single channel"
        self.window = window = sliding_window(self, settings, stride=2)
        if window.pad[0] >= window.kernel[0] or window.pad[1] >= window.kernel[1]:
            raise self.fail(
                f"a kernel of {as_text(window.kernel)} would cover nothing but padding of {as_text(window.pad)}; "
                "make pad smaller than kernel",
                settings,
                "pad",
            )
        self.takes_maximum = settings.pool is PoolMethod.MAX
        self.shape = (self.source_shapes[0][0], self.image_shape()[0], *window.outputs)

    def compute_feature(self, params: Arrays, sources: Arrays, ctx: Context) -> Output:
        kernel, stride, pad, _ = self.window
        x = as_images(sources[0])
        if self.takes_maximum:
            return Output(*ctx.ops.max_pool(x, kernel, stride, pad, ctx.training))
        return Output(ctx.ops.avg_pool(x, kernel, stride, pad))

    def compute_gradient(
        self, params: Arrays, sources: Arrays, output: Output, grad: Any, needs: Sequence[bool], ctx: Context
    ) -> Gradients:
        if not needs[0]:
            return (None,), ()
        kernel, stride, pad, _ = self.window
        x = as_images(sources[0])
        if self.takes_maximum:
            dx = ctx.ops.max_pool_grad(x, output.saved, grad, kernel, stride, pad)
        else:
            dx = ctx.ops.avg_pool_grad(x, grad, kernel, stride, pad)
        return (dx if sources[0].ndim == 4 else dx[:, 0],), ()

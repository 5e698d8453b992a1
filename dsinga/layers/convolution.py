"""The convolution layer, kConvolution, also by SINGA's names kCConvolution and kCudnnConv."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from dsinga.job import LayerConf
from dsinga.layers.base import Arrays, Connection, Gradients, Layer, Output, ParamSpec, Shape
from dsinga.layers.context import Columns, Context, RecordInfo
from dsinga.layers.window import as_images, sliding_window
from dsinga.registry import register


@register("layer", "kConvolution", "kCConvolution", "kCudnnConv")
class Convolution(Layer):
    """Convolution (cross-correlation) of images (B, C, H, W) to (B, num_filters, H', W').

    The weight has SINGA's shape (num_filters, C·kh·kw), so that its checkpoints can be read; the bias is
    (num_filters,), unless ``bias_term`` is false.
    """

    source_count: ClassVar[int | None] = 1
    connection = Connection.kOneToAll

    def __init__(self, conf: LayerConf, source_shapes: Sequence[Shape], info: RecordInfo | None = None):
        super().__init__(conf, source_shapes, info)
        settings = conf.convolution_conf
        if settings is None:
            raise self.fail("needs convolution_conf { num_filters: ... kernel: ... }")
        filters, channels = settings.num_filters, self.image_shape()[0]
        if filters < 1:
            raise self.fail(f"num_filters is {filters}; give the number of its filters", settings, "num_filters")
        self.window = sliding_window(self, settings, stride=1)
        height, width = self.window.kernel
        self.kernels = (filters, channels, height, width)
        self.bias = settings.bias_term
        self.params = (ParamSpec("weight", (filters, channels * height * width)),)
        if self.bias:
            self.params += (ParamSpec("bias", (filters,)),)
        self.shape = (self.source_shapes[0][0], filters, *self.window.outputs)

    def cut_conf(self, columns: Columns) -> LayerConf:
        assert self.conf.convolution_conf is not None, self.name
        part = self.conf.convolution_conf.replace(num_filters=columns.stop - columns.start)
        return self.conf.replace(convolution_conf=part)

    def compute_feature(self, params: Arrays, sources: Arrays, ctx: Context) -> Output:
        weight, bias = params[0], params[1] if self.bias else None
        x = as_images(sources[0])
        return Output(ctx.ops.convolution(x, weight.reshape(self.kernels), bias, self.window.stride, self.window.pad))

    def compute_gradient(
        self, params: Arrays, sources: Arrays, output: Output, grad: Any, needs: Sequence[bool], ctx: Context
    ) -> Gradients:
        x, weight = as_images(sources[0]), params[0]
        dx, dw, db = ctx.ops.convolution_grad(
            x, weight.reshape(self.kernels), grad, self.window.stride, self.window.pad, needs[0], self.bias
        )
        if dx is not None and sources[0].ndim == 3:
            dx = dx[:, 0]
        dw = dw.reshape(weight.shape)
        return (dx,), (dw, db) if self.bias else (dw,)

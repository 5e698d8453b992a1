"""kConvolution and kPooling: windows that move over images."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, NamedTuple

from dsinga.job import ConvolutionConf, LayerConf, PoolingConf, PoolMethod, WindowConf
from dsinga.job.message import field_types
from dsinga.layers.base import Array, Arrays, Connection, Gradients, Layer, Output, ParamSpec, Shape, as_text
from dsinga.layers.context import Columns, Context, RecordInfo
from dsinga.ops import Pair
from dsinga.registry import register


class Window(NamedTuple):
    """Kernel, stride and pad, each (vertical, horizontal), and the output size (H', W')."""

    kernel: Pair
    stride: Pair
    pad: Pair
    outputs: Pair


def sliding_window(layer: Layer, conf: ConvolutionConf | PoolingConf, stride: int) -> Window:
    """Return the window of ``conf`` over the images of ``layer``, with a default ``stride``.

    H' = floor((H + 2·pad - kernel) / stride) + 1 for both convolution and pooling, as in SINGA (Caffe's pooling rounds
    up). Raises UserError where the window is larger than the padded image.
    """
    _, height, width = layer.image_shape()
    if isinstance(conf, PoolingConf) and conf.global_pooling:
        return _whole_image(layer, conf, (height, width))
    kernel, pad, step = conf.pair("kernel", 3), conf.pair("pad", 0), conf.pair("stride", stride)
    room = (height + 2 * pad[0], width + 2 * pad[1])
    if kernel[0] > room[0] or kernel[1] > room[1]:
        raise layer.fail(
            f"a kernel of {as_text(kernel)} does not fit images of {as_text((height, width))} padded by {as_text(pad)};"
            " make kernel smaller or pad larger",
            conf,
            "kernel",
        )
    outputs = ((room[0] - kernel[0]) // step[0] + 1, (room[1] - kernel[1]) // step[1] + 1)
    return Window(kernel, step, pad, outputs)


def _whole_image(layer: Layer, conf: PoolingConf, size: Pair) -> Window:
    fields = [name for name in field_types(WindowConf) if getattr(conf, name) is not None]
    if fields:
        raise layer.fail(
            f"global_pooling takes the whole image, {as_text(size)}, as its window; leave out {' and '.join(fields)}",
            conf,
            fields[0],
        )
    return Window(size, (1, 1), (0, 0), (1, 1))


def as_images(x: Array) -> Array:
    """Return a view of (B, H, W) as (B, 1, H, W), or (B, C, H, W) unchanged."""
    return x if x.ndim == 4 else x[:, None]


@register("layer", kConvolution=201, kCConvolution=202, kCudnnConv=250)
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


@register("layer", kPooling=207, kCPooling=208, kCudnnPool=251)
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

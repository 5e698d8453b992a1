"""kConvolution and kPooling: windows that move over images."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

from dsinga.job import LayerConf, PoolMethod
from dsinga.job.component import Settings, required, setting
from dsinga.job.limits import Count, Padding, Pixels
from dsinga.job.message import field_types
from dsinga.layers.base import Array, Arrays, Gradients, Layer, Output, Shape, as_text
from dsinga.layers.context import Context, RecordInfo
from dsinga.layers.declarations import Bfloat16, Connection, Cut, ParamSpec
from dsinga.ops import Pair
from dsinga.registry import register


class WindowConf(Settings):
    """Settings shared by convolution and pooling: a window, for both directions or each."""

    kernel: Pixels | None = setting(None, "the height and width of the window; 3 without it, kernel_x and kernel_y")
    pad: Padding | None = setting(None, "how many pixels of zeros surround an image; 0 without it, pad_x and pad_y")
    stride: Pixels | None = setting(
        None, "by how many pixels the window moves; without it, stride_x and stride_y, 1 (pooling: 2)"
    )
    kernel_x: Pixels | None = setting(None, "the width of the window; by default kernel")
    kernel_y: Pixels | None = setting(None, "the height of the window; by default kernel")
    pad_x: Padding | None = setting(None, "how many pixels of zeros are left and right of an image; by default pad")
    pad_y: Padding | None = setting(None, "how many pixels of zeros are above and below an image; by default pad")
    stride_x: Pixels | None = setting(None, "by how many pixels the window moves to the right; by default stride")
    stride_y: Pixels | None = setting(None, "by how many pixels the window moves down; by default stride")

    def pair(self, field: str, default: int) -> Pair:
        """Return (vertical, horizontal) of "kernel", "pad" or "stride"."""
        both = getattr(self, field)
        if both is not None:
            return both, both
        sides = (getattr(self, f"{field}_y"), getattr(self, f"{field}_x"))
        return tuple(default if side is None else side for side in sides)  # type: ignore[return-value]


class Window(NamedTuple):
    """Kernel, stride and pad, each (vertical, horizontal), and the output size (H', W')."""

    kernel: Pair
    stride: Pair
    pad: Pair
    outputs: Pair


def sliding_window(layer: Layer, conf: WindowConf, stride: int) -> Window:
    """Return the window of ``conf`` over the images of ``layer``, with a default ``stride``.

    H' = floor((H + 2·pad - kernel) / stride) + 1 for both convolution and pooling, as in SINGA (Caffe's pooling rounds
    up). Raises UserError where the window is larger than the padded image.
    """
    _, height, width = layer.image_shape()
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


def whole_image(layer: Layer, conf: WindowConf) -> Window:
    """Return the window that is the whole image of ``layer``; raise UserError where ``conf`` gives another one."""
    size = layer.image_shape()[1:]
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

    class Conf(WindowConf):
        """Settings of kConvolution; kernel 3, pad 0, stride 1 by default."""

        num_filters: Count = required("the number of filters")
        bias_term: bool = setting(True, "whether a bias is added; beyond SINGA")
        workspace_byte_limit: int = setting(512, "the memory for workspace; has no effect")

    settings: Conf
    source_count = 1
    cut = Cut(Connection.kOneToAll, width="num_filters")
    bf16 = Bfloat16.kFeatures
    rounds_source = rounds_gradient = True

    def __init__(self, conf: LayerConf, source_shapes: Sequence[Shape], info: RecordInfo | None = None):
        super().__init__(conf, source_shapes, info)
        settings = self.settings
        filters, channels = settings.num_filters, self.image_shape()[0]
        self.window = sliding_window(self, settings, stride=1)
        height, width = self.window.kernel
        self.kernels = (filters, channels, height, width)
        self.bias = settings.bias_term
        self.params = (ParamSpec("weight", (filters, channels * height * width)),)
        if self.bias:
            self.params += (ParamSpec("bias", (filters,)),)
        self.shape = (self.source_shapes[0][0], filters, *self.window.outputs)

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

    class Conf(WindowConf):
        """Settings of kPooling; kernel 3, pad 0, stride 2 by default."""

        pool: PoolMethod = setting(PoolMethod.MAX, "whether a window gives its maximum or its mean")
        global_pooling: bool = setting(False, "whether the window is the whole image, as in Caffe; beyond SINGA")

    settings: Conf
    source_count = 1
    cut = Cut(Connection.kOneToOne)
    bf16 = Bfloat16.kFeatures

    def __init__(self, conf: LayerConf, source_shapes: Sequence[Shape], info: RecordInfo | None = None):
        super().__init__(conf, source_shapes, info)
        settings = self.settings
        if len(self.source_shapes[0]) == 3:
            self.cut = Cut(gathered_because="takes images (height, width) of a single channel")
        window = whole_image(self, settings) if settings.global_pooling else sliding_window(self, settings, stride=2)
        self.window = window
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

    def saved_sizes(self, rows: int) -> list[int]:
        return [rows * math.prod(self.shape[1:])] if self.takes_maximum else []  # a byte for the index in the window

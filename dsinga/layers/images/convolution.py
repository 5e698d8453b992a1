"""kConvolution and kPooling: convolution and pooling of images and volumes."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from dsinga.base.registry import register
from dsinga.job import LayerConf, PoolMethod
from dsinga.job.component import required, setting
from dsinga.job.limits import Count, Pixels
from dsinga.layers.images.sliding import (
    Window,
    WindowConf,
    adaptive_taps,
    as_images,
    by_axis,
    refuse_window,
    sliding_window,
    whole_image,
    window_shape,
    window_sizes,
    window_taps,
)
from dsinga.layers.interface.checks import shape_text
from dsinga.layers.interface.context import Columns, Context, RecordInfo
from dsinga.layers.interface.declarations import Bfloat16, Connection, Cut, Keeps, ParamSpec
from dsinga.layers.interface.layer import Array, Arrays, Gradients, Layer, Output, Shape, float_bytes
from dsinga.layers.interface.region import Reach, Region
from dsinga.layers.interface.taps import Taps, combine, combine_grad, taps_of_region
from dsinga.ops import Ops
from dsinga.ops.layout import LAST, to_image
from dsinga.ops.types import Sizes

GROUPED = Cut(Connection.kOneToOne, width="num_filters", by_space=True)
GATHERED = Cut(gathered_because="takes groups of channels and gives another number", by_space=True)


@register("layer", kConvolution=201, kCConvolution=202, kCudnnConv=250)
class Convolution(Layer):
    """Convolution (cross-correlation) of images (B, C, H, W) to (B, num_filters, H', W'), also of volumes.

    Params: weight (num_filters, C·kh·kw), for volumes (num_filters, C·kd·kh·kw), and bias (num_filters,) unless
    ``bias_term`` is false.

    With ``group``, each of as many equal groups of filters reads only its group of the channels, and the weight is
    (num_filters, C/group·kh·kw). Pixels in a window are ``dilation`` pixels apart (Yu and Koltun, Multi-Scale Context
    Aggregation by Dilated Convolutions, 2016).
    """

    class Conf(WindowConf):
        """Settings of kConvolution; kernel 3, pad 0, stride 1 by default."""

        num_filters: Count = required("the number of filters")
        bias_term: bool = setting(True, "whether a bias is added; beyond SINGA")
        group: Count = setting(
            1, "into how many equal groups filters and channels are divided, as in Caffe; beyond SINGA"
        )
        dilation: Pixels | None = setting(
            None, "how many pixels apart neighbours in a window are, as in Caffe; 1 by default; beyond SINGA"
        )
        dilation_x: Pixels | None = setting(None, "how many apart they are along a row; by default dilation")
        dilation_y: Pixels | None = setting(None, "how many apart they are along a column; by default dilation")
        dilation_z: Pixels | None = setting(None, "how many apart they are along the depth; by default dilation")
        workspace_byte_limit: int = setting(512, "the memory for workspace; has no effect")

    settings: Conf
    source_count = 1
    cut = Cut(Connection.kOneToAll, width="num_filters", by_space=True)
    bf16 = Bfloat16.kFeatures
    keeps = Keeps(feature=False)
    rounds_source = rounds_gradient = True

    def __init__(self, conf: LayerConf, source_shapes: Sequence[Shape], info: RecordInfo | None = None):
        super().__init__(conf, source_shapes, info)
        settings = self.settings
        filters, (channels, *size) = settings.num_filters, window_shape(self)
        (dilation,) = window_sizes(self, settings, len(size), dilation=1)
        self.window = sliding_window(self, settings, stride=1, dilation=() if {*dilation} == {1} else dilation)
        self.groups = self.expect_equal_groups("group", channels=channels, filters=filters)
        if self.groups > 1:
            self.cut = replace(GROUPED, groups=self.groups) if channels == filters else GATHERED
        if self.is_spaced:
            self.rounds_source = self.rounds_gradient = False  # some are computed in float32
        self.kernels = (filters, channels // self.groups, *self.window.kernel)
        self.bias = settings.bias_term
        self.params = (ParamSpec("weight", (filters, math.prod(self.kernels[1:]))),)
        if self.bias:
            self.params += (ParamSpec("bias", (filters,)),)
        self.shape = (self.source_shapes[0][0], filters, *self.window.outputs)

    @property
    def is_spaced(self) -> bool:
        """Whether the layer has groups or dilation, which need other float32 kernels."""
        return self.groups > 1 or bool(self.window.dilation)

    def cut_conf(self, columns: Columns) -> LayerConf:
        conf = super().cut_conf(columns)
        if self.groups == 1:
            return conf
        settings = self.settings.replace(
            num_filters=columns.stop - columns.start,
            group=self.groups * (columns.stop - columns.start) // columns.total,
        )
        return conf.replace(**{type(settings).field: settings})

    def part(self, conf: LayerConf, source_shapes: Sequence[Shape]) -> Layer:
        """Return a worker's part of the layer; if it has one group of several, it reads that group's channels alone."""
        part = type(self)(conf, source_shapes)
        part.cut = replace(self.cut, groups=part.groups) if self.groups > 1 else part.cut
        return part

    def reach(self) -> tuple[Reach, ...] | None:
        return None if len(self.source_shapes[0]) == 3 else self.window.reach()

    def compute_feature(self, params: Arrays, sources: Arrays, ctx: Context) -> Output:
        weight, bias = params[0].reshape(self.kernels), params[1] if self.bias else None
        weight = weight if self.is_spaced else ctx.ops.as_factor(weight)
        x = self.window.extend(as_images(sources[0]), ctx.ops)
        y = self.convolve(x, weight, bias, ctx.ops)
        return Output(y, saved=weight if ctx.training else None)

    def convolve(self, x: Array, weight: Array, bias: Array | None, ops: Ops) -> Array:
        """Convolve images that already have their uneven padding."""
        if self.is_spaced:
            return ops.grouped_convolution(x, weight, bias, *self._spacing)
        return ops.convolution(x, weight, bias, self.window.stride, self.window.pad)

    @property
    def _spacing(self) -> tuple[Sizes, Sizes, Sizes, int]:
        window = self.window
        return window.stride, window.pad, window.dilation or (1,) * len(window.kernel), self.groups

    def compute_gradient(
        self, params: Arrays, sources: Arrays, output: Output, grad: Any, needs: Sequence[bool], ctx: Context
    ) -> Gradients:
        x = self.window.extend(as_images(sources[0]), ctx.ops)
        if self.is_spaced:
            dx, dw, db = ctx.ops.grouped_convolution_grad(x, output.saved, grad, *self._spacing, needs[0], self.bias)
        else:
            dx, dw, db = ctx.ops.convolution_grad(
                x, output.saved, grad, self.window.stride, self.window.pad, needs[0], self.bias
            )
        if dx is not None:
            dx = self.window.crop(dx)
            dx = dx[:, 0] if sources[0].ndim == 3 else dx
        dw = dw.reshape(params[0].shape)
        return (dx,), (dw, db) if self.bias else (dw,)

    def defer_gradient(
        self, params: Arrays, sources: Arrays, output: Output, grad: Any, needs: Sequence[bool], ctx: Context
    ) -> tuple[Sequence[Array | None], Callable[[], Sequence[Array | None]]] | None:
        if self.is_spaced or not needs[0] or sources[0].ndim != 4:
            return None
        if (sources[0].dtype == np.float32) == ctx.ops.has_bf16_features:  # the gradient would be rounded otherwise
            return None
        x, window = self.window.extend(sources[0], ctx.ops), self.window
        dx = ctx.ops.transposed_convolution(grad, output.saved, None, window.stride, window.pad, x.shape[2:])

        def compute() -> Sequence[Array | None]:
            return self.compute_gradient(params, sources, output, grad, (False,), ctx)[1]

        return (window.crop(dx),), compute

    def backward_sizes(self, rows: int) -> list[int]:
        channels, *size = window_shape(self)
        return self.window.extended_sizes(rows * channels, tuple(size))

    def region_part(self, region: Region, source_shapes: Sequence[Shape]) -> Layer:
        return window_part(self, region, source_shapes)


class RectifiedConvolution(Convolution):
    """A convolution fused with a rectifier, to save passes over memory (:mod:`dsinga.net.fusion`)."""

    bf16 = Bfloat16.kFeatures

    def convolve(self, x: Array, weight: Array, bias: Array | None, ops: Ops) -> Array:
        if self.is_spaced:
            return ops.relu(super().convolve(x, weight, bias, ops))
        return ops.rectified_convolution(x, weight, bias, self.window.stride, self.window.pad)

    def backward_sizes(self, rows: int) -> list[int]:
        return [*super().backward_sizes(rows), float_bytes(rows, self.shape)]  # the gradient where the feature is not 0

    def compute_gradient(
        self, params: Arrays, sources: Arrays, output: Output, grad: Any, needs: Sequence[bool], ctx: Context
    ) -> Gradients:
        return super().compute_gradient(params, sources, output, ctx.ops.relu_grad(output.feature, grad), needs, ctx)


def window_part(layer: Convolution | Pooling, region: Region, source_shapes: Sequence[Shape]) -> Any:
    """Return the copy of a layer that computes a worker's region; its sources are padded along the region's axes."""
    part = layer.copy_for_region(region, source_shapes)
    part.window = layer.window.in_region(region)
    return part


@register("layer", kPooling=207, kCPooling=208, kCudnnPool=251)
class Pooling(Layer):
    """Maximum or mean over each window of an image: (B, C, H, W) to (B, C, H', W'), sizes rounded down.

    - The mean divides by kh·kw, so padding counts as zeros. With ``count_include_pad`` false it divides by the number
      of pixels of the image in the window. Padding is never a maximum.
    - With ``global_pooling`` the feature is (B, C, 1, 1).
    - With ``ceil`` sizes are rounded up; a last window that ends outside the padded image only counts its part inside.
    - With ``output_size`` as many windows divide the image as evenly as possible, as PyTorch's adaptive pooling.
    - Pixels in a window are ``dilation`` pixels apart.

    Volumes become (B, C, D', H', W').
    """

    class Conf(WindowConf):
        """Settings of kPooling; kernel 3, pad 0, stride 2 by default."""

        pool: PoolMethod = setting(PoolMethod.MAX, "whether a window gives its maximum or its mean")
        global_pooling: bool = setting(False, "whether the window is the whole image, as in Caffe; beyond SINGA")
        count_include_pad: bool = setting(
            True, "whether a mean counts padding as zeros; false leaves it out, as in Keras; beyond SINGA"
        )
        ceil: bool = setting(
            False, "whether sizes are rounded up, as in Caffe and by PyTorch's ceil_mode; beyond SINGA"
        )
        dilation: Pixels | None = setting(
            None, "how many pixels apart neighbours in a window are; 1 by default; beyond SINGA"
        )
        dilation_x: Pixels | None = setting(None, "how many apart they are along a row; by default dilation")
        dilation_y: Pixels | None = setting(None, "how many apart they are along a column; by default dilation")
        dilation_z: Pixels | None = setting(None, "how many apart they are along the depth; by default dilation")
        output_size: list[Pixels] = setting(
            [], "how many windows the image is divided into, along all axes or each, in place of kernel and stride"
        )

    settings: Conf
    source_count = 1
    cut = Cut(Connection.kOneToOne, by_space=True)
    bf16 = Bfloat16.kFeatures
    keeps = Keeps(feature=False)
    taps: tuple[Taps, ...] = ()  # the points of windows that the kernels of backends do not have

    def __init__(self, conf: LayerConf, source_shapes: Sequence[Shape], info: RecordInfo | None = None):
        super().__init__(conf, source_shapes, info)
        if len(self.source_shapes[0]) == 3:
            self.cut = Cut(gathered_because="takes images (height, width) of a single channel")
        channels, *size = window_shape(self)
        self.window = window = self._make_window(tuple(size))
        if self.taps:
            self.bf16 = Bfloat16.kNothing
        is_covered = all(taps.weights.any(axis=1).all() for taps in self.taps)
        if any(pad >= kernel for pad, kernel in zip(window.pad, window.extent, strict=True)) or not is_covered:
            raise self.fail(
                f"a kernel of {shape_text(window.kernel)} would cover nothing but padding of {shape_text(window.pad)}; "
                "make pad smaller than kernel",
                field="pad",
            )
        self.takes_maximum = self.settings.pool is PoolMethod.MAX
        if self.takes_maximum:
            self.source_fill = -math.inf
        self.shape = (self.source_shapes[0][0], channels, *window.outputs)
        counts = self.settings.count_include_pad
        covered = window.pixels(tuple(size), window.pad if counts else ())
        whole = math.prod(window.kernel)
        is_whole = (counts and not self.settings.ceil) or (covered == whole).all()
        leaves_out = not (self.takes_maximum or is_whole or self.taps)
        self.factor = whole / covered if leaves_out else None  # (H', W'), of means over whole windows

    def _make_window(self, size: Sizes) -> Window:
        """Return the window over images of ``size``; set ``taps``, weights of pixels, if backends have no kernel."""
        settings = self.settings
        if settings.ceil and (settings.same or settings.global_pooling or settings.output_size):
            raise self.fail("rounds no size with same, global_pooling or output_size; leave ceil out", field="ceil")
        if settings.global_pooling:
            return whole_image(self, settings)
        if settings.output_size:
            refuse_window(self, settings, "output_size says which windows there are")
            outputs, none = by_axis(self, "output_size", 1), (0,) * len(size)
            if any(length % count for length, count in zip(size, outputs, strict=True)):
                self.taps = adaptive_taps(size, outputs)
            kernel = tuple(-(-length // count) for length, count in zip(size, outputs, strict=True))
            return Window(kernel, kernel, none, outputs)
        (dilation,) = window_sizes(self, settings, len(size), dilation=1)
        window = sliding_window(self, settings, stride=2, dilation=() if {*dilation} == {1} else dilation)
        window = window.rounded_up(size) if settings.ceil else window
        if window.dilation:
            self.taps = window_taps(window, size, settings.count_include_pad, settings.ceil)
        return window

    def reach(self) -> tuple[Reach, ...] | None:
        settings = self.settings
        is_whole = settings.global_pooling or settings.output_size or len(self.source_shapes[0]) == 3
        return None if is_whole else self.window.reach()

    def source_points(self, axis: int, start: int, stop: int) -> np.ndarray:
        if self.taps:
            return self.taps[axis - 2].needed(start, stop)
        return self.window.reach()[axis - 2].points(start, stop, self.source_shapes[0][axis])

    def compute_feature(self, params: Arrays, sources: Arrays, ctx: Context) -> Output:
        if self.taps:
            return Output(combine(as_images(sources[0]), self.taps, self.takes_maximum, ctx.ops))
        kernel, stride, pad = self.window[:3]
        if self.takes_maximum:
            x = self.window.extend(as_images(sources[0]), ctx.ops, -math.inf)
            return Output(*ctx.ops.max_pool(x, kernel, stride, pad, ctx.training))
        x = self.window.extend(as_images(sources[0]), ctx.ops)
        return Output(self._scaled(ctx.ops.avg_pool(x, kernel, stride, pad), ctx))

    def compute_gradient(
        self, params: Arrays, sources: Arrays, output: Output, grad: Any, needs: Sequence[bool], ctx: Context
    ) -> Gradients:
        if not needs[0]:
            return (None,), ()
        kernel, stride, pad = self.window[:3]
        if self.taps:
            dx = combine_grad(as_images(sources[0]), grad, self.taps, self.takes_maximum, ctx.ops)
        elif self.takes_maximum:
            x = self.window.extend(as_images(sources[0]), ctx.ops, -math.inf)
            dx = self.window.crop(ctx.ops.max_pool_grad(x, output.saved, grad, kernel, stride, pad))
        else:
            x = self.window.extend(as_images(sources[0]), ctx.ops)
            dx = self.window.crop(ctx.ops.avg_pool_grad(x, self._scaled(grad, ctx), kernel, stride, pad))
        return (dx[:, 0] if sources[0].ndim == 3 else dx,), ()

    def _scaled(self, y: Array, ctx: Context) -> Array:
        """Correct means over whole windows to means over the image's pixels in them, (B, C, H', W'), in y's layout."""
        if self.factor is None:
            return y
        factor = ctx.ops.asarray(self.factor[..., None]).astype(y.dtype)
        return to_image(y.transpose(LAST[y.ndim]) * factor)

    def saved_sizes(self, rows: int) -> list[int]:
        if self.taps or not self.takes_maximum:
            return []
        return [rows * math.prod(self.shape[1:])]  # a byte for the index in the window

    def backward_sizes(self, rows: int) -> list[int]:
        channels, *size = window_shape(self)
        return self.window.extended_sizes(rows * channels, tuple(size))

    def region_part(self, region: Region, source_shapes: Sequence[Shape]) -> Layer:
        part = window_part(self, region, source_shapes)
        if self.factor is not None:
            part.factor = region.of(self.factor, missing=2)
        part.taps = taps_of_region(self.taps, region) if self.taps else ()
        return part

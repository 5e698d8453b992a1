"""kTransposedConvolution: enlarges images or volumes by the transpose of a convolution."""

from __future__ import annotations

import copy
import math
import operator
from collections.abc import Sequence
from typing import Any

import numpy as np

from dsinga.base.registry import register
from dsinga.job import LayerConf
from dsinga.job.component import required, setting
from dsinga.job.limits import Count, Padding, Pixels
from dsinga.layers.images.convolution import GATHERED
from dsinga.layers.images.sliding import Window, WindowConf, as_images, embed, same_window, window_shape, window_sizes
from dsinga.layers.interface.checks import shape_text
from dsinga.layers.interface.context import Context, RecordInfo
from dsinga.layers.interface.declarations import Bfloat16, Connection, Cut, Keeps, ParamSpec
from dsinga.layers.interface.layer import Array, Arrays, Gradients, Layer, Output, Shape
from dsinga.layers.interface.region import FILL, Reach, Region
from dsinga.ops.layout import extents
from dsinga.ops.types import Sizes


@register("layer", kTransposedConvolution=843)
class TransposedConvolution(Layer):
    """Transposed convolution of images (B, C, H, W) to (B, num_filters, H', W'), also of volumes with a depth.

    H' = (H - 1)·stride - 2·pad + kernel + output_pad, or H·stride with ``same``. It is PyTorch's ConvTranspose2d
    (Dumoulin and Visin, A Guide to Convolution Arithmetic, 2016, 4). Params: weight (C, num_filters·kh·kw), PyTorch's
    flattened, and bias (num_filters,) unless ``bias_term`` is false.

    With ``group`` each of as many equal groups of channels makes only its group of the filters, and the weight is (C,
    num_filters/group·kh·kw). Pixels in a window are ``dilation`` pixels apart.
    """

    class Conf(WindowConf):
        """Settings of kTransposedConvolution; kernel 3, pad 0, stride 1 by default."""

        num_filters: Count = required("the number of channels of the result")
        bias_term: bool = setting(True, "whether a bias is added")
        pad: Padding | None = setting(None, "how many pixels are left out on every side of the result; 0 by default")
        pad_x: Padding | None = setting(None, "how many are left out left and right; by default pad")
        pad_y: Padding | None = setting(None, "how many are left out above and below; by default pad")
        output_pad: Padding | None = setting(
            None, "how many rows and columns the result has more, below and on the right; 0 by default, below stride"
        )
        output_pad_x: Padding | None = setting(None, "how many columns it has more; by default output_pad")
        output_pad_y: Padding | None = setting(None, "how many rows it has more; by default output_pad")
        pad_z: Padding | None = setting(None, "how many are left out before and behind, of volumes; by default pad")
        output_pad_z: Padding | None = setting(None, "how many slices it has more, of volumes; by default output_pad")
        group: Count = setting(1, "into how many equal groups channels and filters are divided")
        dilation: Pixels | None = setting(None, "how many pixels apart neighbours in a window are; 1 by default")
        dilation_x: Pixels | None = setting(None, "how many apart they are along a row; by default dilation")
        dilation_y: Pixels | None = setting(None, "how many apart they are along a column; by default dilation")
        dilation_z: Pixels | None = setting(None, "how many apart they are along the depth; by default dilation")
        same: bool = setting(False, "whether the result is stride times as large as the images, as in Keras")

    settings: Conf
    source_count = 1
    cut = Cut(Connection.kOneToAll, width="num_filters", by_space=True)
    bf16 = Bfloat16.kFeatures
    keeps = Keeps(feature=False)
    rounds_source = rounds_gradient = True
    cropped: tuple[slice, ...] | None = None  # the pixels of the result that a part of the layer computes

    def __init__(self, conf: LayerConf, source_shapes: Sequence[Shape], info: RecordInfo | None = None):
        super().__init__(conf, source_shapes, info)
        settings = self.settings
        channels, filters = window_shape(self)[0], settings.num_filters
        self.groups = self.expect_equal_groups("group", channels=channels, filters=filters)
        if self.groups > 1:
            self.cut = GATHERED
        kernel, self.dilation, self.window = self._window()
        self.kernels = (channels, filters // self.groups, *kernel)
        self.bias = settings.bias_term
        self.params = (ParamSpec("weight", (channels, math.prod(self.kernels[1:])), cut_axis=1),)
        if self.bias:
            self.params += (ParamSpec("bias", (filters,)),)
        self.shape = (self.source_shapes[0][0], filters, *self.window.outputs)

    def _window(self) -> tuple[Sizes, Sizes, Window]:
        """Return the kernel, its dilation, and the windows of the convolution that this one transposes."""
        settings, size = self.settings, window_shape(self)[1:]
        defaults = {"kernel": 3, "stride": 1, "pad": 0, "output_pad": 0, "dilation": 1}
        taps, stride, pad, more, dilation = window_sizes(self, settings, len(size), **defaults)
        kernel = extents(taps, dilation)
        if settings.same:
            if any(pad) or any(more):
                field = "pad" if any(pad) else "output_pad"
                raise self.fail(f"has both {field} and same; leave one of them out", settings, field)
            larger = tuple(map(operator.mul, size, stride))
            return taps, dilation, same_window(larger, kernel, stride)._replace(outputs=larger)
        if any(map(operator.ge, more, stride)):
            text = f"output_pad is {shape_text(more)}, but must be smaller than the stride, {shape_text(stride)}"
            raise self.fail(text, field="output_pad")
        outputs = tuple(
            (size[axis] - 1) * stride[axis] - 2 * pad[axis] + kernel[axis] + more[axis] for axis in range(len(size))
        )
        if min(outputs) < 1:
            raise self.fail(f"a pad of {shape_text(pad)} leaves nothing of the result; make pad smaller", field="pad")
        return taps, dilation, Window(kernel, stride, pad, outputs)

    def _taps(self) -> list[tuple[slice, ...]]:
        """Return where each group's weights lie among all channels and filters, with gaps."""
        channels, filters = (self.kernels[0] // self.groups, self.kernels[1])
        gaps = tuple(slice(None, None, gap) for gap in self.dilation)
        return [
            (slice(n * channels, (n + 1) * channels), slice(n * filters, (n + 1) * filters), *gaps)
            for n in range(self.groups)
        ]

    def _dense(self, weight: Array, ctx: Context) -> Array:
        """Return the weights as one group without dilation, (C, num_filters, *window), with zeros in gaps."""
        weight = weight.reshape(self.kernels)
        if self.groups == 1 and {*self.dilation} == {1}:
            return weight
        dense = ctx.ops.xp.zeros_like(weight, shape=(self.kernels[0], self.shape[1], *self.window.kernel), order="C")
        for taps in self._taps():
            dense[taps] = weight[taps[0]]
        return dense

    def _compact(self, dense: Array, like: Array, ctx: Context) -> Array:
        if self.groups > 1 or {*self.dilation} != {1}:
            dense = ctx.ops.xp.concatenate([dense[taps] for taps in self._taps()])
        return dense.reshape(like.shape)

    @property
    def _extended(self) -> Sizes:
        """The size of the result, including the pixels that ``same`` crops."""
        outputs, extra = self.window.outputs, self.window.extra
        return tuple(map(operator.add, outputs, extra)) if extra else outputs

    def reach(self) -> tuple[Reach, ...] | None:
        """Return which source pixels reach a pixel of the result, for cuts by space."""
        if len(self.source_shapes[0]) == 3:
            return None
        window = self.window
        return tuple(
            Reach(1, stride, kernel - pad - stride, pad, "edge" if kernel > stride or pad else "")
            for kernel, stride, pad in zip(window.kernel, window.stride, window.pad, strict=True)
        )

    def compute_feature(self, params: Arrays, sources: Arrays, ctx: Context) -> Output:
        weight, bias = self._dense(params[0], ctx), params[1] if self.bias else None
        _, stride, pad = self.window[:3]
        y = ctx.ops.transposed_convolution(as_images(sources[0]), weight, bias, stride, pad, self._extended)
        y = self.window.crop(y)
        return Output(y if self.cropped is None else y[self.cropped])

    def compute_gradient(
        self, params: Arrays, sources: Arrays, output: Output, grad: Any, needs: Sequence[bool], ctx: Context
    ) -> Gradients:
        _, stride, pad = self.window[:3]
        dy = grad
        if self.cropped is not None:
            dy = embed(grad, self.cropped, (len(grad), self.shape[1], *self.window.outputs), ctx.ops)
        weight, dy = self._dense(params[0], ctx), self.window.extend(dy, ctx.ops)
        dx = None
        if needs[0]:
            dx = ctx.ops.cast_like(ctx.ops.convolution(dy, weight, None, stride, pad), sources[0])
            dx = dx[:, 0] if sources[0].ndim == 3 else dx
        _, dw, _ = ctx.ops.convolution_grad(dy, weight, as_images(sources[0]), stride, pad, False, False)
        dw = self._compact(dw, params[0], ctx)
        return (dx,), (dw, ctx.ops.channel_sums(grad).astype(dw.dtype)) if self.bias else (dw,)

    def backward_sizes(self, rows: int) -> list[int]:
        return self.window.extended_sizes(rows * self.shape[1], self.window.outputs)[:1]

    def _sources(self, axis: int, start: int, stop: int) -> range:
        """Return the source pixels along an axis that reach the result's points ``start`` to ``stop`` - 1."""
        kernel, stride, pad = (sizes[axis - 2] for sizes in self.window[:3])
        first = min(-((kernel - 1 - start - pad) // stride), (start + pad) // stride)
        last = max((stop - 1 + pad) // stride, -((kernel - stop - pad) // stride))
        return range(first, last + 1)

    def source_points(self, axis: int, start: int, stop: int) -> np.ndarray:
        points = np.array(self._sources(axis, start, stop))
        return np.where((points < 0) | (points >= self.source_shapes[0][axis]), FILL, points)

    def region_part(self, region: Region, source_shapes: Sequence[Shape]) -> Layer:
        """Return a worker's part, which adds up whole kernels of its sources and crops the result to its region."""
        window = self.window.in_region(region)
        outputs, index = list(window.outputs), [slice(None)] * len(self.shape)
        for axis, (start, stop, _) in zip(region.axes, region.ranges, strict=True):
            kernel, stride, pad = (sizes[axis - 2] for sizes in self.window[:3])
            sources = self._sources(axis, start, stop)
            outputs[axis - 2] = (len(sources) - 1) * stride + kernel
            lead = start + pad - sources.start * stride
            index[axis] = slice(lead, lead + stop - start)
        part = copy.copy(self)
        part.source_shapes, part.shape = tuple(source_shapes), region.part(self.shape)
        part.window = window._replace(outputs=tuple(outputs))
        part.cropped = None if part.shape[2:] == part.window.outputs else tuple(index)
        return part

"""kTransposedConvolution: the gradient of a convolution's images as a layer, which makes images larger."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import numpy as np

from dsinga.job import LayerConf
from dsinga.job.component import required, setting
from dsinga.job.limits import Count, Padding
from dsinga.layers.base import Arrays, Gradients, Layer, Output, Shape, as_text
from dsinga.layers.context import Context, RecordInfo
from dsinga.layers.declarations import Bfloat16, Connection, Cut, ParamSpec
from dsinga.layers.region import FILL, Region
from dsinga.layers.windows import Window, WindowConf, as_images, same_window
from dsinga.ops.types import Pair
from dsinga.registry import register


@register("layer", kTransposedConvolution=843)
class TransposedConvolution(Layer):
    """Transposed convolution of images (B, C, H, W) to (B, num_filters, H', W').

    Each pixel adds its kernels to a window of the result; H' = (H - 1)·stride - 2·pad + kernel + output_pad, or
    H·stride with ``same``. Dumoulin and Visin, A Guide to Convolution Arithmetic (2016), 4; PyTorch's ConvTranspose2d.
    The weight is (C, num_filters·kh·kw), PyTorch's flattened; the bias is (num_filters,), unless ``bias_term`` is
    false.
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
        same: bool = setting(False, "whether the result is stride times as large as the images, as in Keras")

    settings: Conf
    source_count = 1
    cut = Cut(Connection.kOneToAll, width="num_filters", by_space=True)
    bf16 = Bfloat16.kFeatures
    rounds_source = rounds_gradient = True

    def __init__(self, conf: LayerConf, source_shapes: Sequence[Shape], info: RecordInfo | None = None):
        super().__init__(conf, source_shapes, info)
        settings = self.settings
        channels, filters = self.image_shape()[0], settings.num_filters
        self.window = self._window()
        height, width = self.window.kernel
        self.kernels = (channels, filters, height, width)
        self.bias = settings.bias_term
        self.params = (ParamSpec("weight", (channels, filters * height * width), cut_axis=1),)
        if self.bias:
            self.params += (ParamSpec("bias", (filters,)),)
        self.shape = (self.source_shapes[0][0], filters, *self.window.outputs)

    def _window(self) -> Window:
        """Return the windows of the convolution whose images are the result, ``outputs`` being the result's size."""
        settings, size = self.settings, self.image_shape()[1:]
        kernel, stride = settings.pair("kernel", 3), settings.pair("stride", 1)
        pad, more = settings.pair("pad", 0), settings.pair("output_pad", 0)
        if settings.same:
            field = next((name for name in ("pad", "output_pad") if settings.pair(name, 0) != (0, 0)), None)
            if field:
                raise self.fail(f"has both {field} and same; leave one of them out", settings, field)
            larger = (size[0] * stride[0], size[1] * stride[1])
            return same_window(larger, kernel, stride)._replace(outputs=larger)
        if more[0] >= stride[0] or more[1] >= stride[1]:
            text = f"output_pad is {as_text(more)}, but must be smaller than the stride, {as_text(stride)}"
            raise self.fail(text, settings, "output_pad")
        outputs = tuple((size[axis] - 1) * stride[axis] - 2 * pad[axis] + kernel[axis] + more[axis] for axis in (0, 1))
        if min(outputs) < 1:
            raise self.fail(f"a pad of {as_text(pad)} leaves nothing of the result; make pad smaller", settings, "pad")
        return Window(kernel, stride, pad, (outputs[0], outputs[1]))

    @property
    def _extended(self) -> Pair:
        """The size of the result with the pixels that ``same``, or the part of a layer cut by space, crops."""
        (height, width), extra, lead = self.window.outputs, self.window.extra, self.window.lead
        return lead[0] + height + extra[0], lead[1] + width + extra[1]

    def compute_feature(self, params: Arrays, sources: Arrays, ctx: Context) -> Output:
        weight, bias = params[0].reshape(self.kernels), params[1] if self.bias else None
        _, stride, pad = self.window[:3]
        y = ctx.ops.transposed_convolution(as_images(sources[0]), weight, bias, stride, pad, self._extended)
        return Output(self.window.crop(y))

    def compute_gradient(
        self, params: Arrays, sources: Arrays, output: Output, grad: Any, needs: Sequence[bool], ctx: Context
    ) -> Gradients:
        _, stride, pad = self.window[:3]
        weight, dy = params[0].reshape(self.kernels), self.window.extend(grad, ctx.ops)
        dx = None
        if needs[0]:
            dx = ctx.ops.cast_like(ctx.ops.convolution(dy, weight, None, stride, pad), sources[0])
            dx = dx if sources[0].ndim == 4 else dx[:, 0]
        _, dw, _ = ctx.ops.convolution_grad(dy, weight, as_images(sources[0]), stride, pad, False, False)
        dw = dw.reshape(params[0].shape)
        return (dx,), (dw, ctx.ops.channel_sums(grad).astype(dw.dtype)) if self.bias else (dw,)

    def backward_sizes(self, rows: int) -> list[int]:
        return self.window.extended_sizes(rows * self.shape[1], self.window.outputs)[:1]

    def _sources(self, axis: int, start: int, stop: int) -> range:
        """Return the rows (``axis`` 0) or columns (1) whose kernels cover the result's from ``start`` to ``stop`` - 1.

        They may lie beyond the images.
        """
        kernel, stride, pad = (pair[axis] for pair in self.window[:3])
        first = min(-((kernel - 1 - start - pad) // stride), (start + pad) // stride)
        last = max((stop - 1 + pad) // stride, -((kernel - stop - pad) // stride))
        return range(first, last + 1)

    def source_points(self, axis: int, start: int, stop: int) -> np.ndarray:
        points = np.array(self._sources(axis - 2, start, stop))
        return np.where((points < 0) | (points >= self.source_shapes[0][axis]), FILL, points)

    def region_part(self, region: Region, source_shapes: Sequence[Shape]) -> Layer:
        """Return a part that adds up whole kernels of its sources, and crops the result to the region."""
        fields = {name: list(getattr(self.window, name)) for name in ("pad", "outputs", "extra", "lead")}
        for axis, (start, stop, _) in zip(region.axes, region.ranges, strict=True):
            image, sources = axis - 2, self._sources(axis - 2, start, stop)
            kernel, stride, pad = (pair[image] for pair in self.window[:3])
            lead = start + pad - sources.start * stride
            size = (len(sources) - 1) * stride + kernel
            values = {"pad": 0, "outputs": stop - start, "lead": lead, "extra": size - lead - (stop - start)}
            for name, value in values.items():
                fields[name][image] = value
        part = copy.copy(self)
        part.source_shapes, part.shape = tuple(source_shapes), region.part(self.shape)
        part.window = self.window._replace(**{name: tuple(pair) for name, pair in fields.items()})
        return part

"""Grouped and dilated convolutions by cuDNN where it has a plan, else group by group by products of spread filters.

The library finds the groups in the shapes: filters take a part of the channels. Convolutions of volumes are computed
group by group. Images are float32 in every precision; in kBF16 products of volumes round their factors.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from dsinga.addons.gpu.cupy.arrays import by_channel, cast, empty_image, real, to_rows
from dsinga.addons.gpu.cupy.convolution import Shapes, as_filters, with_bias
from dsinga.addons.gpu.cupy.cudnn_choice import PRODUCTS
from dsinga.addons.gpu.cupy.cudnn_graphs import ConvolutionProblem, Direction
from dsinga.addons.gpu.cupy.library import cupy
from dsinga.addons.gpu.cupy.products import column_sums
from dsinga.addons.gpu.cupy.volumes import CupyVolumeConvolution
from dsinga.ops.layout import extents, output_sizes
from dsinga.ops.types import FLOAT32, Array, Sizes

OfGroup = Callable[[Shapes, Array, Array], Array]  # from the shapes of a group, and two of x, w and dy, in this order


class CupyGroupedConvolution(CupyVolumeConvolution):
    """Convolutions with groups of channels, or with gaps between the pixels of a window, and those without."""

    def grouped_convolution(
        self, x: Array, w: Array, b: Array | None, stride: Sizes, pad: Sizes, dilation: Sizes, groups: int
    ) -> Array:
        outputs = output_sizes(x.shape, extents(w.shape[2:], dilation), stride, pad)
        shapes = x.shape, w.shape, (x.shape[0], w.shape[0], *outputs), stride, pad
        x = cast(x, real(x.dtype))
        if x.ndim == 5:

            def convolve(_: Shapes, x: Array, w: Array) -> Array:
                return cast(self.convolution(x, w, None, stride, pad), x.dtype)  # bf16 rounds them

            return with_bias(_by_group("fprop", shapes, dilation, groups, x, w, convolve), b)
        return with_bias(self._by_plan("fprop", shapes, dilation, groups, x, w), b)

    def grouped_convolution_grad(
        self, x: Array, w: Array, dy: Array, stride: Sizes, pad: Sizes, dilation: Sizes, groups: int, need_dx: bool,
        need_db: bool,
    ) -> tuple[Array | None, Array, Array | None]:  # fmt: skip
        shapes, dtype = (x.shape, w.shape, dy.shape, stride, pad), x.dtype
        x, dy = cast(x, real(dtype)), cast(dy, real(dy.dtype))
        db = column_sums(by_channel(dy), rounded=dy.dtype) if need_db else None
        if x.ndim == 4:
            dw = as_filters(self._by_plan("wgrad", shapes, dilation, groups, x, dy))
            dx = self._by_plan("dgrad", shapes, dilation, groups, w, dy) if need_dx else None
            return None if dx is None else cast(dx, dtype), dw, db

        def filters_gradient(part: Shapes, x: Array, dy: Array) -> Array:
            return self.convolution_grad(x, cupy.empty(part[1], dy.dtype), dy, stride, pad, False, False)[1]

        def images_gradient(part: Shapes, w: Array, dy: Array) -> Array:
            return cast(self.transposed_convolution(dy, w, None, stride, pad, part[0][2:]), dy.dtype)

        dw = _by_group("wgrad", shapes, dilation, groups, x, dy, filters_gradient)
        dx = _by_group("dgrad", shapes, dilation, groups, w, dy, images_gradient) if need_dx else None
        return None if dx is None else cast(dx, dtype), dw, db

    def _by_plan(
        self, direction: Direction, shapes: Shapes, dilation: Sizes, groups: int, left: Array, right: Array
    ) -> Array:
        """Return a convolution of images by a plan of cuDNN, or by products of each group."""

        def products() -> Array:
            def multiply(part: Shapes, left: Array, right: Array) -> Array:
                return self._by_products(direction, part, left, right)

            return _by_group(direction, shapes, dilation, groups, left, right, multiply)

        if left.dtype != FLOAT32 or not (left.size and right.size):
            return products()
        x, w, y, stride, pad = shapes
        problem = ConvolutionProblem(direction, x, w, y, (*stride,), (*pad,), dilation=(*dilation,))
        return self.plans.compute(problem, lambda: [to_rows(left), to_rows(right)], {PRODUCTS: products})


def _by_group(
    direction: Direction, shapes: Shapes, dilation: Sizes, groups: int, left: Array, right: Array, compute: OfGroup
) -> Array:
    """Return a convolution whose groups are computed one by one, by filters with zeros in the gaps of windows."""
    x, w, y, stride, pad = shapes
    spread = (w[0] // groups, w[1], *extents(w[2:], dilation))
    taps = (slice(None), slice(None), *(slice(None, None, gap) for gap in dilation))
    part = (x[0], w[1], *x[2:]), spread, (y[0], spread[0], *y[2:]), stride, pad
    if direction == "wgrad":
        result = cupy.empty(w, left.dtype)
    else:
        result = empty_image(y if direction == "fprop" else x, left.dtype)
    for of_x, of_w in _groups(w[1], spread[0], groups):
        if direction == "wgrad":
            result[of_w] = compute(part, left[:, of_x], right[:, of_w])[taps]
            continue
        filters = cupy.zeros(spread, left.dtype)
        if direction == "fprop":
            filters[taps] = right[of_w]
            result[:, of_w] = compute(part, left[:, of_x], filters)
        else:
            filters[taps] = left[of_w]
            result[:, of_x] = compute(part, filters, right[:, of_w])
    return result


def _groups(channels: int, filters: int, groups: int) -> Iterator[tuple[slice, slice]]:
    """Yield the channels and the filters of each group."""
    for group in range(groups):
        yield slice(group * channels, (group + 1) * channels), slice(group * filters, (group + 1) * filters)

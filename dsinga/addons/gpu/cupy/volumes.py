"""Convolution and pooling of volumes (B, C, D, H, W) by the kernels of images; grouped and dilated convolutions.

A convolution is the sum over its kernel's depths of convolutions of the slices that each depth meets. A pooling pools
all slices, then along the depth of images (B, C, D, H'·W').

Images are float32 in every precision; in kBF16 products of volumes round their factors.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from math import prod
from typing import Any

from dsinga.addons.gpu.cupy.arrays import by_channel, cast, empty_image, real, to_rows
from dsinga.addons.gpu.cupy.convolution import CupyConvolution, CupyPooling, Shapes, as_filters, with_bias
from dsinga.addons.gpu.cupy.cudnn_choice import PRODUCTS
from dsinga.addons.gpu.cupy.cudnn_graphs import ConvolutionProblem, Direction
from dsinga.addons.gpu.cupy.library import cupy
from dsinga.addons.gpu.cupy.products import column_sums
from dsinga.ops.layout import extents, output_sizes, to_image
from dsinga.ops.types import BFLOAT16, FLOAT32, Array, Sizes


def meetings(size: int, outputs: int, kernel: int, stride: int, pad: int) -> Iterator[tuple[int, slice, slice]]:
    """Yield each depth of the kernel, the volume's slices that it covers, and the slices of the result to add to."""
    for depth in range(kernel):
        first = max(0, -(-(pad - depth) // stride))
        last = min(outputs - 1, (size - 1 + pad - depth) // stride)
        if first <= last:
            start = first * stride + depth - pad
            yield depth, slice(start, start + (last - first) * stride + 1, stride), slice(first, last + 1)


def as_images(rows: Array, part: slice = slice(None)) -> Array:
    """Return slices of volumes (B, D, H, W, C) as images (B·n, C, H, W)."""
    rows = rows[:, part]
    return to_image(rows.reshape(rows.shape[0] * rows.shape[1], *rows.shape[2:]))


def as_volumes(images: Array, depth: int) -> Array:
    """Return images (B·D, C, H, W) as rows of volumes (B, D, H, W, C) of ``depth`` slices."""
    rows = to_rows(images)
    return rows.reshape(rows.shape[0] // depth, depth, *rows.shape[1:])


def as_columns(volumes: Array) -> Array:
    """Return volumes (B, C, D, H, W) as images (B, C, D, H·W), with depth as their height."""
    rows = to_rows(volumes)
    return to_image(rows.reshape(*rows.shape[:2], rows.shape[2] * rows.shape[3], rows.shape[4]))


def from_columns(images: Array, sizes: Sizes) -> Array:
    """Undo :func:`as_columns`: return images (B, C, D, H·W) as volumes of ``sizes`` (D, H, W)."""
    return to_image(to_rows(images).reshape(images.shape[0], *sizes, images.shape[1]))


class CupyVolumeConvolution(CupyConvolution):
    """Convolutions of volumes and images, by the kernels of images."""

    def convolution(self, x: Array, w: Array, b: Array | None, stride: Sizes, pad: Sizes) -> Array:
        if x.ndim == 4:
            return super().convolution(x, w, b, stride, pad)
        outputs = output_sizes(x.shape, w.shape[2:], stride, pad)
        y = empty_image((x.shape[0], w.shape[0], *outputs), real(x.dtype))
        y[...] = 0 if b is None else b.reshape(-1, 1, 1, 1)
        rows, sums = to_rows(x), to_rows(y)
        for depth, part, target in meetings(x.shape[2], outputs[0], w.shape[2], stride[0], pad[0]):
            image = super().convolution(as_images(rows, part), w[:, :, depth], None, stride[1:], pad[1:])
            slices = sums[:, target]
            slices += as_volumes(cast(image, y.dtype), slices.shape[1])
        return cast(y, BFLOAT16) if self.blas.bf16 else y

    def rectified_convolution(self, x: Array, w: Array, b: Array | None, stride: Sizes, pad: Sizes) -> Array:
        if x.ndim == 4:
            return super().rectified_convolution(x, w, b, stride, pad)
        return self.relu(self.convolution(x, w, b, stride, pad))

    def convolution_grad(
        self, x: Array, w: Array, dy: Array, stride: Sizes, pad: Sizes, need_dx: bool, need_db: bool
    ) -> tuple[Array | None, Array, Array | None]:
        if x.ndim == 4:
            return super().convolution_grad(x, w, dy, stride, pad, need_dx, need_db)
        rows, dy_rows, dw = to_rows(x), to_rows(dy), cupy.zeros(w.shape, real(w.dtype))
        dx = cupy.zeros(rows.shape, real(x.dtype)) if need_dx else None
        for depth, part, target in meetings(x.shape[2], dy.shape[2], w.shape[2], stride[0], pad[0]):
            images, outputs = as_images(rows, part), as_images(dy_rows, target)
            gradients = super().convolution_grad(images, w[:, :, depth], outputs, stride[1:], pad[1:], need_dx, False)
            dw[:, :, depth] = gradients[1]
            if dx is not None:
                slices = dx[:, part]
                slices += as_volumes(cast(gradients[0], dx.dtype), slices.shape[1])
        db = column_sums(by_channel(dy), rounded=real(dy.dtype)) if need_db else None
        return None if dx is None else cast(to_image(dx), x.dtype), dw, db

    def transposed_convolution(
        self, x: Array, w: Array, b: Array | None, stride: Sizes, pad: Sizes, size: Sizes
    ) -> Array:
        if x.ndim == 4:
            return super().transposed_convolution(x, w, b, stride, pad, size)
        y = empty_image((x.shape[0], w.shape[1], *size), real(x.dtype))
        y[...] = 0 if b is None else b.reshape(-1, 1, 1, 1)
        rows, sums = to_rows(x), to_rows(y)
        for depth, target, part in meetings(size[0], x.shape[2], w.shape[2], stride[0], pad[0]):
            images = as_images(rows, part)
            image = super().transposed_convolution(images, w[:, :, depth], None, stride[1:], pad[1:], size[1:])
            slices = sums[:, target]
            slices += as_volumes(cast(image, y.dtype), slices.shape[1])
        return cast(y, BFLOAT16) if self.blas.bf16 else y


class CupyVolumePooling(CupyPooling):
    """Pools images and volumes; the workspace of volumes has both passes' workspaces, and the slices' maxima."""

    def max_pool(self, x: Array, kernel: Sizes, stride: Sizes, pad: Sizes, train: bool) -> tuple[Array, Any]:
        if x.ndim == 4:
            return super().max_pool(x, kernel, stride, pad, train)
        outputs = output_sizes(x.shape, kernel, stride, pad)
        slices, inner = super().max_pool(as_images(to_rows(x)), kernel[1:], stride[1:], pad[1:], train)
        columns = as_columns(to_image(as_volumes(slices, x.shape[2])))
        y, outer = super().max_pool(columns, *along_depth(kernel, stride, pad), train)
        return from_columns(y, outputs), (inner, outer, columns) if train else None

    def max_pool_grad(self, x: Array, workspace: Any, dy: Array, kernel: Sizes, stride: Sizes, pad: Sizes) -> Array:
        if x.ndim == 4:
            return super().max_pool_grad(x, workspace, dy, kernel, stride, pad)
        inner, outer, columns = workspace
        sizes = x.shape[2], *dy.shape[3:]
        depth = super().max_pool_grad(columns, outer, as_columns(dy), *along_depth(kernel, stride, pad))
        images = as_images(to_rows(from_columns(depth, sizes)))
        slices = as_images(to_rows(x))
        dx = super().max_pool_grad(slices, inner, images, kernel[1:], stride[1:], pad[1:])
        return to_image(as_volumes(dx, x.shape[2]))

    def avg_pool(self, x: Array, kernel: Sizes, stride: Sizes, pad: Sizes) -> Array:
        if x.ndim == 4:
            return super().avg_pool(x, kernel, stride, pad)
        if x.dtype == BFLOAT16:  # rounded once, after both means
            return cast(self.avg_pool(cast(x, FLOAT32), kernel, stride, pad), BFLOAT16)
        slices = super().avg_pool(as_images(to_rows(x)), kernel[1:], stride[1:], pad[1:])
        columns = as_columns(to_image(as_volumes(slices, x.shape[2])))
        y = super().avg_pool(columns, *along_depth(kernel, stride, pad))
        return from_columns(y, output_sizes(x.shape, kernel, stride, pad))

    def avg_pool_grad(self, x: Array, dy: Array, kernel: Sizes, stride: Sizes, pad: Sizes) -> Array:
        if x.ndim == 4:
            return super().avg_pool_grad(x, dy, kernel, stride, pad)
        if x.dtype == BFLOAT16:
            return cast(self.avg_pool_grad(cast(x, FLOAT32), cast(dy, FLOAT32), kernel, stride, pad), BFLOAT16)
        sizes = x.shape[2], *dy.shape[3:]
        columns = empty_image((*x.shape[:2], sizes[0], prod(sizes[1:])), x.dtype)
        depth = super().avg_pool_grad(columns, as_columns(dy), *along_depth(kernel, stride, pad))
        images = as_images(to_rows(from_columns(depth, sizes)))
        dx = super().avg_pool_grad(as_images(to_rows(x)), images, kernel[1:], stride[1:], pad[1:])
        return to_image(as_volumes(dx, x.shape[2]))


def along_depth(kernel: Sizes, stride: Sizes, pad: Sizes) -> tuple[Sizes, Sizes, Sizes]:
    """Return the kernel, stride and pad along the depth."""
    return (kernel[0], 1), (stride[0], 1), (pad[0], 0)


OfGroup = Callable[[Shapes, Array, Array], Array]  # from the shapes of a group, and two of x, w and dy, in this order


class CupyGroupedConvolution(CupyVolumeConvolution):
    """Convolutions with groups of channels or dilated windows, and ordinary ones."""

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
    for group in range(groups):
        yield slice(group * channels, (group + 1) * channels), slice(group * filters, (group + 1) * filters)

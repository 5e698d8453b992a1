"""Pooling, and convolution by cuDNN if it has a plan, else by matrix products (im2col, cuBLAS).

dsinga's kernel (filters.cu) computes gradients of 3 x 3 filters for few channels.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from dsinga.addons.gpu.cupy.arrays import by_channel, cast, contiguous, empty_image, real, to_rows
from dsinga.addons.gpu.cupy.cudnn_choice import PRODUCTS, SEPARATE
from dsinga.addons.gpu.cupy.cudnn_graphs import ConvolutionProblem, Direction
from dsinga.addons.gpu.cupy.cudnn_plans import ConvolutionPlans
from dsinga.addons.gpu.cupy.library import Source, cupy
from dsinga.addons.gpu.cupy.products import Blas, ChannelSums, column_sums
from dsinga.ops.interface import Ops
from dsinga.ops.layout import output_sizes, to_image
from dsinga.ops.types import BFLOAT16, FLOAT32, Array, Sizes

_filters = Source("filters")
_PAIRS = 16  # channels and outputs of a block, as in filters.cu
_SHARED = 48 * 1024  # bytes that a block has
_BLOCKS = 528  # four for each multiprocessor of a large GPU
_ROWS = 4  # of a band


def has_direct_gradients(x: tuple[int, ...], w: tuple[int, ...], stride: Sizes, pad: Sizes) -> bool:
    """Whether :func:`filter_gradients` supports filters ``w`` for images of this shape."""
    is_3x3 = (*w[2:], *stride, *pad) == (3, 3, 1, 1, 1, 1)
    return is_3x3 and not (w[0] % _PAIRS or w[1] % _PAIRS) and _shared(1, x[3]) <= _SHARED


def filter_gradients(x: Array, dy: Array) -> Array:
    """Compute the gradient (F, C, 3, 3) of filters for images x (B, C, H, W) and dy (B, F, H, W), float32."""
    (batch, channels, height, width), filters = x.shape, dy.shape[1]
    rows = next(rows for rows in (_ROWS, 2, 1) if _shared(rows, width) <= _SHARED)
    rows = min(rows, height)
    bands, tiles = batch * -(-height // rows), channels // _PAIRS * (filters // _PAIRS)
    stretch = -(-bands // max(1, min(bands, _BLOCKS // tiles)))
    blocks = -(-bands // stretch)
    partial, dw = (
        cupy.empty((blocks, filters * channels * 9), np.float32),
        cupy.empty((filters, channels, 3, 3), np.float32),
    )
    arguments = to_rows(x), to_rows(dy), partial, height, width, channels, filters, rows, bands, stretch
    _filters.grid("filter_gradients", x.dtype, (tiles, blocks), *arguments, shared=_shared(rows, width))
    sums = ChannelSums(*partial.shape)
    totals = sums.partial("sums_of", partial.dtype, partial)
    _filters.each("add_rows_of", dw.dtype, dw.size, totals, dw, totals.shape[1])
    return dw


def _shared(rows: int, width: int) -> int:
    return 4 * _PAIRS * ((rows + 2) * (width + 2) + rows * width)


windows = Source("windows")


def geometry(x: tuple[int, ...], outputs: tuple[int, ...], kernel: Sizes, stride: Sizes, pad: Sizes) -> tuple[int, ...]:
    """Return the arguments of the macro ``WINDOWS`` for an image shape (B, C, H, W) and windows."""
    return (x[2], x[3], x[1], *outputs, *kernel, *stride, *pad)


class CupyPooling(Ops):
    """Maximum and mean over windows; the workspace has each maximum's position in its window."""

    def max_pool(self, x: Array, kernel: Sizes, stride: Sizes, pad: Sizes, train: bool) -> tuple[Array, Any]:
        outputs = output_sizes(x.shape, kernel, stride, pad)
        y = empty_image((*x.shape[:2], *outputs), x.dtype)
        winners = cupy.empty((x.shape[0], *outputs, x.shape[1]), np.uint16) if train else None
        sizes = geometry(x.shape, outputs, kernel, stride, pad)
        windows.each("max_pool", x.dtype, y.size, to_rows(x), y, winners, *sizes)
        return y, winners

    def max_pool_grad(self, x: Array, workspace: Any, dy: Array, kernel: Sizes, stride: Sizes, pad: Sizes) -> Array:
        dx, sizes = empty_image(x.shape, x.dtype), geometry(x.shape, dy.shape[2:], kernel, stride, pad)
        windows.each("max_pool_grad", x.dtype, dx.size, workspace, to_rows(cast(dy, x.dtype)), dx, *sizes)
        return dx

    def avg_pool(self, x: Array, kernel: Sizes, stride: Sizes, pad: Sizes) -> Array:
        outputs = output_sizes(x.shape, kernel, stride, pad)
        y = empty_image((*x.shape[:2], *outputs), x.dtype)
        windows.each("avg_pool", x.dtype, y.size, to_rows(x), y, *geometry(x.shape, outputs, kernel, stride, pad))
        return y

    def avg_pool_grad(self, x: Array, dy: Array, kernel: Sizes, stride: Sizes, pad: Sizes) -> Array:
        dx, sizes = empty_image(x.shape, x.dtype), geometry(x.shape, dy.shape[2:], kernel, stride, pad)
        windows.each("avg_pool_grad", x.dtype, dx.size, to_rows(cast(dy, x.dtype)), dx, *sizes)
        return dx


_elementwise = Source("elementwise")
Shapes = tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...], Sizes, Sizes]


class CupyConvolution(Ops):
    """Convolutions of channels-last images; filters are copied to channels-last memory once a pass.

    In bf16, images and filters are bfloat16, gradients of filters float32.
    """

    blas: Blas
    plans: ConvolutionPlans

    def as_factor(self, w: Array) -> Array:
        if not self.blas.bf16 or w.dtype != FLOAT32:
            return w
        if w.ndim != 4 or not w.flags.c_contiguous:
            return cast(w, BFLOAT16)
        rows = cupy.empty((w.shape[0], *w.shape[2:], w.shape[1]), BFLOAT16)
        sizes = w.shape[1], w.shape[2] * w.shape[3]
        _elementwise.each("filters_to_bfloat16", w.dtype, w.size, w, rows, *sizes)
        return to_image(rows)

    def convolution(self, x: Array, w: Array, b: Array | None, stride: Sizes, pad: Sizes) -> Array:
        return self._convolve(x, w, b, stride, pad, False)

    def rectified_convolution(self, x: Array, w: Array, b: Array | None, stride: Sizes, pad: Sizes) -> Array:
        return self._convolve(x, w, b, stride, pad, True)

    def _convolve(self, x: Array, w: Array, b: Array | None, stride: Sizes, pad: Sizes, relu: bool) -> Array:
        x, w = self._image_factor(x), self.as_factor(w)
        outputs = output_sizes(x.shape, w.shape[2:], stride, pad)
        shapes = x.shape, w.shape, (x.shape[0], w.shape[0], *outputs), stride, pad

        def separate() -> Array:
            y = with_bias(self._compute("fprop", shapes, x, w), b)
            return self.relu(y) if relu else y

        if b is None or x.dtype != BFLOAT16 or not (x.size and w.size):
            return separate()
        problem = ConvolutionProblem("fprop", *shapes[:3], (*stride,), (*pad,), True, bias=True, relu=relu)
        if not self.plans.knows(problem):
            separate()  # its plan must be known before it is timed as a candidate
        bias = contiguous(b, FLOAT32)
        return self.plans.compute(problem, lambda: [to_rows(x), to_rows(w), bias], {SEPARATE: separate})

    def convolution_grad(
        self, x: Array, w: Array, dy: Array, stride: Sizes, pad: Sizes, need_dx: bool, need_db: bool
    ) -> tuple[Array | None, Array, Array | None]:
        shapes, dtype = (x.shape, w.shape, dy.shape, stride, pad), x.dtype
        x, w, dy = self._image_factor(x), self.as_factor(w), to_image(to_rows(self._image_factor(dy)))
        dw = self._compute("wgrad", shapes, x, dy)
        dx = self._compute("dgrad", shapes, w, dy) if need_dx else None
        db = column_sums(by_channel(dy), rounded=real(dy.dtype)) if need_db else None
        return None if dx is None else cast(dx, dtype), as_filters(dw), db

    def transposed_convolution(
        self, x: Array, w: Array, b: Array | None, stride: Sizes, pad: Sizes, size: Sizes
    ) -> Array:
        x, w = self._image_factor(x), self.as_factor(w)
        y = self._compute("dgrad", ((x.shape[0], w.shape[1], *size), w.shape, x.shape, stride, pad), w, x)
        return with_bias(y, b)

    def _image_factor(self, x: Array) -> Array:
        return cast(x, BFLOAT16) if self.blas.bf16 else x

    def _compute(self, direction: Direction, shapes: Shapes, left: Array, right: Array) -> Array:
        """Compute a convolution, or one of its gradients, from two of x, w and dy, in this order."""

        def products() -> Array:
            return self._by_products(direction, shapes, left, right)

        if left.dtype not in (FLOAT32, BFLOAT16) or not (left.size and right.size):
            return products()
        (x, w, y, stride, pad), others = shapes, {PRODUCTS: products}
        if direction == "wgrad" and not self.blas.bf16 and has_direct_gradients(x, w, stride, pad):
            others["direct"] = lambda: filter_gradients(left, right)
        problem = ConvolutionProblem(direction, x, w, y, (*stride,), (*pad,), self.blas.bf16)
        return self.plans.compute(problem, lambda: [to_rows(left), to_rows(right)], others)

    def _by_products(self, direction: Direction, shapes: Shapes, left: Array, right: Array) -> Array:
        x, w, y, stride, pad = shapes
        if direction == "fprop":
            result = empty_image(y, left.dtype)
            self.blas.multiply(_to_columns(left, w, y, stride, pad), _matrix(right).T, by_channel(result))
            return result
        if direction == "wgrad":
            product = self.blas.multiply(by_channel(right).T, _to_columns(left, w, y, stride, pad))
            return product.reshape(w[0], *w[2:], w[1]).transpose(0, 3, 1, 2)
        if is_pixelwise(w, stride, pad):
            result = empty_image(x, left.dtype)
            self.blas.multiply(by_channel(right), _matrix(left), by_channel(result))
            return result
        dx, columns = empty_image(x, left.dtype), self.blas.multiply(by_channel(right), _matrix(left))
        sizes = geometry(x, y[2:], (w[2], w[3]), stride, pad)
        windows.each("from_columns", dx.dtype, dx.size, columns, dx, *sizes)
        return dx


def with_bias(y: Array, b: Array | None) -> Array:
    """Add a bias to each row of a new image in place; return it."""
    if b is not None:
        _elementwise.each("add_rows", y.dtype, y.size, contiguous(b, real(y.dtype)), y, y.shape[1])
    return y


def as_filters(dw: Array) -> Array:
    """Copy gradients of filters (F, C, kh, kw) to C-contiguous memory, float32 or float64."""
    if dw.flags.c_contiguous or dw.dtype not in (FLOAT32, BFLOAT16):
        return contiguous(dw, real(dw.dtype))
    result = cupy.empty(dw.shape, FLOAT32)
    sizes = dw.shape[1], dw.shape[2] * dw.shape[3]
    _elementwise.each("filters_from_rows", dw.dtype, dw.size, to_rows(dw), result, *sizes)
    return result


def _matrix(w: Array) -> Array:
    return to_rows(w).reshape(w.shape[0], w.shape[2] * w.shape[3] * w.shape[1])


def is_pixelwise(w: tuple[int, ...], stride: Sizes, pad: Sizes) -> bool:
    """Whether each window is one pixel, and each pixel one window."""
    return (*w[2:], *stride, *pad) == (1, 1, 1, 1, 0, 0)


def _to_columns(x: Array, w: tuple[int, ...], y: tuple[int, ...], stride: Sizes, pad: Sizes) -> Array:
    if is_pixelwise(w, stride, pad):
        return by_channel(x)
    columns = cupy.empty((y[0] * y[2] * y[3], w[2] * w[3] * w[1]), x.dtype)
    sizes = geometry(x.shape, y[2:], (w[2], w[3]), stride, pad)
    windows.each("to_columns", x.dtype, columns.size, to_rows(x), columns, *sizes)
    return columns

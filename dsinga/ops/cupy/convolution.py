"""Convolution by cuDNN where it has a plan, else by matrix products (im2col, cuBLAS), and pooling.

One thread computes each number of a pooling's result and adds in a fixed order.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from dsinga.ops.cupy.arrays import by_channel, contiguous, empty_image, from_channel_rows, to_rows
from dsinga.ops.cupy.cudnn_choice import PRODUCTS
from dsinga.ops.cupy.cudnn_graphs import ConvolutionProblem, Direction
from dsinga.ops.cupy.cudnn_plans import ConvolutionPlans
from dsinga.ops.cupy.filters import filter_gradients, has_direct_gradients
from dsinga.ops.cupy.library import Source, cupy
from dsinga.ops.cupy.products import Blas, column_sums, to_bfloat16
from dsinga.ops.interface import Ops
from dsinga.ops.layout import output_sizes, to_image
from dsinga.ops.types import Array, Sizes

windows = Source("windows")


def geometry(x: tuple[int, ...], outputs: tuple[int, ...], kernel: Sizes, stride: Sizes, pad: Sizes) -> tuple[int, ...]:
    """Return the arguments of the macro ``WINDOWS``, given an image shape (B, C, H, W) and windows."""
    return (x[2], x[3], x[1], *outputs, *kernel, *stride, *pad)


class CupyPooling(Ops):
    """Maximum and mean over windows; the workspace has the position of each maximum in its window."""

    def max_pool(self, x: Array, kernel: Sizes, stride: Sizes, pad: Sizes, train: bool) -> tuple[Array, Any]:
        outputs = output_sizes(x.shape, kernel, stride, pad)
        y = empty_image((*x.shape[:2], *outputs), x.dtype)
        winners = cupy.empty((x.shape[0], *outputs, x.shape[1]), np.uint16) if train else None
        sizes = geometry(x.shape, outputs, kernel, stride, pad)
        windows.each("max_pool", x.dtype, y.size, to_rows(x), y, winners, *sizes)
        return y, winners

    def max_pool_grad(self, x: Array, workspace: Any, dy: Array, kernel: Sizes, stride: Sizes, pad: Sizes) -> Array:
        dx, sizes = empty_image(x.shape, dy.dtype), geometry(x.shape, dy.shape[2:], kernel, stride, pad)
        windows.each("max_pool_grad", dy.dtype, dx.size, workspace, to_rows(dy), dx, *sizes)
        return dx

    def avg_pool(self, x: Array, kernel: Sizes, stride: Sizes, pad: Sizes) -> Array:
        outputs = output_sizes(x.shape, kernel, stride, pad)
        y = empty_image((*x.shape[:2], *outputs), x.dtype)
        windows.each("avg_pool", x.dtype, y.size, to_rows(x), y, *geometry(x.shape, outputs, kernel, stride, pad))
        return y

    def avg_pool_grad(self, x: Array, dy: Array, kernel: Sizes, stride: Sizes, pad: Sizes) -> Array:
        dx, sizes = empty_image(x.shape, dy.dtype), geometry(x.shape, dy.shape[2:], kernel, stride, pad)
        windows.each("avg_pool_grad", dy.dtype, dx.size, to_rows(dy), dx, *sizes)
        return dx


_elementwise = Source("elementwise")
Shapes = tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...], Sizes, Sizes]


class CupyConvolution(Ops):
    """Convolutions of channels-last images; filters are copied to channels-last memory during a call."""

    blas: Blas
    plans: ConvolutionPlans

    def convolution(self, x: Array, w: Array, b: Array | None, stride: Sizes, pad: Sizes) -> Array:
        shape = (x.shape[0], w.shape[0], *output_sizes(x.shape, w.shape[2:], stride, pad))
        y = self._compute("fprop", (x.shape, w.shape, shape, stride, pad), x, w)
        if b is not None:
            _elementwise.each("add_rows", y.dtype, y.size, contiguous(b, y.dtype), y, y.shape[1])
        return y

    def convolution_grad(
        self, x: Array, w: Array, dy: Array, stride: Sizes, pad: Sizes, need_dx: bool, need_db: bool
    ) -> tuple[Array | None, Array, Array | None]:
        shapes = x.shape, w.shape, dy.shape, stride, pad
        dy = to_image(to_rows(dy))  # copied, and rounded, once for all kernels below
        rounded: dict[int, Array] = {}
        dw = self._compute("wgrad", shapes, x, dy, rounded)
        dx = self._compute("dgrad", shapes, w, dy, rounded) if need_dx else None
        db = column_sums(by_channel(dy), rounded=dy.dtype) if need_db else None
        return dx, contiguous(dw), db

    def transposed_convolution(
        self, x: Array, w: Array, b: Array | None, stride: Sizes, pad: Sizes, size: Sizes
    ) -> Array:
        y = self._compute("dgrad", ((x.shape[0], w.shape[1], *size), w.shape, x.shape, stride, pad), w, x)
        if b is not None:
            _elementwise.each("add_rows", y.dtype, y.size, contiguous(b, y.dtype), y, y.shape[1])
        return y

    def _compute(
        self, direction: Direction, shapes: Shapes, left: Array, right: Array, rounded: dict[int, Array] | None = None
    ) -> Array:
        """Return a convolution of ``shapes`` x, w, y, stride and pad, given two of x, w and dy, in this order.

        ``rounded`` has the bfloat16 copies of arrays, by their id, that another call may use.
        """

        def products() -> Array:
            return self._by_products(direction, shapes, left, right)

        if left.dtype != np.float32 or not (left.size and right.size):
            return products()
        (x, w, y, stride, pad), others = shapes, {PRODUCTS: products}
        if direction == "wgrad" and not self.blas.bf16 and has_direct_gradients(x, w, stride, pad):
            others["direct"] = lambda: filter_gradients(left, right)
        problem = ConvolutionProblem(direction, x, w, y, (*stride,), (*pad,), self.blas.bf16)

        def arrays() -> list[Array]:
            if not problem.bf16:
                return [to_rows(left), to_rows(right)]
            copies = {} if rounded is None else rounded
            for array in (left, right):
                if id(array) not in copies:
                    copies[id(array)] = to_bfloat16(to_rows(array))
            return [copies[id(left)], copies[id(right)]]

        return self.plans.compute(problem, arrays, others)

    def _by_products(self, direction: Direction, shapes: Shapes, left: Array, right: Array) -> Array:
        """Return a convolution by matrix products."""
        x, w, y, stride, pad = shapes
        if direction == "fprop":
            result = empty_image(y, left.dtype)
            self.blas.multiply(_to_columns(left, w, y, stride, pad), _matrix(right).T, by_channel(result))
            return result
        if direction == "wgrad":
            product = self.blas.multiply(by_channel(right).T, _to_columns(left, w, y, stride, pad))
            return product.reshape(w[0], *w[2:], w[1]).transpose(0, 3, 1, 2)
        return _from_columns(self.blas.multiply(by_channel(right), _matrix(left)), x, w, y, stride, pad)


def _matrix(w: Array) -> Array:
    """Return filters (F, C, kh, kw) as (F, kh·kw·C)."""
    return to_rows(w).reshape(w.shape[0], w.shape[2] * w.shape[3] * w.shape[1])


def is_pixelwise(w: tuple[int, ...], stride: Sizes, pad: Sizes) -> bool:
    """Whether each window is one pixel, and each pixel a window."""
    return (*w[2:], *stride, *pad) == (1, 1, 1, 1, 0, 0)


def _to_columns(x: Array, w: tuple[int, ...], y: tuple[int, ...], stride: Sizes, pad: Sizes) -> Array:
    """Return im2col of x: (B·H'·W', kh·kw·C); x itself if each window is a pixel."""
    if is_pixelwise(w, stride, pad):
        return by_channel(x)
    columns = cupy.empty((y[0] * y[2] * y[3], w[2] * w[3] * w[1]), x.dtype)
    sizes = geometry(x.shape, y[2:], (w[2], w[3]), stride, pad)
    windows.each("to_columns", x.dtype, columns.size, to_rows(x), columns, *sizes)
    return columns


def _from_columns(
    columns: Array, x: tuple[int, ...], w: tuple[int, ...], y: tuple[int, ...], stride: Sizes, pad: Sizes
) -> Array:
    """Return col2im: for each pixel of an image of shape ``x`` the sum of its numbers in the columns."""
    if is_pixelwise(w, stride, pad):
        return from_channel_rows(columns, x)
    dx = empty_image(x, columns.dtype)
    windows.each("from_columns", dx.dtype, dx.size, columns, dx, *geometry(x, y[2:], (w[2], w[3]), stride, pad))
    return dx

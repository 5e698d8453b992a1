"""Gradients of convolution kernels as matrix products, without im2col, for shapes on which oneDNN is slow.

dw[f, c, i, j] = Σ dy[b, f, y, x]·x[b, c, s·y + i - p, t·x + j - q] over b, y, x. One product is the contribution of
output column x to kernel row i, summed over b and y. The images are copied once, not kw·kh times as in im2col.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import prod
from typing import NamedTuple

import numpy as np

from dsinga.base import buffers
from dsinga.base.buffers import address
from dsinga.ops.layout import output_sizes
from dsinga.ops.onednn.thread import sgemm, thread_state
from dsinga.ops.types import Array, Shape, Sizes

LINE = 16  # numbers in a line of the cache


class RowProduct(NamedTuple):
    """One matrix product: a kernel row with a column of outputs; offsets are in bytes from the first number."""

    rows: int
    width: int
    image_offset: int
    output_offset: int
    kernel_offset: int


class RowProducts:
    """All matrix products of a convolution's kernel gradient for at most ``records`` records, and scratch memory.

    Images are (step, ceil(H / step), n, stride): every step-th row, then the rows after them. Outputs are (1, H', n,
    stride) of W'·F numbers, a kernel is (kh, F, kw·C).
    """

    def __init__(self, x: Shape, w: Shape, stride: Sizes, pad: Sizes, records: int):
        batch, channels, *size = x
        self.records = min(batch, records)
        self.filters, _, height, width = w
        self.channels, self.size, self.window = channels, size, (height, width)
        self.stride, self.pad, self.outputs = stride, pad, output_sizes(x, w[2:], stride, pad)
        self.image_stride, self.output_stride = _odd_lines(size[1] * channels), _odd_lines(self.outputs[1] * w[0])
        self.kernel_shape = height, w[0], width * channels
        self._scratch = thread_state.packed_weights
        self._scratch.reserve(4 * sum(map(prod, self._shapes(self.records))))
        self._products: dict[int, list[RowProduct]] = {}

    def _shapes(self, count: int) -> tuple[Shape, Shape]:
        step = self.stride[0]
        images = (step, -(-self.size[0] // step), count, self.image_stride)
        return images, (1, self.outputs[0], count, self.output_stride)

    def scratch(self, count: int) -> tuple[Array, Array]:
        """Return scratch memory for images and outputs of ``count`` records, valid until the next kernel."""
        images, outputs = self._shapes(count)
        middle, end = prod(images), prod(images) + prod(outputs)
        numbers = self._scratch.array[: 4 * end].view(np.float32)
        return numbers[:middle].reshape(images), numbers[middle:].reshape(outputs)

    def products(self, count: int) -> list[RowProduct]:
        if count not in self._products:
            every = (self._product(i, x, count) for x in range(self.outputs[1]) for i in range(self.window[0]))
            self._products[count] = [product for product in every if product.rows > 0 and product.width > 0]
        return self._products[count]

    def _product(self, i: int, x: int, count: int) -> RowProduct:
        (down, right), (above, beside) = self.stride, self.pad
        first = max(0, -(-(above - i) // down))
        last = min(self.outputs[0] - 1, (self.size[0] - 1 + above - i) // down)
        row = first * down + i - above
        corner = x * right - beside
        left, end = max(0, -corner), min(self.window[1], self.size[1] - corner)
        image_row = row % down * -(-self.size[0] // down) + row // down
        return RowProduct(
            rows=(last - first + 1) * count,
            width=(end - left) * self.channels,
            image_offset=4 * (image_row * count * self.image_stride + (corner + left) * self.channels),
            output_offset=4 * (first * count * self.output_stride + x * self.filters),
            kernel_offset=4 * (i * self.filters * self.window[1] + left) * self.channels,
        )


def copy_rows(rows: Array, scratch: Array) -> int:
    """Copy rows (B, H, W, C) of images to scratch memory; return its address."""
    for source, target in _row_views(rows, scratch):
        np.copyto(target, source)  # which is noted, where a pass is recorded, by the class of the source
    return address(scratch)


def _row_views(rows: Array, scratch: Array) -> Iterator[tuple[Array, Array]]:
    """Yield the rows of each remainder of the stride, (n, B, W·C), and their place in scratch memory."""
    step, _, count, _ = scratch.shape
    numbers = rows[0, 0].size
    outermost = rows.reshape(count, len(rows[0]), numbers).swapaxes(0, 1)
    for remainder in range(min(step, len(outermost))):
        source = outermost[remainder::step]
        yield source, scratch[remainder, : len(source), :, :numbers]


def _odd_lines(numbers: int) -> int:
    """Round a row's length up to an odd number of cache lines, so that rows do not compete for the same cache sets."""
    lines = -(-numbers // LINE)
    return (lines + 1 - lines % 2) * LINE


DEPTH = 512  # terms of the sums of one product: fewer make products many, more take memory


def multiplications(x: Shape, w: Shape, stride: Sizes, pad: Sizes) -> int:
    """Return the number of multiplications in one product, to decide whether it is worth a call."""
    rows, _ = output_sizes(x, w[2:], stride, pad)
    return w[0] * w[1] * w[3] * rows * min(x[0], _records(rows))


class KernelGradient:
    """The gradient (F, C, kh, kw) for a kernel, from rows (B, H, W, C) and (B, H', W', F), by matrix products."""

    def __init__(self, x: Shape, w: Shape, stride: Sizes, pad: Sizes):
        rows, _ = output_sizes(x, w[2:], stride, pad)
        self.shape, self.row_products = w, RowProducts(x, w, stride, pad, _records(rows))

    def __call__(self, x: Array, dy: Array) -> Array:
        sums = buffers.empty(self.row_products.kernel_shape)
        sums[...] = 0
        records = self.row_products.records
        for first in range(0, len(x), records):
            self._add(x[first : first + records], dy[first : first + records], sums)
        filters, channels, height, width = self.shape
        dw = buffers.empty(self.shape)
        dw[...] = sums.reshape(height, filters, width, channels).transpose(1, 3, 0, 2)
        return dw

    def _add(self, x: Array, dy: Array, sums: Array) -> None:
        row_products = self.row_products
        images, outputs = row_products.scratch(len(x))
        x_start, dy_start, sums_start = copy_rows(x, images), copy_rows(dy, outputs), address(sums)
        for rows, width, image_offset, output_offset, kernel_offset in row_products.products(len(x)):
            sgemm(
                *(b"T", b"N", row_products.filters, width, rows, 1.0),
                *(dy_start + output_offset, row_products.output_stride),
                *(x_start + image_offset, row_products.image_stride),
                *(1.0, sums_start + kernel_offset, sums.shape[2]),
                memory=(images, outputs, sums),
            )


def _records(rows: int) -> int:
    return -(-DEPTH // rows)

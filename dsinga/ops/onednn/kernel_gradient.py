"""Gradients of convolution kernels as matrix products, where the library's own code comes near half the peak only.

dw[f, c, i, j] = Σ dy[b, f, y, x]·x[b, c, s·y + i - p, t·x + j - q] over b, y, x. One product is what row i of the
kernel owes to column x of the outputs: its sum goes over b and y, of F numbers of dy and of kw·C numbers of x, which
lie side by side in channels-last memory. In memory that has rows of the images outermost, then records, the numbers of
any (y, b) and those of the next are one stride apart: so the images are copied once, not kw·kh times as im2col does.
Where the kernel hangs over the border, products are of its pixels inside the image: nothing is padded, no zeros are
multiplied.

On one core without AVX-512, beside jit:avx2 of oneDNN 3.2, which reads all again for every 8 x 8 channels: the second
to fourth convolution of AlexNet, 16 records, 201 -> 156, 84 -> 56 and 109 -> 99 ms; 64 records of 64 channels of 64
pixels 7.5 -> 4.6, of 32 channels of 225 pixels, kernels of 5 x 5, 10.6 -> 9.9, of 49 pixels 5.0 -> 3.6. Beside
gemm:jit, which the library falls back to where kernels of 5 or 7 meet images about as small, a third of the time.
"""

from __future__ import annotations

from math import prod
from typing import NamedTuple

import numpy as np

from dsinga.ops import buffers
from dsinga.ops.buffers import address
from dsinga.ops.interface import Array, Pair
from dsinga.ops.layout import output_sizes
from dsinga.ops.onednn.thread import sgemm, this

Shape = tuple[int, ...]

LINE = 16  # numbers in a line of the cache
DEPTH = 512  # terms of the sums of one product: fewer make products many, more take memory
# From which on products are quicker: of 4,200 random shapes, 9 in 10 take the quicker way or lose less than a tenth.
WIDE = 48  # kw·C
MUCH = 800_000  # multiplications in a product


def suits(x: Shape, w: Shape, stride: Pair, pad: Pair, implementation: str) -> bool:
    """Whether products are quicker than the library's ``implementation``."""
    if implementation != "jit:avx2":
        return implementation == "x64:gemm:jit"
    rows, _ = output_sizes(x, w[2:], stride, pad)
    width = w[3] * w[1]
    return width >= WIDE and w[0] * width * rows * _records(x[0], rows) >= MUCH


class _Product(NamedTuple):
    """Row ``i`` of the kernel meets column ``x`` of the outputs: what of both, where the kernel is inside the image."""

    rows: int  # of the outputs
    dy_row: int  # the first of them
    x_row: int  # which of x its kernel's row lies on, as rows are ordered here
    dy_column: int  # in numbers, as the rest
    x_column: int
    width: int
    sums: int  # where the first sum is


class KernelGradient:
    """The gradient (F, C, kh, kw) from rows (B, H, W, C) and (B, H', W', F)."""

    def __init__(self, x: Shape, w: Shape, stride: Pair, pad: Pair):
        batch, channels, *size = x
        self.shape, self.step = w, stride[0]
        self.outputs = height, width = output_sizes(x, w[2:], stride, pad)
        self.records = _records(batch, height)
        self.x_stride, self.dy_stride = _odd_lines(size[1] * channels), _odd_lines(width * w[0])
        self.x_rows = -(-size[0] // self.step)  # of each remainder
        self.sums = np.empty((w[2], w[0], w[3] * channels), np.float32)
        self.x_shape = self.step, self.x_rows, self.records, self.x_stride
        self.dy_shape = 1, height, self.records, self.dy_stride
        self.scratch, self.numbers = this.packed, prod(self.x_shape) + prod(self.dy_shape)
        self.scratch.reserve(4 * self.numbers)
        self.products = [
            product
            for column in range(width)
            for i in range(w[2])
            if (product := self._product(i, column, size, stride, pad)).rows > 0 and product.width > 0
        ]

    def _product(self, i: int, column: int, size: list[int], stride: Pair, pad: Pair) -> _Product:
        filters, channels, _, kernel_width = self.shape
        first = max(0, -(-(pad[0] - i) // stride[0]))
        last = min(self.outputs[0] - 1, (size[0] - 1 + pad[0] - i) // stride[0])
        row = first * stride[0] + i - pad[0]
        corner = column * stride[1] - pad[1]
        left, right = max(0, -corner), min(kernel_width, size[1] - corner)
        return _Product(
            rows=last - first + 1,
            dy_row=first,
            x_row=row % self.step * self.x_rows + row // self.step,
            dy_column=column * filters,
            x_column=(corner + left) * channels,
            width=(right - left) * channels,
            sums=(i * filters * kernel_width + left) * channels,
        )

    def __call__(self, x: Array, dy: Array) -> Array:
        self.sums[...] = 0
        for first in range(0, len(x), self.records):
            self._add(x[first : first + self.records], dy[first : first + self.records])
        filters, channels, height, width = self.shape
        dw = buffers.empty(self.shape)
        dw[...] = self.sums.reshape(height, filters, width, channels).transpose(1, 3, 0, 2)
        return dw

    def _add(self, x: Array, dy: Array) -> None:
        """Add the sums over some records."""
        count, filters = len(x), self.shape[0]
        scratch = self.scratch.array[: 4 * self.numbers].view(np.float32)
        x_rows = _rows_first(x, scratch, (*self.x_shape[:2], count, self.x_stride))
        dy_rows = _rows_first(dy, scratch[prod(self.x_shape) :], (*self.dy_shape[:2], count, self.dy_stride))
        x_start, dy_start, sums_start = map(address, (x_rows, dy_rows, self.sums))
        for rows, dy_row, x_row, dy_column, x_column, width, sums in self.products:
            sgemm(
                *(b"T", b"N", filters, width, rows * count, 1.0),
                *(dy_start + 4 * (dy_row * count * self.dy_stride + dy_column), self.dy_stride),
                *(x_start + 4 * (x_row * count * self.x_stride + x_column), self.x_stride),
                *(1.0, sums_start + 4 * sums, self.sums.shape[2]),
            )


def _rows_first(x: Array, scratch: Array, shape: Shape) -> Array:
    """Return x in scratch as ``shape``, (step, ceil(H / step), n, stride).

    These are every step-th row, then those after them; of each row W·C numbers, then a gap.
    """
    step, _, count, _ = shape
    numbers = x[0, 0].size
    rows = x.reshape(count, len(x[0]), numbers).swapaxes(0, 1)
    turned = scratch[: prod(shape)].reshape(shape)
    for remainder in range(min(step, len(rows))):
        some = rows[remainder::step]
        turned[remainder, : len(some), :, :numbers] = some
    return turned


def _records(batch: int, rows: int) -> int:
    """Return how many records are taken together, whose gradients have so many rows."""
    return min(batch, -(-DEPTH // rows))


def _odd_lines(numbers: int) -> int:
    """Round up to an odd number of lines: columns of rows a power of two apart would meet in few places of caches."""
    lines = -(-numbers // LINE)
    return (lines + 1 - lines % 2) * LINE

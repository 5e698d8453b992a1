"""Gradients of convolution kernels as matrix products, for shapes on which the library's own code is slow.

dw[f, c, i, j] = Σ dy[b, f, y, x]·x[b, c, s·y + i - p, t·x + j - q] over b, y, x. One product is what column x of the
outputs contributes to row i of the kernel, summed over b and y: see :mod:`dsinga.ops.onednn.row_products`.
"""

from __future__ import annotations

import numpy as np

from dsinga.ops import buffers
from dsinga.ops.buffers import address
from dsinga.ops.layout import output_sizes
from dsinga.ops.onednn.row_products import RowProducts, copy_rows
from dsinga.ops.onednn.thread import sgemm
from dsinga.ops.types import Array, Pair

Shape = tuple[int, ...]

DEPTH = 512  # terms of the sums of one product: fewer make products many, more take memory


def multiplications(x: Shape, w: Shape, stride: Pair, pad: Pair) -> int:
    """Return how many multiplications one product has."""
    rows, _ = output_sizes(x, w[2:], stride, pad)
    return w[0] * w[1] * w[3] * rows * min(x[0], _records(rows))


class KernelGradient:
    """The gradient (F, C, kh, kw) from rows (B, H, W, C) and (B, H', W', F)."""

    def __init__(self, x: Shape, w: Shape, stride: Pair, pad: Pair):
        rows, _ = output_sizes(x, w[2:], stride, pad)
        self.shape, self.row_products = w, RowProducts(x, w, stride, pad, _records(rows))
        self.sums = np.empty(self.row_products.kernel_shape, np.float32)

    def __call__(self, x: Array, dy: Array) -> Array:
        self.sums[...] = 0
        records = self.row_products.records
        for first in range(0, len(x), records):
            self._add(x[first : first + records], dy[first : first + records])
        filters, channels, height, width = self.shape
        dw = buffers.empty(self.shape)
        dw[...] = self.sums.reshape(height, filters, width, channels).transpose(1, 3, 0, 2)
        return dw

    def _add(self, x: Array, dy: Array) -> None:
        """Add the sums over some records."""
        row_products = self.row_products
        images, outputs = row_products.scratch(len(x))
        x_start, dy_start, sums_start = copy_rows(x, images), copy_rows(dy, outputs), address(self.sums)
        for rows, width, image_offset, output_offset, kernel_offset in row_products.products(len(x)):
            sgemm(
                *(b"T", b"N", row_products.filters, width, rows, 1.0),
                *(dy_start + output_offset, row_products.output_stride),
                *(x_start + image_offset, row_products.image_stride),
                *(1.0, sums_start + kernel_offset, self.sums.shape[2]),
            )


def _records(rows: int) -> int:
    """Return how many records with ``rows`` rows of outputs are computed together."""
    return -(-DEPTH // rows)

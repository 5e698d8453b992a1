"""Gradients of convolution kernels as matrix products, where the library's own code comes near half the peak only.

dw[f, c, i, j] = Σ dy[b, f, y, x]·x[b, c, s·y + i - p, t·x + j - q] over b, y, x. One product is what row i of the
kernel owes to column x of the outputs: see :mod:`dsinga.ops.onednn.row_products`. Its sum goes over b and y.

On one core without AVX-512, beside jit:avx2 of oneDNN 3.2, which reads all again for every 8 x 8 channels: the second
to fourth convolution of AlexNet, 16 records, 201 -> 156, 84 -> 56 and 109 -> 99 ms; 64 records of 64 channels of 64
pixels 7.5 -> 4.6, of 32 channels of 225 pixels, kernels of 5 x 5, 10.6 -> 9.9, of 49 pixels 5.0 -> 3.6. Beside
gemm:jit, which the library falls back to where kernels of 5 or 7 meet images about as small, a third of the time.
"""

from __future__ import annotations

import numpy as np

from dsinga.ops import buffers
from dsinga.ops.buffers import address
from dsinga.ops.layout import output_sizes
from dsinga.ops.onednn.row_products import RowProducts, turn
from dsinga.ops.onednn.thread import sgemm
from dsinga.ops.types import Array, Pair

Shape = tuple[int, ...]

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
    return width >= WIDE and w[0] * width * rows * min(x[0], _records(rows)) >= MUCH


class KernelGradient:
    """The gradient (F, C, kh, kw) from rows (B, H, W, C) and (B, H', W', F)."""

    def __init__(self, x: Shape, w: Shape, stride: Pair, pad: Pair):
        rows, _ = output_sizes(x, w[2:], stride, pad)
        self.shape, self.parts = w, RowProducts(x, w, stride, pad, _records(rows))
        self.sums = np.empty(self.parts.kernel_shape, np.float32)

    def __call__(self, x: Array, dy: Array) -> Array:
        self.sums[...] = 0
        records = self.parts.records
        for first in range(0, len(x), records):
            self._add(x[first : first + records], dy[first : first + records])
        filters, channels, height, width = self.shape
        dw = buffers.empty(self.shape)
        dw[...] = self.sums.reshape(height, filters, width, channels).transpose(1, 3, 0, 2)
        return dw

    def _add(self, x: Array, dy: Array) -> None:
        """Add the sums over some records."""
        parts = self.parts
        images, outputs = parts.scratch(len(x))
        x_start, dy_start, sums_start = turn(x, images), turn(dy, outputs), address(self.sums)
        for rows, width, image, output, kernel in parts.products(len(x)):
            sgemm(
                *(b"T", b"N", parts.filters, width, rows, 1.0),
                *(dy_start + output, parts.output_stride, x_start + image, parts.image_stride),
                *(1.0, sums_start + kernel, self.sums.shape[2]),
            )


def _records(rows: int) -> int:
    """Return how many records are taken together, whose outputs have so many rows."""
    return -(-DEPTH // rows)

"""Gradients of convolution kernels as matrix products, where the library's own code comes near half the peak only.

dw[f, c, i, j] = Σ dy[b, f, y, x]·x[b, c, y + i - p, x + j - q] over b, y, x. In memory that has rows of the images
outermost, then records, the pixels that row i of the kernel meets lie in one piece. So each i is one product: of dy,
F numbers a pixel, and of x with each pixel's kw neighbours beside it, kw·C numbers. Kernels of 3 x 3 want x three
times, not nine times as im2col does.

On one core without AVX-512, beside jit:avx2 of oneDNN 3.2, which reads all again for every 8 x 8 channels: the second
to fourth convolution of AlexNet, 16 records, 315 -> 215, 106 -> 78 and 110 -> 84 ms; 64 records of 128 channels of 4
pixels 9.3 -> 5.7, of 64 channels of 16 pixels 30 -> 24. With fewer channels the two are equal, and copying costs more.
"""

from __future__ import annotations

import numpy as np
from numpy.lib.stride_tricks import as_strided

from dsinga.ops import buffers
from dsinga.ops.interface import Array, Pair
from dsinga.ops.layout import output_sizes
from dsinga.ops.onednn.products import product

Shape = tuple[int, ...]

RECORDS = 8  # taken together: fewer make products short, more leave the cache
WIDE = 64  # channels and filters from which on the library is slower


def suits(w: Shape, stride: Pair, implementation: str) -> bool:
    """Whether products are quicker than the library's ``implementation``."""
    return implementation == "jit:avx2" and stride == (1, 1) and min(w[:2]) >= WIDE


class KernelGradient:
    """The gradient (F, C, kh, kw) from rows (B, H, W, C) and (B, H', W', F), for a stride of 1."""

    def __init__(self, x: Shape, w: Shape, pad: Pair):
        filters, channels, height, width = self.shape = w
        self.pad, self.outputs = pad, output_sizes(x, w[2:], (1, 1), pad)
        padded = x[2] + 2 * pad[0], x[3] + 2 * pad[1]
        self.padded = np.zeros((padded[0], RECORDS, padded[1], channels), np.float32)
        self.sums = np.empty((height, width * channels, filters), np.float32)

    def __call__(self, x: Array, dy: Array) -> Array:
        for first in range(0, len(x), RECORDS):
            self._add(x[first : first + RECORDS], dy[first : first + RECORDS], first > 0)
        filters, channels, height, width = self.shape
        dw = buffers.empty(self.shape)
        dw[...] = self.sums.reshape(height, width, channels, filters).transpose(3, 2, 0, 1)
        return dw

    def _add(self, x: Array, dy: Array, add: bool) -> None:
        """Compute the sums over some records, or ``add`` them to those before."""
        beside, gradient = self._beside(x), self._rows_first(dy)
        for row, sums in enumerate(self.sums):
            met = beside[row : row + self.outputs[0]].reshape(len(gradient), -1)
            product(met, gradient, sums, transpose=True, add=add)

    def _beside(self, x: Array) -> Array:
        """Return (H + 2p, n, W', kw·C): of each row, and where the kernel stands in it, what it meets there."""
        count, height, width, channels = x.shape
        vertical, horizontal = self.pad
        padded = self.padded[:, :count]
        padded[vertical : vertical + height, :, horizontal : horizontal + width] = x.swapaxes(0, 1)
        shape = len(padded), count, self.outputs[1], self.shape[3] * channels
        beside = buffers.empty(shape)
        beside[...] = as_strided(padded, shape, padded.strides)  # neighbours overlap: each begins one pixel further on
        return beside

    def _rows_first(self, dy: Array) -> Array:
        """Return (H'·n·W', F)."""
        count, height, width, filters = dy.shape
        turned = buffers.empty((height, count, width, filters))
        turned[...] = dy.swapaxes(0, 1)
        return turned.reshape(-1, filters)

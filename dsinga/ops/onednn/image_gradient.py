"""Gradients of a convolution's images as matrix products, where the library multiplies many zeros or is slow.

dx[b, c, s·y + i - p, t·x + j - q] = Σ dy[b, f, y, x]·w[f, c, i, j] over f, and over all y, x, i, j that lead there. One
product, for all b and y, is what column x of the outputs gives row i of the kernel to hand on: see
:mod:`dsinga.ops.onednn.row_products`. It is added to the pixels that the row meets.

On one core without AVX-512, its second-level cache cold, beside oneDNN 3.2: of 1,133 random shapes that :func:`suits`
takes 91 in 100 win and 97 lose less than a tenth. Medians, as shares of the library's time:
- its code for strides, brgconv_strided: 0.55;
- jit:avx2, where filters are many and outputs small: 0.69;
- brgconv, which lets all pixels of the images meet all of the kernel, those beside the outputs too: 0.74;
- gemm:jit, which the library falls back to: 0.75.
"""

from __future__ import annotations

from math import prod

from dsinga.ops import buffers
from dsinga.ops.buffers import address
from dsinga.ops.layout import output_sizes
from dsinga.ops.onednn.row_products import RowProducts, turn, turn_back
from dsinga.ops.onednn.thread import sgemm, this
from dsinga.ops.types import Array, Pair

Shape = tuple[int, ...]

ROWS = 1024  # of a product: fewer make products many, more take memory
# From which on products are quicker.
MUCH = 800_000  # multiplications in a product
DEEP, SMALL = 32, 100  # filters at least, pixels of an output at most, beside jit:avx2
WASTE = 2.0  # multiplications of brgconv for each of one pixel of the images with one of the kernel


def suits(x: Shape, w: Shape, stride: Pair, pad: Pair, implementation: str) -> bool:
    """Whether products are quicker than the library's ``implementation``; of several cores they would make less use."""
    outputs = output_sizes(x, w[2:], stride, pad)
    multiplications = w[0] * w[1] * w[3] * outputs[0] * min(x[0], _records(outputs[0]))
    if multiplications < MUCH or this.team.size > 1:
        return False
    match implementation:
        case "jit:avx2":
            return w[0] >= DEEP and prod(outputs) <= SMALL
        case "brg_fwd:avx2+brgconv:avx2":
            met = prod(_met(*axis) for axis in zip(x[2:], w[2:], stride, pad, outputs, strict=True))
            return prod(x[2:]) * prod(w[2:]) >= WASTE * met
    return implementation in ("brgconv_strided:avx2", "x64:gemm:jit")


def _met(size: int, kernel: int, stride: int, pad: int, outputs: int) -> int:
    """Return how many pixels a kernel meets inside an image, along one axis, over all outputs."""
    corners = range(-pad, outputs * stride - pad, stride)
    return sum(max(0, min(kernel, size - corner) - max(0, -corner)) for corner in corners)


class ImageGradient:
    """The gradient (B, C, H, W), channels-last, from rows (B, H', W', F) and the kernel (F, C, kh, kw)."""

    def __init__(self, x: Shape, w: Shape, stride: Pair, pad: Pair):
        rows, _ = output_sizes(x, w[2:], stride, pad)
        self.shape, self.parts = x, RowProducts(x, w, stride, pad, _records(rows))

    def __call__(self, dy: Array, w: Array) -> Array:
        dx = buffers.empty(self.shape, channels_last=True)
        rows, kernel, records = dx.transpose(0, 2, 3, 1), self.parts.turned(w), self.parts.records
        for first in range(0, len(dy), records):
            self._find(dy[first : first + records], kernel, rows[first : first + records])
        return dx

    def _find(self, dy: Array, kernel: Array, dx: Array) -> None:
        """Find the gradient of some records."""
        parts = self.parts
        images, outputs = parts.scratch(len(dy))
        dx_start, dy_start, kernel_start = address(images), turn(dy, outputs), address(kernel)
        images[...] = 0
        for rows, width, image, output, place in parts.products(len(dy)):
            sgemm(
                *(b"N", b"N", rows, width, parts.filters, 1.0),
                *(dy_start + output, parts.output_stride, kernel_start + place, kernel.shape[2]),
                *(1.0, dx_start + image, parts.image_stride),
            )
        turn_back(images, dx)


def _records(rows: int) -> int:
    """Return how many records are taken together, whose outputs have so many rows."""
    return -(-ROWS // rows)

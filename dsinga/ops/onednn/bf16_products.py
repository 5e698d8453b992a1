"""Products of bfloat16 numbers, summed in float32, and the rounding of their factors."""

from __future__ import annotations

from math import gcd, prod

import numpy as np

from dsinga.ops import buffers
from dsinga.ops.onednn.casting import StridedCast
from dsinga.ops.onednn.library import BFLOAT16, form_of
from dsinga.ops.onednn.products import Product
from dsinga.ops.onednn.thread import get_kernel, thread_state
from dsinga.ops.types import Array

BLOCK = 1 << 19  # numbers of a weight that are rounded at a time: a megabyte stays in the caches


class WeightProduct:
    """x Wᵀ if ``transposed``, else x W, of bfloat16 x (n, C) or (n, R) and a float32 weight W (R, C).

    The rows of W are rounded block by block, into scratch memory of the thread.
    """

    def __init__(self, count: int, rows: int, columns: int, transposed: bool):
        self.transposed, self.result = transposed, (count, rows if transposed else columns)
        size = min(rows, max(16, BLOCK // columns // 16 * 16))
        self.blocks = [slice(start, min(start + size, rows)) for start in range(0, rows, size)]
        self.scratch_shape = size, columns
        thread_state.packed_weights.reserve(size * columns * BFLOAT16.itemsize)
        self.kernels = {}
        for length in {size, rows - self.blocks[-1].start}:
            block = (length, columns), (columns, 1)
            if transposed:
                factors = ((count, columns), (columns, 1)), ((columns, length), (1, columns))
                product = Product(*factors, ((count, length), (rows, 1)), BFLOAT16)
            else:
                factors = ((count, length), (rows, 1)), block
                product = Product(*factors, ((count, columns), (columns, 1)), BFLOAT16, add=True)
            self.kernels[length] = StridedCast(*block).run, product.multiply

    def __call__(self, x: Array, w: Array) -> Array:
        scratch = thread_state.packed_weights.array[: prod(self.scratch_shape) * BFLOAT16.itemsize]
        scratch, y = scratch.view(BFLOAT16).reshape(self.scratch_shape), buffers.empty(self.result)
        if not self.transposed:
            y[...] = 0
        for block in self.blocks:
            length = block.stop - block.start
            round_, multiply_ = self.kernels[length]
            round_(w[block], scratch)
            if self.transposed:
                multiply_(x, scratch, y[:, block])
            else:
                multiply_(x[:, block], scratch, y)
        return y


def multiply(a: Array, b: Array, out: Array, factor: float = 1.0, add: bool = False) -> None:
    """Compute factor·(a b) of bfloat16 matrices, or stacks of these, into float32 ``out``, or add it to ``out``."""
    kernel = get_kernel(Product, form_of(a), form_of(b), form_of(out), BFLOAT16, factor, add)
    assert kernel is not None, "a product has no kernel"
    kernel.multiply(a, b, out)


LENGTH = 256  # rows whose sums are float32; these are added in float64
WIDTH = 64  # numbers of a row that is multiplied by others, several pixels if there are few channels


def sum_shape(rows: int, channels: int) -> tuple[int, int, int]:
    """Return how (n, C) is seen in :func:`channel_totals`: as stacks of blocks of rows, each of several pixels."""
    join = gcd(rows, max(1, WIDTH // channels))
    length = gcd(rows // join, LENGTH)
    return rows // join // length, length, join * channels


def channel_totals(x: Array, y: Array) -> tuple[Array, Array]:
    """Return (Σ y, Σ x·y) over n, (C,) each in float64, of C-contiguous bfloat16 (n, C).

    Σ x·y is the diagonal of xᵀ y, which takes less time than to convert x and y.
    """
    rows, channels = x.shape
    stack, length, width = sum_shape(rows, channels)
    x, y = x.reshape(stack, length, width), y.reshape(stack, length, width)
    sums, products = buffers.empty((stack, 1, width)), buffers.empty((stack, width, width))
    multiply(np.ones((stack, 1, length), BFLOAT16), y, sums)
    multiply(x.transpose(0, 2, 1), y, products)
    diagonal = np.einsum("kii->ki", products)
    total, along = (np.add.reduce(part, axis=0, dtype=np.float64) for part in (sums[:, 0], diagonal))
    return total.reshape(-1, channels).sum(axis=0), along.reshape(-1, channels).sum(axis=0)

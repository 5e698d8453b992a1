"""Products of bfloat16 numbers, summed in float32, and the rounding of their factors."""

from __future__ import annotations

from math import prod

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

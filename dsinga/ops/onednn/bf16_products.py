"""Products of bfloat16 numbers, summed in float32, and the conversion of their factors."""

from __future__ import annotations

from math import gcd, prod

import numpy as np

from dsinga.ops import buffers
from dsinga.ops.onednn.library import BFLOAT16, DST, SRC, SUM, WEIGHTS, dense, engine, free, strided
from dsinga.ops.onednn.primitive import Primitive, conversion, reorder
from dsinga.ops.onednn.products import form_of
from dsinga.ops.onednn.thread import get_kernel, thread_state
from dsinga.ops.types import Array, Shape


class Product:
    """a b, or ``add`` it to the result: float32 sums of products of bfloat16 numbers, of matrices or stacks of these.

    ``a`` and ``b`` are shapes and strides in numbers, ``out`` likewise of the float32 result.
    """

    def __init__(self, a: tuple[Shape, Shape], b: tuple[Shape, Shape], out: tuple[Shape, Shape], add: bool):
        self.multiply = Primitive(
            *("matmul", engine, strided(*a, BFLOAT16), strided(*b, BFLOAT16), None, strided(*out)),
            operands=(SRC, WEIGHTS, DST),
            post_ops=((SUM,),) if add else (),
            operations=2 * prod(out[0]) * a[0][-1],
        )


BLOCK = 1 << 19  # numbers of a weight that are rounded at a time: a megabyte stays in the caches


def _scratch(shape: Shape) -> Array:
    """Return the thread's memory for a rounded block, valid until its next kernel."""
    return thread_state.packed_weights.array[: prod(shape) * BFLOAT16.itemsize].view(BFLOAT16).reshape(shape)


def _block_rows(rows: int, columns: int) -> int:
    return min(rows, max(16, BLOCK // columns // 16 * 16))


class TransposedWeightProduct:
    """x Wᵀ of bfloat16 x (n, C) and a float32 weight (R, C), whose rows are rounded block by block as they are read."""

    def __init__(self, count: int, rows: int, columns: int):
        self.result, size = (rows, count), _block_rows(rows, columns)
        self.blocks = [slice(min(start, rows - size), min(start, rows - size) + size) for start in range(0, rows, size)]
        self.scratch_shape = size, columns
        thread_state.packed_weights.reserve(size * columns * BFLOAT16.itemsize)
        self.round = CastMatrix((size, columns), (columns, 1)).run
        self.multiply = Primitive(
            *("matmul", engine, dense((size, columns), BFLOAT16), free((columns, count), BFLOAT16), None),
            dense((size, count)),
            operands=(SRC, WEIGHTS, DST),
            operations=2 * size * columns * count,
        )
        self.pack = reorder(strided((columns, count), (1, columns), BFLOAT16), self.multiply.layout(WEIGHTS))
        self.packed_size = self.multiply.size(WEIGHTS) // BFLOAT16.itemsize

    def __call__(self, x: Array, w: Array) -> Array:
        packed = x
        if self.pack:
            packed = buffers.empty((self.packed_size,), dtype=BFLOAT16)
            self.pack(x, packed)
        result, rounded = buffers.empty(self.result), _scratch(self.scratch_shape)
        for block in self.blocks:  # the last one overlaps that before it where the rows are not a multiple
            self.round(w[block], rounded)
            self.multiply(rounded, packed, result[block])
        return result.T


class WeightProduct:
    """x W of bfloat16 x (n, R) and a float32 weight (R, C), whose rows are rounded block by block as they are read."""

    def __init__(self, count: int, rows: int, columns: int):
        self.result, size = (count, columns), _block_rows(rows, columns)
        self.blocks = [slice(start, min(start + size, rows)) for start in range(0, rows, size)]
        self.scratch_shape = size, columns
        thread_state.packed_weights.reserve(size * columns * BFLOAT16.itemsize)
        self.kernels = {}
        for length in {size, rows - self.blocks[-1].start}:
            block = (length, columns), (columns, 1)
            product = Product(((count, length), (rows, 1)), block, ((count, columns), (columns, 1)), True)
            self.kernels[length] = CastMatrix(*block).run, product.multiply

    def __call__(self, x: Array, w: Array) -> Array:
        result, scratch = buffers.empty(self.result), _scratch(self.scratch_shape)
        result[...] = 0
        for block in self.blocks:
            round_, multiply_ = self.kernels[block.stop - block.start]
            rounded = scratch[: block.stop - block.start]
            round_(w[block], rounded)
            multiply_(x[:, block], rounded, result)
        return result


class CastMatrix:
    """A float32 matrix of given shape and strides in bfloat16, its contiguous vectors as they are."""

    def __init__(self, shape: Shape, strides: Shape):
        self.shape = shape
        self.transposed = strides[0] == 1 and shape[0] > 1
        self.strides = (1, shape[0]) if self.transposed else (shape[1], 1)
        self.run = conversion(strided(shape, strides), strided(shape, self.strides, BFLOAT16))

    def __call__(self, x: Array) -> Array:
        result = buffers.empty(self.shape[::-1] if self.transposed else self.shape, dtype=BFLOAT16)
        self.run(x, result)
        return result.T if self.transposed else result


def to_bf16_matrix(x: Array) -> Array:
    """Return a matrix, contiguous along one of its axes, in bfloat16."""
    if x.dtype == BFLOAT16:
        return x
    kernel = get_kernel(CastMatrix, *form_of(x))
    assert kernel is not None, "a matrix has no conversion"
    return kernel(x)


def multiply(a: Array, b: Array, out: Array, add: bool = False) -> None:
    """Compute the product of bfloat16 matrices, or stacks of these, into float32 ``out``, or add it to ``out``."""
    kernel = get_kernel(Product, form_of(a), form_of(b), form_of(out), add)
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

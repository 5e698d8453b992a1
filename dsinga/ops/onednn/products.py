"""Matrix products: inner products and sums over a batch. No float32 product is left to numpy's BLAS."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from dsinga.ops import buffers
from dsinga.ops.buffers import address
from dsinga.ops.layout import join_rows
from dsinga.ops.numpy_convolution import NumpyConvolution
from dsinga.ops.onednn.descriptors import dense, engine, strided
from dsinga.ops.onednn.library import DST, SRC, WEIGHTS
from dsinga.ops.onednn.primitive import LANES, Primitive, suits
from dsinga.ops.onednn.thread import get_kernel, sgemm
from dsinga.ops.types import Array

# Without AVX-512 the library's "matmul" is its sgemm with more around it. Called itself, that takes 0.73 of the time in
# the median of 2,500 random shapes, 0.91 with 64 rows and a million weights; with so many rows a fifth more.
WHOLE_REGISTERS = range(LANES, 4 * LANES + 1, LANES)


def product(a: Array, b: Array, out: Array, add: bool = False) -> Array:
    """Compute a b into ``out``, or ``add`` it to out. None is empty.

    Rows or columns of a and b are contiguous, rows of out.
    """
    (turn_a, step_a), (turn_b, step_b), (turn_out, step_out) = _layout(a), _layout(b), _layout(out)
    assert turn_out == b"N", out.strides
    sgemm(
        *(turn_a, turn_b, *out.shape, a.shape[1]),
        *(1.0, address(a), step_a, address(b), step_b),
        *(1.0 if add else 0.0, address(out), step_out),
    )
    return out


def _layout(matrix: Array) -> tuple[bytes, int]:
    """Return how ``sgemm`` is to read a matrix, as it is or turned, and the distance between its runs of numbers."""
    down, across = (stride // matrix.itemsize for stride in matrix.strides)
    if across == 1 or matrix.shape[1] == 1 != down:
        return b"N", max(down, matrix.shape[1])
    return b"T", max(across, matrix.shape[0])


def column_sums(x: Array) -> Array:
    """Sum (n, C) over n, as a product with ones: at the speed of memory."""
    joined = join_rows(x)
    sums = np.empty((1, joined.shape[1]), np.float32)
    product(np.ones((1, joined.shape[0]), np.float32), joined, sums)
    return sums.reshape(-1, x.shape[1]).sum(axis=0)


class _AlongRows:
    """x Wᵀ with x (n, I), W (O, I), both read along their rows, as W xᵀ.

    The library repacks the second operand of a product: let that be x, which is smaller than W as a rule. With
    (64, 2500) x (2000, 2500)ᵀ: ``sgemm`` 160 GFLOP/s, "matmul" of x and Wᵀ 205, of W and xᵀ, turned after, 245.
    """

    def __init__(self, rows: int, outputs: int, inputs: int):
        self.multiply = Primitive(
            "matmul",
            *(engine, dense((outputs, inputs)), strided((inputs, rows), (1, inputs)), None, dense((outputs, rows))),
            operands=(SRC, WEIGHTS, DST),
            operations=2 * rows * outputs * inputs,
        )
        self.shape = (outputs, rows)

    def __call__(self, x: Array, w: Array, b: Array | None) -> Array:
        turned = buffers.empty(self.shape)
        self.multiply(w, x, turned)
        y = buffers.empty(self.shape[::-1])
        if b is None:
            y[...] = turned.T
        else:
            np.add(turned.T, b, out=y)
        return y


def _along_rows(rows: int, outputs: int, inputs: int) -> Callable[[Array, Array, Array | None], Array]:
    """Return what computes x Wᵀ, with a bias where there is one."""
    kernel = _AlongRows(rows, outputs, inputs)
    if kernel.multiply.implementation == "gemm:jit:f32" and rows not in WHOLE_REGISTERS:
        return _inner_product
    return kernel


def _inner_product(x: Array, w: Array, b: Array | None) -> Array:
    """x Wᵀ + b."""
    y = buffers.empty((x.shape[0], w.shape[0]))
    if b is not None:
        y[...] = b
    return product(x, w.T, y, add=b is not None)


class OnednnProducts(NumpyConvolution):
    """Inner products by the library."""

    def inner_product(self, x: Array, w: Array, b: Array | None, transpose: bool = False) -> Array:
        if not suits(x, w, b):
            return super().inner_product(x, w, b, transpose)
        x, w = np.ascontiguousarray(x), np.ascontiguousarray(w)
        if not transpose:
            along_rows = get_kernel(_along_rows, x.shape[0], *w.shape)
            return along_rows(x, w, b) if along_rows else super().inner_product(x, w, b, transpose)
        return _inner_product(x, w.T, b)

    def inner_product_grad(
        self, x: Array, w: Array, dy: Array, transpose: bool, need_dx: bool, need_db: bool
    ) -> tuple[Array | None, Array, Array | None]:
        if not suits(x, w, dy):
            return super().inner_product_grad(x, w, dy, transpose, need_dx, need_db)
        x, dy = np.ascontiguousarray(x), np.ascontiguousarray(dy)
        left, right = (x, dy) if transpose else (dy, x)
        dw = product(left.T, right, buffers.empty(w.shape))
        dx = self.inner_product(dy, w, None, not transpose) if need_dx else None
        return dx, dw, column_sums(dy) if need_db else None

"""Matrix products by the library: inner products, and sums over a batch."""

from __future__ import annotations

import numpy as np

from dsinga.ops import buffers
from dsinga.ops.buffers import address
from dsinga.ops.layout import join_rows
from dsinga.ops.numpy_convolution import NumpyConvolution
from dsinga.ops.onednn.choices import SGEMM, SMALL_ARRAY, choose_kernel
from dsinga.ops.onednn.descriptors import dense, engine, strided
from dsinga.ops.onednn.library import DST, SRC, WEIGHTS
from dsinga.ops.onednn.primitive import Primitive, accepts
from dsinga.ops.onednn.thread import sgemm
from dsinga.ops.types import Array


def product(a: Array, b: Array, out: Array, add: bool = False) -> Array:
    """Compute the product of ``a`` and ``b`` into ``out``, or add it to ``out`` if ``add``.

    Rows or columns of a and b, and rows of out, are contiguous. No array is empty.
    """
    (transpose_a, step_a), (transpose_b, step_b), (transpose_out, step_out) = _layout(a), _layout(b), _layout(out)
    assert transpose_out == b"N", out.strides
    sgemm(
        *(transpose_a, transpose_b, *out.shape, a.shape[1]),
        *(1.0, address(a), step_a, address(b), step_b),
        *(1.0 if add else 0.0, address(out), step_out),
    )
    return out


def _layout(matrix: Array) -> tuple[bytes, int]:
    """Return for ``sgemm`` whether a matrix is transposed, b"N" or b"T", and the stride of its contiguous vectors."""
    (down, across), (rows, columns) = matrix.strides, matrix.shape  # strides in bytes, of float32
    if across == 4 or columns == 1 != down // 4:
        return b"N", max(down // 4, columns)
    return b"T", max(across // 4, rows)


def column_sums(x: Array) -> Array:
    """Sum (n, C) over n, a large array as a product with ones: at the speed of memory."""
    if x.size <= SMALL_ARRAY:
        return np.add.reduce(x, 0)
    joined = join_rows(x)
    sums = np.empty((1, joined.shape[1]), np.float32)
    product(np.ones((1, joined.shape[0]), np.float32), joined, sums)
    return sums.reshape(-1, x.shape[1]).sum(axis=0)


class TransposedProduct:
    """x Wᵀ + b with x (n, I), W (O, I), both read along their rows, as the transpose of W xᵀ by the library.

    The library repacks the second operand of a product: let that be x, which is smaller than W as a rule.
    """

    def __init__(self, rows: int, outputs: int, inputs: int):
        self.multiply = Primitive(
            "matmul",
            *(engine, dense((outputs, inputs)), strided((inputs, rows), (1, inputs)), None, dense((outputs, rows))),
            operands=(SRC, WEIGHTS, DST),
            operations=2 * rows * outputs * inputs,
        )
        self.implementation = self.multiply.implementation
        self.shape = (outputs, rows)

    def __call__(self, x: Array, w: Array, b: Array | None) -> Array:
        transposed = buffers.empty(self.shape)
        self.multiply(w, x, transposed)
        y = buffers.empty(self.shape[::-1])
        if b is None:
            y[...] = transposed.T
        else:
            np.add(transposed.T, b, out=y)
        return y


class SgemmProduct:
    """x Wᵀ + b with x (n, I), W (O, I) by ``sgemm``."""

    implementation = SGEMM

    def __init__(self, *shape: int):
        pass  # one kernel for all shapes

    def __call__(self, x: Array, w: Array, b: Array | None) -> Array:
        return _inner_product(x, w.T, b)


def _inner_product(x: Array, w: Array, b: Array | None) -> Array:
    """Return x W + b."""
    y = buffers.empty((x.shape[0], w.shape[1]))
    if b is not None:
        y[...] = b
    return product(x, w, y, add=b is not None)


class NumpyProduct:
    """x Wᵀ + b with x (n, I), W (O, I) by numpy, whose call takes less time than the library's."""

    def __init__(self, *shape: int):
        pass  # one kernel for all shapes

    def __call__(self, x: Array, w: Array, b: Array | None) -> Array:
        y = x @ w.T
        if b is not None:
            y += b
        return y


class SgemmProductGradient:
    """The gradients of :class:`SgemmProduct`, or of x W + b with W (I, O), for W and for b."""

    implementation = SGEMM

    def __init__(self, *shape: int):
        pass  # one kernel for all shapes

    def __call__(self, x: Array, w: Array, dy: Array, transpose: bool, need_db: bool) -> tuple[Array, Array | None]:
        left, right = (x, dy) if transpose else (dy, x)
        return product(left.T, right, buffers.empty(w.shape)), column_sums(dy) if need_db else None


class NumpyProductGradient:
    """The gradients of :class:`NumpyProduct`, or of x W + b with W (I, O), for W and for b."""

    def __init__(self, *shape: int):
        pass  # one kernel for all shapes

    def __call__(self, x: Array, w: Array, dy: Array, transpose: bool, need_db: bool) -> tuple[Array, Array | None]:
        return x.T @ dy if transpose else dy.T @ x, np.add.reduce(dy, 0) if need_db else None


class OnednnProducts(NumpyConvolution):
    """Inner products by the library, or by the implementation that the table of choices has in its place."""

    def inner_product(self, x: Array, w: Array, b: Array | None, transpose: bool = False) -> Array:
        if not accepts(x, w, b):
            return super().inner_product(x, w, b, transpose)
        x, w = np.ascontiguousarray(x), np.ascontiguousarray(w)
        shape = (x.shape[0], *w.shape)
        if not transpose:
            kernel = choose_kernel("inner_product", TransposedProduct, *shape)
            return kernel(x, w, b) if kernel else super().inner_product(x, w, b, transpose)
        return choose_kernel("transposed_product", SgemmProduct, *shape)(x, w.T, b)

    def inner_product_grad(
        self, x: Array, w: Array, dy: Array, transpose: bool, need_dx: bool, need_db: bool
    ) -> tuple[Array | None, Array, Array | None]:
        if not accepts(x, w, dy):
            return super().inner_product_grad(x, w, dy, transpose, need_dx, need_db)
        x, dy = np.ascontiguousarray(x), np.ascontiguousarray(dy)
        kernel = choose_kernel("inner_product_grad", SgemmProductGradient, x.shape[0], *w.shape)
        dw, db = kernel(x, w, dy, transpose, need_db)
        return self.inner_product(dy, w, None, not transpose) if need_dx else None, dw, db

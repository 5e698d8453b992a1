"""Matrix products by oneDNN: inner products, sums over a batch, stacks."""

from __future__ import annotations

import copy
from math import prod
from typing import Any, Self

import numpy as np

from dsinga.base import buffers
from dsinga.base.buffers import address
from dsinga.ops.factored_gradient import FactoredGradient
from dsinga.ops.layout import contiguous, join_rows
from dsinga.ops.numpy.convolution import NumpyConvolution
from dsinga.ops.onednn.choices import choose_kernel
from dsinga.ops.onednn.library import (
    AVX512_CORE,
    BIAS,
    DST,
    LINEAR,
    SRC,
    SUM,
    WEIGHTS,
    dense,
    engine,
    get_instructions,
    strided,
)
from dsinga.ops.onednn.primitive import Primitive, accepts
from dsinga.ops.onednn.thread import sgemm
from dsinga.ops.recorded_array import plain, recorder
from dsinga.ops.types import FLOAT32, Array, Shape

# Operations of a product up to which numpy's BLAS computes it in the calling thread. Of larger ones it wakes threads,
# one for each core, which takes far longer: 256 x 64 to 64 then took 463 us of two cores in place of 25 of one.
SMALL_PRODUCT = 1 << 19
# Of a weight's gradient, rows of so many bytes are computed at a time, but no fewer: one alone would have other bits.
PART_BYTES, PART_ROWS = 1 << 21, 32
SGEMM = f"sgemm:{'avx512_core' if get_instructions() & AVX512_CORE == AVX512_CORE else 'avx2'}"


def product(a: Array, b: Array, out: Array, add: bool = False) -> Array:
    """Multiply matrices ``a`` and ``b`` into ``out``, or ``add`` the product. No array is empty."""
    result = out
    (transpose_a, step_a), (transpose_b, step_b), (transpose_out, step_out) = _layout(a), _layout(b), _layout(out)
    if not (step_a and step_b and step_out) or transpose_out != b"N":
        out[...] = a @ b + out if add else a @ b
        return out
    if recorder() is not None:
        a, b, out = plain((a, b, out))
    sgemm(
        *(transpose_a, transpose_b, *out.shape, a.shape[1]),
        *(1.0, address(a), step_a, address(b), step_b),
        *(1.0 if add else 0.0, address(out), step_out),
        memory=(a, b, out),
    )
    return result


def _layout(matrix: Array) -> tuple[bytes, int]:
    """Describe a matrix to ``sgemm``: b"T" or b"N" for transposed or not, and the stride of its contiguous vectors."""
    (down, across), (rows, columns) = matrix.strides, matrix.shape  # strides in bytes, of float32
    if across == 4 or columns == 1 != down // 4:
        step = max(down // 4, columns)
        return b"N", step if rows == 1 or down == 4 * step else 0
    step = max(across // 4, rows)
    return b"T", step if (rows == 1 or down == 4) and (columns == 1 or across == 4 * step) else 0


def column_sums(x: Array) -> Array:
    """Sum (n, C) over n at the speed of memory, as a product with ones."""
    joined = join_rows(x)
    sums = buffers.empty((1, joined.shape[1]))
    product(np.ones((1, joined.shape[0]), np.float32), joined, sums)
    return sums.reshape(-1, x.shape[1]).sum(axis=0)


class TransposedProduct:
    """Computes x Wᵀ + b with x (n, I), W (O, I) of ``dtype`` by oneDNN as the transpose of W xᵀ, in float32."""

    def __init__(self, rows: int, outputs: int, inputs: int, dtype: np.dtype = FLOAT32):
        factors = dense((outputs, inputs), dtype), strided((inputs, rows), (1, inputs), dtype)
        self.multiply = Primitive(
            *("matmul", engine, *factors, None, dense((outputs, rows))),
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
    """Computes x Wᵀ + b with x (n, I), W (O, I) by ``sgemm``."""

    def __init__(self, *shape: int):
        pass  # one kernel for all shapes

    def __call__(self, x: Array, w: Array, b: Array | None) -> Array:
        return _inner_product(x, w.T, b)


def _inner_product(x: Array, w: Array, b: Array | None) -> Array:
    y = buffers.empty((x.shape[0], w.shape[1]))
    if b is not None:
        y[...] = b
    return product(x, w, y, add=b is not None)


class DirectProduct:
    """Computes x Wᵀ + b by a oneDNN kernel for these shapes, which adds the bias."""

    def __init__(self, rows: int, outputs: int, inputs: int):
        self.shape = (rows, outputs)
        factors = engine, dense((rows, inputs)), strided((inputs, outputs), (1, inputs))
        table, operations = dense(self.shape), 2 * rows * outputs * inputs
        self.plain = Primitive("matmul", *factors, None, table, operands=(SRC, WEIGHTS, DST), operations=operations)
        self.biased = Primitive(
            *("matmul", *factors, dense((1, outputs)), table),
            operands=(SRC, WEIGHTS, BIAS, DST),
            operations=operations,
        )

    def __call__(self, x: Array, w: Array, b: Array | None) -> Array:
        y = buffers.empty(self.shape)
        if b is None:
            self.plain(x, w, y)
        else:
            self.biased(x, w, contiguous(b), y)
        return y


class SourceGradient:
    """Computes the gradient y W, (n, I), for a product's source, from y (n, O) and W (O, I), by ``sgemm``."""

    implementation = SGEMM

    def __init__(self, rows: int, outputs: int, inputs: int):
        self.shape = (rows, inputs)

    def __call__(self, y: Array, w: Array) -> Array:
        return product(y, w, buffers.empty(self.shape))


def direct_source_gradient(rows: int, outputs: int, inputs: int) -> Product:
    """Make a oneDNN kernel of these shapes for the gradient y W for a product's source."""
    return Product(((rows, outputs), (outputs, 1)), ((outputs, inputs), (inputs, 1)), ((rows, inputs), (inputs, 1)))


class WeightGradient:
    """Computes the weight gradient yᵀ x, (O, I), from y (n, O) and x (n, I), by ``sgemm``."""

    implementation = SGEMM

    def __init__(self, rows: int, outputs: int, inputs: int):
        self.shape = (outputs, inputs)

    def __call__(self, y: Array, x: Array) -> Array:
        return product(y.T, x, buffers.empty(self.shape))


class WeightGradientByBlocks(WeightGradient):
    """Computes the weight gradient yᵀ x in blocks of rows that are contiguous in memory, with one product's bits."""

    def __init__(self, rows: int, outputs: int, inputs: int):
        super().__init__(rows, outputs, inputs)
        count = max(1, min(4 * outputs * inputs // PART_BYTES, outputs // PART_ROWS))
        self._bounds = [outputs * number // count for number in range(count + 1)]

    def __call__(self, y: Array, x: Array) -> Array:
        return self.factored(y, x).compute()

    def factored(self, y: Array, x: Array) -> FactoredGradient:
        """Return the gradient before it is computed, to add others to it."""
        return FactoredGradient((y, x), self.shape, self._bounds, product)


def direct_weight_gradient(rows: int, outputs: int, inputs: int) -> Product:
    """Make a oneDNN kernel of these shapes for the weight gradient yᵀ x."""
    return Product(((outputs, rows), (1, outputs)), ((rows, inputs), (inputs, 1)), ((outputs, inputs), (inputs, 1)))


def has_few_operations(rows: int, outputs: int, inputs: int) -> bool:
    """Whether a product is so small that numpy beats a call of oneDNN."""
    return 2 * rows * outputs * inputs <= SMALL_PRODUCT


class OnednnProducts(NumpyConvolution):
    """The backend's inner products: oneDNN's, or the table's replacements (choices.py)."""

    fast_rounding = equal_rows = False

    def with_fast_rounding(self) -> Self:
        """Return the backend with small products by numpy; bits depend on the number of rows."""
        ops = copy.copy(self)
        ops.fast_rounding = True
        return ops

    def with_equal_rows(self) -> Self:
        """Return the backend without ``sgemm``, whose bits depend on the number of rows; this one without AVX-512."""
        if self.fast_rounding or not SGEMM.endswith("avx512_core"):
            return self
        ops = copy.copy(self)
        ops.equal_rows = True
        return ops

    def inner_product(self, x: Array, w: Array, b: Array | None, transpose: bool = False) -> Array:
        if not accepts(x, w, b) or (self.fast_rounding and has_few_operations(x.shape[0], *w.shape)):
            return super().inner_product(x, w, b, transpose)
        if self.equal_rows:
            x, w = contiguous(x), contiguous(w.T if transpose else w)
            kernel = choose_kernel("inner_product_of_rows", TransposedProduct, x.shape[0], *w.shape)
            return kernel(x, w, b) if kernel else super().inner_product(x, w, b)
        x, w = contiguous(x), contiguous(w)
        if not transpose:
            kernel = choose_kernel("inner_product", TransposedProduct, x.shape[0], *w.shape)
            return kernel(x, w, b) if kernel else super().inner_product(x, w, b, transpose)
        return _inner_product(x, w, b)

    def inner_product_grad(
        self, x: Array, w: Array, dy: Array, transpose: bool, need_dx: bool, need_db: bool, later: bool = False
    ) -> tuple[Array | None, Any, Array | None]:
        if not accepts(x, w, dy) or (self.fast_rounding and has_few_operations(x.shape[0], *w.shape)):
            return super().inner_product_grad(x, w, dy, transpose, need_dx, need_db)
        x, dy = contiguous(x), contiguous(dy)
        left, right = (x, dy) if transpose else (dy, x)
        of_weight = choose_kernel("inner_product_grad_w", WeightGradient, x.shape[0], *w.shape)
        keeps = later and isinstance(of_weight, WeightGradientByBlocks)
        dw = (of_weight.factored if keeps else of_weight)(left, right)
        dx = None
        if need_dx and transpose:
            dx = self.inner_product(dy, w, None)
        elif need_dx:
            dx = choose_kernel("inner_product_grad_x", SourceGradient, x.shape[0], *w.shape)(dy, contiguous(w))
        return dx, dw, column_sums(dy) if need_db else None


class Product:
    """Computes factor·(a b) in ``result``, or adds it to the result: products of matrices, or stacks, of ``dtype``.

    With ``bias``, it adds a row of numbers to each row of a product of matrices.
    """

    def __init__(
        self, a: tuple[Shape, Shape], b: tuple[Shape, Shape], out: tuple[Shape, Shape], dtype: np.dtype = FLOAT32,
        factor: float = 1.0, add: bool = False, bias: bool = False, result: np.dtype = FLOAT32,
    ):  # fmt: skip
        self.shape = out[0]
        post_ops: tuple[Any, ...] = () if factor == 1 else ((LINEAR, factor, 0.0),)
        self.multiply = Primitive(
            *("matmul", engine, strided(*a, dtype), strided(*b, dtype)),
            *(dense((1, out[0][-1])) if bias else None, strided(*out, result)),
            operands=(SRC, WEIGHTS, BIAS, DST) if bias else (SRC, WEIGHTS, DST),
            post_ops=(*post_ops, (SUM,)) if add else post_ops,
            operations=2 * prod(out[0]) * a[0][-1],
        )

    def __call__(self, a: Array, b: Array) -> Array:
        """Return the product as a new array in C order."""
        out = buffers.empty(self.shape)
        self.multiply(a, b, out)
        return out

"""Recurrent layers and attention with oneDNN's matrix products.

oneDNN's recurrent primitives are not used: they do not support lengths.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from dsinga.base import buffers
from dsinga.ops.attention_blocks import BlockSums, attend_in_blocks, derive_in_blocks
from dsinga.ops.layout import contiguous
from dsinga.ops.numpy.attention import NumpyAttention
from dsinga.ops.numpy.recurrent import NumpyRecurrent
from dsinga.ops.onednn.casting import cast_contiguous
from dsinga.ops.onednn.choices import NONE, choose
from dsinga.ops.onednn.elementwise import Function
from dsinga.ops.onednn.library import DST, INFERENCE, LOGISTIC, SRC, WEIGHTS, dense, engine, form_of, free, lib, strided
from dsinga.ops.onednn.primitive import Primitive, accepts, reorder
from dsinga.ops.onednn.products import Product, product
from dsinga.ops.onednn.thread import get_kernel
from dsinga.ops.types import FLOAT32, Array

MIN_PRODUCTS = 4  # by one matrix, from which on it is packed
WIDEST_TRANSPOSED = 256  # columns


class PackedProduct:
    """Computes x W for x (n, I) of ``dtype`` and W (I, O), packed in oneDNN's layout, as float32."""

    def __init__(self, rows: int, inputs: int, outputs: int, transposed: bool, dtype: np.dtype = FLOAT32):
        self.dtype = dtype
        weights = (outputs, inputs)  # as the library sees it
        self.multiply = Primitive(
            "inner_product_forward",
            *(engine, INFERENCE, dense((rows, inputs), dtype), free(weights, dtype), None, dense((rows, outputs))),
            operands=(SRC, WEIGHTS, DST),
            operations=2 * rows * inputs * outputs,
        )
        self.size = self.multiply.size(WEIGHTS) // dtype.itemsize
        self.layout = self.multiply.layout(WEIGHTS)
        self.reorder = reorder(dense(weights) if transposed else strided(weights, (1, outputs)), self.layout)

    def pack(self, matrix: Array) -> Array:
        if self.reorder is None:
            return matrix
        packed = buffers.empty((self.size,), dtype=self.dtype)
        self.reorder(matrix, packed)
        return packed


class Factor(NamedTuple):
    """A matrix that multiplies many others, the row counts to pack it for, and its packed forms by layout."""

    matrix: Array
    rows: frozenset[int]
    packed: list[tuple[PackedProduct, Array]]

    def packed_for(self, kernel: PackedProduct) -> Array:
        """Return the matrix in a kernel's layout, which kernels for other row counts may share."""
        for other, packed in self.packed:
            if other is kernel or lib.dnnl_memory_desc_equal(other.layout, kernel.layout):
                return packed
        self.packed.append((kernel, kernel.pack(self.matrix)))
        return self.packed[-1][1]


def is_tall(a: Array, out: Array) -> bool:
    """Whether the result of aᵀ b has few columns, and more than twice as many rows."""
    return not a.flags.c_contiguous and out.shape[1] < WIDEST_TRANSPOSED and out.shape[0] > 2 * out.shape[1]


class OnednnRecurrent(NumpyRecurrent):
    """The backend's recurrent layers, with matrix products and sigmoids by oneDNN where it accepts the arrays."""

    factor_dtype = FLOAT32
    equal_rows = False

    def multiply_into(self, a: Array, b: Array, out: Array, add: bool = False) -> None:
        if not accepts(a, b, out):
            super().multiply_into(a, b, out, add)
            return
        if self.equal_rows:
            kernel = get_kernel(Product, form_of(a), form_of(b), form_of(out), FLOAT32, 1.0, add)
            if kernel is not None:
                kernel.multiply(a, b, out)
                return
        if add or not is_tall(a, out):
            product(a, b, out, add)
            return
        # The library does not pack matrices of few columns, and its kernel for aᵀ b is faster with the long side last.
        transposed = buffers.empty(out.shape[::-1])
        product(b.T, a.T, transposed)
        out[...] = transposed.T

    def factor(self, matrix: Array, rows: Sequence[int]) -> Factor:
        counts = Counter(rows) if accepts(matrix) and matrix.flags.forc else {}
        least = 1 if self.equal_rows else MIN_PRODUCTS
        return Factor(matrix, frozenset(count for count, uses in counts.items() if uses >= least), [])

    def multiply_by(self, a: Array, factor: Any, out: Array) -> None:
        matrix, rows, _ = factor
        transposed = not matrix.flags.c_contiguous
        shape = len(a), *matrix.shape, transposed, self.factor_dtype
        kernel = get_kernel(PackedProduct, *shape) if len(a) in rows and out.flags.c_contiguous else None
        if kernel is None:
            self.multiply_into(a, matrix, out)
            return
        kernel.multiply(cast_contiguous(contiguous(a), self.factor_dtype), factor.packed_for(kernel), out)

    def sigmoid_into(self, x: Array, out: Array) -> None:
        is_dense = x.flags.c_contiguous and out.flags.c_contiguous
        kernel = get_kernel(Function, x.size, LOGISTIC) if is_dense and accepts(x, out) else None
        if kernel:
            kernel.run(x, out)
        else:
            super().sigmoid_into(x, out)


def _dense_copy(x: Array) -> Array:
    copied = buffers.empty(x.shape, dtype=x.dtype)
    copied[...] = x
    return copied


class OnednnAttention(NumpyAttention):
    """The backend's attention, with float32 products by oneDNN."""

    equal_rows = False

    def batched_product(self, a: Array, b: Array, out: Array, factor: float = 1.0, add: bool = False) -> None:
        forms = (form_of(a), form_of(b), form_of(out)) if accepts(a, b, out) else None
        kernel = get_kernel(Product, *forms, FLOAT32, factor, add) if forms else None
        if kernel is not None:
            kernel.multiply(a, b, out)
        elif forms and self.equal_rows and forms[2] != form_of(y := buffers.empty(out.shape)):
            # The library refuses some strides, and a row of numpy's products depends on the others.
            self.batched_product(_dense_copy(a), _dense_copy(b), y, factor)
            out[...] = out + y if add else y
        else:
            super().batched_product(a, b, out, factor, add)

    def attention(
        self, query: Array, keys: Array, values: Array, heads: int, factor: float, visible: Array | None, train: bool
    ) -> tuple[Array, Any]:
        if not accepts(query, keys, values) or choose("attention", NONE, query.shape[1], keys.shape[1]) is None:
            return super().attention(query, keys, values, heads, factor, visible, train)
        y, sums = attend_in_blocks(self.batched_product, query, keys, values, heads, factor, visible)
        return y, sums if train else None

    def attention_grad(
        self, query: Array, keys: Array, values: Array, y: Array, workspace: Any, dy: Array, heads: int, factor: float,
        visible: Array | None,
    ) -> tuple[Array, Array, Array]:  # fmt: skip
        if isinstance(workspace, BlockSums):
            return derive_in_blocks(self.batched_product, query, keys, values, y, workspace, dy, heads, factor, visible)
        return super().attention_grad(query, keys, values, y, workspace, dy, heads, factor, visible)

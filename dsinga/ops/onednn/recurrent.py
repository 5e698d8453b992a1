"""Recurrent layers with the products of the library.

Weights are packed once for all steps, and one product over all steps finds their gradient. The library's own recurrent
primitives, which have other layouts of the gates and know no lengths, are not used.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from dsinga.ops import buffers
from dsinga.ops.numpy_recurrent import NumpyRecurrent
from dsinga.ops.onednn.descriptors import dense, engine, free, strided
from dsinga.ops.onednn.elementwise import Function
from dsinga.ops.onednn.library import DST, INFERENCE, LOGISTIC, SRC, WEIGHTS
from dsinga.ops.onednn.primitive import Primitive, reorder, suits
from dsinga.ops.onednn.products import product
from dsinga.ops.onednn.thread import get_kernel
from dsinga.ops.types import Array

WORTH = 4  # products that pay for packing a matrix
NARROW = 256  # columns; below, the library does not pack, and its kernel for aᵀ b has the long side of the result last


class _Product:
    """x W for x (n, I), W (I, O), in a layout of W that the library chooses; ``turned`` says that W is a view of Wᵀ.

    Packing takes 0.1 ms for (512, 1536), a product with 50 rows then 0.91 where ``sgemm`` takes 1.03.
    """

    def __init__(self, rows: int, inputs: int, outputs: int, turned: bool):
        weights = (outputs, inputs)  # as the library sees it
        self.multiply = Primitive(
            "inner_product_forward",
            *(engine, INFERENCE, dense((rows, inputs)), free(weights), None, dense((rows, outputs))),
            operands=(SRC, WEIGHTS, DST),
            operations=2 * rows * inputs * outputs,
        )
        self.size = self.multiply.size(WEIGHTS) // np.dtype(np.float32).itemsize
        given = dense(weights) if turned else strided(weights, (1, outputs))
        self.reorder = reorder(given, self.multiply.layout(WEIGHTS))

    def pack(self, matrix: Array) -> Array:
        if self.reorder is None:
            return matrix
        packed = buffers.empty((self.size,))
        self.reorder(matrix, packed)
        return packed


class Factor(NamedTuple):
    """A matrix that stands on the right of many products: itself, for how many rows it is packed, and packed."""

    matrix: Array
    rows: frozenset[int]
    packed: dict[_Product, Array]


def _is_tall(a: Array, out: Array) -> bool:
    """Whether a product aᵀ b is found faster turned: (2500, 1536)ᵀ (2500, 101) in 11 instead of 25 ms, on AVX2."""
    return not a.flags.c_contiguous and out.shape[1] < NARROW and out.shape[0] > 2 * out.shape[1]


class OnednnRecurrent(NumpyRecurrent):
    """The products of recurrent layers by the library, on float32."""

    def multiply_into(self, a: Array, b: Array, out: Array, add: bool = False) -> None:
        if not suits(a, b, out):
            super().multiply_into(a, b, out, add)
            return
        if _is_tall(a, out) and not add:
            turned = buffers.empty(out.shape[::-1])
            self.multiply_into(b.T, a.T, turned)
            out[...] = turned.T
            return
        product(a, b, out, add)

    def factor(self, matrix: Array, rows: Sequence[int]) -> Factor:
        often = [count for count, uses in Counter(rows).items() if uses >= WORTH] if suits(matrix) else []
        return Factor(matrix, frozenset(often), {})

    def multiply_by(self, a: Array, factor: Any, out: Array) -> None:
        matrix, rows, packed = factor
        turned = not matrix.flags.c_contiguous
        kernel = get_kernel(_Product, len(a), *matrix.shape, turned) if len(a) in rows else None
        if kernel is None:
            self.multiply_into(a, matrix, out)
            return
        if kernel not in packed:
            packed[kernel] = kernel.pack(matrix)
        kernel.multiply(np.ascontiguousarray(a), packed[kernel], out)

    def sigmoid_in_place(self, x: Array) -> None:
        kernel = get_kernel(Function, x.size, LOGISTIC) if suits(x) else None
        if kernel:
            kernel.run(x, x)
        else:
            super().sigmoid_in_place(x)

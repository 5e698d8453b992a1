"""Attention by the library's products of many small matrices, which read and write heads where they are."""

from __future__ import annotations

from dsinga.ops.numpy_attention import NumpyAttention
from dsinga.ops.onednn.descriptors import engine, strided
from dsinga.ops.onednn.library import DST, LINEAR, SRC, WEIGHTS
from dsinga.ops.onednn.primitive import Primitive, accepts
from dsinga.ops.onednn.thread import get_kernel
from dsinga.ops.types import Array

Shape = tuple[int, ...]


class BatchedProduct:
    """factor·(a b) for a (B, h, i, j) and b (B, h, j, k), of these shapes and strides in numbers."""

    def __init__(self, a: tuple[Shape, Shape], b: tuple[Shape, Shape], out: tuple[Shape, Shape], factor: float):
        rows, depth, columns = a[0][2], a[0][3], b[0][3]
        self.multiply = Primitive(
            *("matmul", engine, strided(*a), strided(*b), None, strided(*out)),
            operands=(SRC, WEIGHTS, DST),
            post_ops=() if factor == 1 else ((LINEAR, factor, 0.0),),
            operations=2 * a[0][0] * a[0][1] * rows * depth * columns,
        )


class OnednnAttention(NumpyAttention):
    """The products of attention by the library, on float32; its softmax and tanh are those of other layers."""

    def batched_product(self, a: Array, b: Array, out: Array, factor: float = 1.0) -> None:
        kernel = None
        if accepts(a, b, out):
            kernel = get_kernel(BatchedProduct, _layout(a), _layout(b), _layout(out), factor)
        if kernel is None:
            super().batched_product(a, b, out, factor)
        else:
            kernel.multiply(a, b, out)


def _layout(x: Array) -> tuple[Shape, Shape]:
    return x.shape, tuple(stride // x.itemsize for stride in x.strides)

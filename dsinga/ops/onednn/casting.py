"""Conversion of arrays between float32 and bfloat16, which has float32's exponents and 7 bits of mantissa."""

from __future__ import annotations

import numpy as np

from dsinga.base import buffers
from dsinga.ops.layout import LAST, contiguous, to_image, to_rows
from dsinga.ops.onednn.library import BFLOAT16, dense, form_of, strided
from dsinga.ops.onednn.primitive import conversion
from dsinga.ops.onednn.thread import get_kernel
from dsinga.ops.types import FLOAT32, Array, Shape


class ContiguousCast:
    """Converts n contiguous numbers between float32 and bfloat16."""

    def __init__(self, size: int, source: np.dtype, result: np.dtype):
        self.run = conversion(dense((size,), source), dense((size,), result))


class StridedCast:
    """Converts a float32 array of given shape and strides to gapless bfloat16 in the same order of axes."""

    def __init__(self, shape: Shape, strides: Shape):
        order = sorted(range(len(shape)), key=lambda axis: (-strides[axis], shape[axis] == 1))
        self.shape = tuple(shape[axis] for axis in order)
        self.axes = tuple(order.index(axis) for axis in range(len(shape)))
        array = np.empty(self.shape, np.uint8).transpose(self.axes)  # strides in bytes are strides in numbers
        self.run = conversion(strided(shape, strides), strided(shape, array.strides, BFLOAT16))

    def __call__(self, x: Array) -> Array:
        result = buffers.empty(self.shape, dtype=BFLOAT16).transpose(self.axes)
        self.run(x, result)
        return result


def cast(x: Array, dtype: np.dtype) -> Array:
    """Convert x to ``dtype``, float32 or bfloat16, unless it has it."""
    if x.dtype == dtype:
        return x
    if x.ndim in LAST:
        return to_image(cast_contiguous(to_rows(x), dtype))
    return cast_contiguous(contiguous(x), dtype)


def cast_contiguous(x: Array, dtype: np.dtype) -> Array:
    """Convert x to a C-contiguous array of ``dtype``, unless it is one."""
    if x.dtype == dtype:
        return x
    result = buffers.empty(x.shape, dtype=dtype)
    cast_into(x, result)
    return result


def cast_into(x: Array, result: Array) -> None:
    """Write a C-contiguous array to another one in its dtype, float32 or bfloat16."""
    kernel = get_kernel(ContiguousCast, x.size, x.dtype, result.dtype) if x.size else None
    if kernel:
        kernel.run(x, result)
    else:
        result[...] = x


def cast_factor(x: Array) -> Array:
    """Convert a factor of products, a matrix or a stack, to bfloat16 in the same memory order."""
    if x.dtype == BFLOAT16:
        return x
    kernel = get_kernel(StridedCast, *form_of(x))
    return x.astype(BFLOAT16) if kernel is None else kernel(x)


def cast_like(x: Array, target: Array) -> Array:
    """Convert x to the dtype of ``target``, if one is float32 and the other bfloat16."""
    if x.dtype == target.dtype:  # as a rule
        return x
    return cast(x, target.dtype) if {x.dtype, target.dtype} == {FLOAT32, BFLOAT16} else x


def to_float32(x: Array) -> Array:
    """Convert x to float32 if it is bfloat16."""
    return cast(x, FLOAT32) if x.dtype == BFLOAT16 else x

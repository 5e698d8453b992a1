"""Conversion of arrays between float32 and bfloat16, which has float32's exponents and 7 bits of mantissa."""

from __future__ import annotations

import numpy as np

from dsinga.ops import buffers
from dsinga.ops.layout import to_image, to_rows
from dsinga.ops.onednn.library import AVX512_BF16, BFLOAT16, dense, get_instructions
from dsinga.ops.onednn.primitive import conversion
from dsinga.ops.onednn.thread import get_kernel
from dsinga.ops.types import FLOAT32, Array


class Cast:
    """The conversion of n numbers; to bfloat16 it rounds to the nearest."""

    def __init__(self, size: int, source: np.dtype, result: np.dtype):
        self.run = conversion(dense((size,), source), dense((size,), result))


def cast(x: Array, dtype: np.dtype) -> Array:
    """Return x in ``dtype``, x itself where it is of that already; both are float32 or bfloat16.

    An image comes in channels-last memory, another array C-contiguous.
    """
    if x.dtype == dtype:
        return x
    if x.ndim == 4:
        return to_image(cast_rows(to_rows(x), dtype))
    return cast_rows(np.ascontiguousarray(x), dtype)


def cast_rows(x: Array, dtype: np.dtype) -> Array:
    """Return a C-contiguous array in ``dtype``, itself where it is of that already."""
    if x.dtype == dtype:
        return x
    result = buffers.empty(x.shape, dtype=dtype)
    kernel = get_kernel(Cast, x.size, x.dtype, dtype) if x.size else None
    if kernel:
        kernel.run(x, result)
    else:
        result[...] = x
    return result


def widen(x: Array) -> Array:
    """Return x in float32 if it is bfloat16, else x itself."""
    return cast(x, FLOAT32) if x.dtype == BFLOAT16 else x


def cast_like(x: Array, other: Array) -> Array:
    """Return ``other`` in the dtype of x, where that and its own are float32 or bfloat16."""
    return like(x, other)[0]


def like(x: Array, *others: Array) -> list[Array]:
    """Return ``others`` in the dtype of x, where that and theirs are float32 or bfloat16."""
    return [cast(other, x.dtype) if {x.dtype, other.dtype} == {FLOAT32, BFLOAT16} else other for other in others]


def has_bf16() -> bool:
    """Whether the processor multiplies bfloat16: it has AVX512_BF16 or AMX, and the environment allows them."""
    return get_instructions() & AVX512_BF16 == AVX512_BF16

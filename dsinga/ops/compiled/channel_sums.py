"""Sums along channels of batch normalisation, in one pass, with the bits of ``dsinga.ops.onednn.batchnorm``.

Arrays are (k, n, w): n rows are added in float32 one after the other, these k sums in float64. Numbers are float32, or
bfloat16 given as uint16, the upper half of the bits of a float32.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numba import extending, types

from dsinga.ops.compiled.compiler import compile_loop
from dsinga.ops.types import FLOAT32, Array


def _bitcast(context: Any, builder: Any, signature: Any, args: Any) -> Any:
    return builder.bitcast(args[0], context.get_value_type(signature.return_type))


def _float_of(context: Any, bits: Any) -> Any:
    """Return the type, and the code, of the float32 of 32 bits (uint32)."""
    return types.float32(types.uint32), _bitcast


def _bits_of(context: Any, number: Any) -> Any:
    """Return the type, and the code, of the 32 bits (uint32) of a float32."""
    return types.uint32(types.float32), _bitcast


float_of: Any = extending.intrinsic(_float_of)
bits_of: Any = extending.intrinsic(_bits_of)


def float32_sums(x: Array, y: Array) -> Array:
    """Return (Σ y, Σ x·y) of float32 x and y (k, n, w): (2, w) in float64."""
    width = x.shape[2]
    partial = np.empty((2, width), np.float32)
    total = np.zeros((2, width), np.float64)
    for k in range(x.shape[0]):
        partial[:] = 0.0
        for n in range(x.shape[1]):
            for w in range(width):
                partial[0, w] += y[k, n, w]
                partial[1, w] += x[k, n, w] * y[k, n, w]
        for w in range(width):
            total[0, w] += partial[0, w]
            total[1, w] += partial[1, w]
    return total


def bf16_sums(x: Array, y: Array) -> Array:
    """Return what :func:`float32_sums` does, of bfloat16."""
    width = x.shape[2]
    partial = np.empty((2, width), np.float32)
    total = np.zeros((2, width), np.float64)
    for k in range(x.shape[0]):
        partial[:] = 0.0
        for n in range(x.shape[1]):
            for w in range(width):
                number = float_of(np.uint32(y[k, n, w]) << np.uint32(16))
                partial[0, w] += number
                partial[1, w] += float_of(np.uint32(x[k, n, w]) << np.uint32(16)) * number
        for w in range(width):
            total[0, w] += partial[0, w]
            total[1, w] += partial[1, w]
    return total


def float32_rectified_sums(x: Array, feature: Array, dy: Array, masked: Array) -> Array:
    """Write dy where ``feature`` is above 0, and else dy·0, to ``masked``; return (Σ masked, Σ x·masked), (2, w)."""
    width = x.shape[2]
    partial = np.empty((2, width), np.float32)
    total = np.zeros((2, width), np.float64)
    for k in range(x.shape[0]):
        partial[:] = 0.0
        for n in range(x.shape[1]):
            for w in range(width):
                slope = np.float32(1.0) if feature[k, n, w] > 0.0 else np.float32(0.0)
                gradient = dy[k, n, w] * slope
                masked[k, n, w] = gradient
                partial[0, w] += gradient
                partial[1, w] += x[k, n, w] * gradient
        for w in range(width):
            total[0, w] += partial[0, w]
            total[1, w] += partial[1, w]
    return total


def bf16_rectified_sums(x: Array, feature: Array, dy: Array, masked: Array) -> Array:
    """Do what :func:`float32_rectified_sums` does, on bfloat16."""
    width = x.shape[2]
    partial = np.empty((2, width), np.float32)
    total = np.zeros((2, width), np.float64)
    for k in range(x.shape[0]):
        partial[:] = 0.0
        for n in range(x.shape[1]):
            for w in range(width):
                number = float_of(np.uint32(feature[k, n, w]) << np.uint32(16))
                slope = np.float32(1.0) if number > 0.0 else np.float32(0.0)
                gradient = float_of(np.uint32(dy[k, n, w]) << np.uint32(16)) * slope
                masked[k, n, w] = bits_of(gradient) >> np.uint32(16)
                partial[0, w] += gradient
                partial[1, w] += float_of(np.uint32(x[k, n, w]) << np.uint32(16)) * gradient
        for w in range(width):
            total[0, w] += partial[0, w]
            total[1, w] += partial[1, w]
    return total


def _compiled(number: Any, of_two: Callable[..., Array], rectified: Callable[..., Array]) -> tuple[Any, Any]:
    read, written = (types.Array(number, 3, "C", readonly=readonly) for readonly in (True, False))
    result = types.float64[:, ::1]
    return compile_loop(result(read, read), of_two), compile_loop(result(read, read, read, written), rectified)


_LOOPS = {
    FLOAT32: _compiled(types.float32, float32_sums, float32_rectified_sums),
    np.dtype(np.uint16): _compiled(types.uint16, bf16_sums, bf16_rectified_sums),
}


def sums(x: Array, y: Array) -> Array:
    """Return (Σ y, Σ x·y) of x and y (k, n, w): (2, w) in float64."""
    return _LOOPS[x.dtype][0](x, y)


def rectified_sums(x: Array, feature: Array, dy: Array, masked: Array) -> Array:
    """Write dy where ``feature`` is above 0, and else dy·0, to ``masked``; return (Σ masked, Σ x·masked), (2, w)."""
    return _LOOPS[x.dtype][1](x, feature, dy, masked)

"""Compiled sums along the channels of batch normalisation, in one pass, as in ``dsinga.ops.onednn.batchnorm``.

Arrays are (k, n, w): n rows are added in float32 in order, the k sums in float64. Numbers are float32, or bfloat16 as
uint16, the upper half of a float32.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import extending, types

from dsinga.ops.compiled.compiler import compile_loop
from dsinga.ops.types import FLOAT32, Array


def _number(context: Any, stored: Any) -> Any:
    """Generate code that reads a stored number (float32, or bfloat16 as uint16) as float32."""

    def code(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        if stored == types.float32:
            return args[0]
        bits = builder.zext(args[0], context.get_value_type(types.uint32))
        bits = builder.shl(bits, bits.type(16))
        return builder.bitcast(bits, context.get_value_type(types.float32))

    return types.float32(stored), code


def _stored(context: Any, number: Any, like: Any) -> Any:
    """Generate code that truncates a float32 to a stored number's type."""

    def code(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        if like == types.float32:
            return args[0]
        bits = builder.bitcast(args[0], context.get_value_type(types.uint32))
        return builder.trunc(builder.lshr(bits, bits.type(16)), context.get_value_type(types.uint16))

    return like(number, like), code


number_of: Any = extending.intrinsic(_number)
stored_as: Any = extending.intrinsic(_stored)


def _sums(x: Array, y: Array) -> Array:
    width = x.shape[2]
    partial = np.empty((2, width), np.float32)
    total = np.zeros((2, width), np.float64)
    for k in range(x.shape[0]):
        partial[:] = 0.0
        for n in range(x.shape[1]):
            for w in range(width):
                number = number_of(y[k, n, w])
                partial[0, w] += number
                partial[1, w] += number_of(x[k, n, w]) * number
        for w in range(width):
            total[0, w] += partial[0, w]
            total[1, w] += partial[1, w]
    return total


def _rectified_sums(x: Array, feature: Array, dy: Array, masked: Array) -> Array:
    width = x.shape[2]
    partial = np.empty((2, width), np.float32)
    total = np.zeros((2, width), np.float64)
    for k in range(x.shape[0]):
        partial[:] = 0.0
        for n in range(x.shape[1]):
            for w in range(width):
                slope = np.float32(1.0) if number_of(feature[k, n, w]) > 0.0 else np.float32(0.0)
                gradient = number_of(dy[k, n, w]) * slope
                masked[k, n, w] = stored_as(gradient, dy[k, n, w])
                partial[0, w] += gradient
                partial[1, w] += number_of(x[k, n, w]) * gradient
        for w in range(width):
            total[0, w] += partial[0, w]
            total[1, w] += partial[1, w]
    return total


def _compiled(number: Any) -> tuple[Any, Any]:
    read, written = (types.Array(number, 3, "C", readonly=readonly) for readonly in (True, False))
    result = types.float64[:, ::1]
    return compile_loop(result(read, read), _sums), compile_loop(result(read, read, read, written), _rectified_sums)


_LOOPS = {FLOAT32: _compiled(types.float32), np.dtype(np.uint16): _compiled(types.uint16)}


def sums(x: Array, y: Array) -> Array:
    """Compute (Σ y, Σ x·y) of x and y (k, n, w): (2, w) in float64."""
    return _LOOPS[x.dtype][0](x, y)


def rectified_sums(x: Array, feature: Array, dy: Array, masked: Array) -> Array:
    """Write ReLU's gradient, dy where ``feature`` > 0, else dy·0, to ``masked``; return its sums Σ and Σ x·, (2, w)."""
    return _LOOPS[x.dtype][1](x, feature, dy, masked)

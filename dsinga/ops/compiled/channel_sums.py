"""Sums along channels of batch normalisation, in one pass, with the bits of ``dsinga.ops.onednn.batchnorm``.

Arrays are (k, n, w): n rows are added in float32 one after the other, these k sums in float64.
"""

from __future__ import annotations

import numpy as np
from numba import types

from dsinga.ops.compiled.compiler import compile_loop
from dsinga.ops.types import Array


def sums(x: Array, y: Array) -> Array:
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


def rectified_sums(x: Array, feature: Array, dy: Array, masked: Array) -> Array:
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


_read, _written = (types.Array(types.float32, 3, "C", readonly=readonly) for readonly in (True, False))
sums = compile_loop(types.float64[:, ::1](_read, _read), sums)
rectified_sums = compile_loop(types.float64[:, ::1](_read, _read, _read, _written), rectified_sums)

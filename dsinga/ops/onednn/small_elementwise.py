"""Elementwise kernels by numpy for arrays so small that calling oneDNN takes longer than computing them."""

from __future__ import annotations

from typing import Any

import numpy as np

from dsinga.ops.types import Array


class _SmallKernel:
    """A kernel for arrays of one size; its arguments are those of the library's kernel in its place."""

    def __init__(self, size: int, *constants: Any):
        self.constants = constants


class SmallTanh(_SmallKernel):
    """outer·tanh(inner·x)."""

    def __call__(self, x: Array) -> Array:
        outer, inner = self.constants
        if outer == inner == 1.0:
            return np.tanh(x)
        y = np.tanh(x * np.float32(inner))
        y *= np.float32(outer)
        return y


class SmallTanhGradient(_SmallKernel):
    """(inner·outer - y²·inner/outer)·dy."""

    def __call__(self, y: Array, dy: Array) -> Array:
        outer, inner = self.constants
        dx = y * y
        if outer == inner == 1.0:
            np.subtract(1.0, dx, out=dx)
        else:
            dx *= -inner / outer
            dx += inner * outer
        dx *= dy
        return dx


class SmallReLU(_SmallKernel):
    """max(x, 0), which like the library's is 0 for NaN."""

    def __call__(self, x: Array) -> Array:
        return np.fmax(x, 0.0)


class SmallReLUGradient(_SmallKernel):
    """dy where y is above 0, else 0, in the layout of y."""

    def __call__(self, y: Array, dy: Array) -> Array:
        return np.multiply(y > 0.0, dy, out=np.empty_like(y))

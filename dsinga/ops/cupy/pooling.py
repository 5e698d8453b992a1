"""Pooling on channels-last images, by one thread for each number of the result, which adds in a fixed order."""

from __future__ import annotations

from typing import Any

import numpy as np

from dsinga.ops.cupy.arrays import empty_image, to_rows
from dsinga.ops.cupy.kernels import Source
from dsinga.ops.cupy.library import cupy
from dsinga.ops.interface import Ops
from dsinga.ops.layout import output_sizes
from dsinga.ops.types import Array, Pair

windows = Source("windows")


def geometry(x: tuple[int, ...], outputs: tuple[int, ...], kernel: Pair, stride: Pair, pad: Pair) -> tuple[int, ...]:
    """Return the arguments of the macro ``WINDOWS``, given an image shape (B, C, H, W) and windows."""
    return (x[2], x[3], x[1], *outputs, *kernel, *stride, *pad)


class CupyPooling(Ops):
    """Maximum and mean over windows; the workspace has the position of each maximum in its window."""

    def max_pool(self, x: Array, kernel: Pair, stride: Pair, pad: Pair, train: bool) -> tuple[Array, Any]:
        outputs = output_sizes(x.shape, kernel, stride, pad)
        y = empty_image((*x.shape[:2], *outputs), x.dtype)
        winners = cupy.empty((x.shape[0], *outputs, x.shape[1]), np.uint16) if train else None
        sizes = geometry(x.shape, outputs, kernel, stride, pad)
        windows.each("max_pool", x.dtype, y.size, to_rows(x), y, winners, *sizes)
        return y, winners

    def max_pool_grad(self, x: Array, workspace: Any, dy: Array, kernel: Pair, stride: Pair, pad: Pair) -> Array:
        dx, sizes = empty_image(x.shape, dy.dtype), geometry(x.shape, dy.shape[2:], kernel, stride, pad)
        windows.each("max_pool_grad", dy.dtype, dx.size, workspace, to_rows(dy), dx, *sizes)
        return dx

    def avg_pool(self, x: Array, kernel: Pair, stride: Pair, pad: Pair) -> Array:
        outputs = output_sizes(x.shape, kernel, stride, pad)
        y = empty_image((*x.shape[:2], *outputs), x.dtype)
        windows.each("avg_pool", x.dtype, y.size, to_rows(x), y, *geometry(x.shape, outputs, kernel, stride, pad))
        return y

    def avg_pool_grad(self, x: Array, dy: Array, kernel: Pair, stride: Pair, pad: Pair) -> Array:
        dx, sizes = empty_image(x.shape, dy.dtype), geometry(x.shape, dy.shape[2:], kernel, stride, pad)
        windows.each("avg_pool_grad", dy.dtype, dx.size, to_rows(dy), dx, *sizes)
        return dx

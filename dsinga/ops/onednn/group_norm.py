"""Normalisation by row and channel: the kernels of batch normalisation, on one row after the other.

A row of an image then stays in the cache between its passes.
"""

from __future__ import annotations

from math import prod

import numpy as np

from dsinga.ops import buffers
from dsinga.ops.layout import LAST
from dsinga.ops.numpy.group_norm import NumpyGroupNorm
from dsinga.ops.onednn.batchnorm import SHORTEST, Affine, OnednnBatchNorm, pixel_rows, repeat_constants, wide_table
from dsinga.ops.onednn.library import ADD, DST, MULTIPLY, SRC, SRC_1, engine
from dsinga.ops.onednn.primitive import Primitive, accepts, operand_of
from dsinga.ops.onednn.thread import get_kernel
from dsinga.ops.types import FLOAT32, Array


class _ProductAndSum:
    """x·factor + other on (n, C), in one pass over (n/g, g·C)."""

    def __init__(self, rows: int, channels: int):
        self.group, x, row = wide_table(rows, channels, FLOAT32)
        self.run = Primitive(
            *("binary", engine, MULTIPLY, x, row, x), operands=(SRC, SRC_1, operand_of(0), DST), post_ops=((ADD, x),)
        )

    def __call__(self, x: Array, factor: Array, other: Array, y: Array) -> None:
        self.run(x, repeat_constants(self.group, factor)[0], other, y)


class OnednnGroupNorm(NumpyGroupNorm, OnednnBatchNorm):
    """The kernels of group normalisation, for images whose rows have many points."""

    def row_moments(self, x: Array) -> tuple[Array, Array]:
        if not _large(x):
            return super().row_moments(x)
        mean, variance = zip(*(self.channel_moments(x[row : row + 1]) for row in range(len(x))), strict=True)
        return np.stack(mean), np.stack(variance)

    def row_affine(self, x: Array, scale: Array, shift: Array) -> Array:
        affine = get_kernel(Affine, prod(x.shape[2:]), x.shape[1]) if _large(x) else None
        if not affine:
            return super().row_affine(x, scale, shift)
        y = buffers.empty(x.shape, channels_last=True)
        scale, shift = scale.astype(FLOAT32), shift.astype(FLOAT32)
        for row, constants in enumerate(zip(scale, shift, strict=True)):
            affine(pixel_rows(x[row : row + 1]), pixel_rows(y[row : row + 1]), *constants)
        return y

    def row_sums(self, x: Array, dy: Array, mean: Array) -> tuple[Array, Array]:
        if not _large(x, dy):
            return super().row_sums(x, dy, mean)
        no_variance = np.ones(x.shape[1])
        sums = [
            self.batch_norm_sums(x[row : row + 1], dy[row : row + 1], mean[row], no_variance, 0.0)
            for row in range(len(x))
        ]
        first, along = zip(*sums, strict=True)
        return np.stack(first), np.stack(along)

    def row_affine_grad(self, x: Array, dy: Array, factor: Array, slope: Array, shift: Array) -> Array:
        size = prod(x.shape[2:]), x.shape[1]
        add = get_kernel(_ProductAndSum, *size) if _large(x, dy) else None
        affine = get_kernel(Affine, *size) if add else None
        if not (add and affine):
            return super().row_affine_grad(x, dy, factor, slope, shift)
        dx, moved = buffers.empty(x.shape, channels_last=True), buffers.empty(size)
        factor, slope, shift = (constants.astype(FLOAT32) for constants in (factor, slope, shift))
        for row in range(len(x)):
            affine(pixel_rows(x[row : row + 1]), moved, slope[row], shift[row])
            add(pixel_rows(dy[row : row + 1]), factor[row], moved, pixel_rows(dx[row : row + 1]))
        return dx


def _large(*arrays: Array) -> bool:
    """Whether images are float32 and each row has enough points; numpy computes smaller ones."""
    return accepts(*arrays) and arrays[0].ndim in LAST and prod(arrays[0].shape[2:]) >= 4 * SHORTEST

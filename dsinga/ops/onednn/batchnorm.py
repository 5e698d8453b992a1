"""Batch normalisation by the library: sums along channels, and what goes over a feature, in one pass each.

The library sums all rows in float32: the mean of 65536 numbers about 3 comes out 3e-5 off. Here it sums over blocks of
rows, and what it finds of these is put together in float64. What it normalises meanwhile, nobody reads: that is written
over and over, block after block, and stays in the cache.
"""

from __future__ import annotations

import ctypes
from math import gcd

import numpy as np

from dsinga.ops import buffers
from dsinga.ops.interface import Array
from dsinga.ops.layout import by_channel
from dsinga.ops.numpy_normalisation import NumpyNormalisation
from dsinga.ops.onednn.descriptors import Handle, dense, engine, image
from dsinga.ops.onednn.library import (
    ADD,
    BACKWARD,
    DIFF_DST,
    DIFF_SCALE,
    DIFF_SHIFT,
    DIFF_SRC,
    DST,
    MEAN,
    MULTIPLY,
    SCALE,
    SHIFT,
    SRC,
    SRC_1,
    TRAINING,
    USE_GLOBAL_STATS,
    USE_SCALE,
    USE_SHIFT,
    VARIANCE,
)
from dsinga.ops.onednn.primitive import Primitive, operand_of, suits
from dsinga.ops.onednn.thread import get_kernel

LONGEST = 8192  # rows of a block: more, and float32 loses digits that matter
LARGEST = 512 * 1024  # elements of a block; smaller ones cost more in calls than they gain
WIDE = (
    256  # columns: shorter rows are joined until they are as long, or sums of rows and constants run at half the speed
)
GIVEN = USE_GLOBAL_STATS | USE_SCALE | USE_SHIFT


class _Moments:
    """Mean and variance of each column of (n, C)."""

    def __init__(self, rows: int, channels: int):
        self.normalise = _forward(rows, channels, 0.0, 0, (SRC, DST, MEAN, VARIANCE))
        self.found = np.empty((2, channels), np.float32)

    def __call__(self, x: Array, unread: Array) -> Array:
        mean, variance = self.found
        self.normalise(x, unread, mean, variance)
        return self.found


class _Affine:
    """x·scale + shift on (n, C), as normalisation by a mean of 0 and a variance of 1."""

    def __init__(self, rows: int, channels: int):
        self.normalise = _forward(rows, channels, 0.0, GIVEN, (SRC, DST, MEAN, VARIANCE, SCALE, SHIFT))
        self.given = np.zeros(channels, np.float32), np.ones(channels, np.float32)

    def __call__(self, x: Array, y: Array, scale: Array, shift: Array) -> None:
        self.normalise(x, y, *self.given, scale, shift)


class _Sums:
    """Σ dy and Σ dy·x̂ along each column of (n, C): the gradients of shift and scale."""

    def __init__(self, rows: int, channels: int, epsilon: float):
        forward = _forward(rows, channels, epsilon, GIVEN, (SRC, DST, MEAN, VARIANCE, SCALE, SHIFT))
        table = _table(rows, channels)
        self.back = Primitive(
            "batch_normalization_backward",
            *(engine, BACKWARD, table, table, table, ctypes.c_float(epsilon), GIVEN, forward.description),
            operands=(SRC, DIFF_DST, DIFF_SRC, MEAN, VARIANCE, SCALE, DIFF_SHIFT, DIFF_SCALE),
        )
        self.scale, self.found = np.ones(channels, np.float32), np.empty((2, channels), np.float32)

    def __call__(self, x: Array, dy: Array, unread: Array, mean: Array, variance: Array) -> Array:
        self.back(x, dy, unread, mean, variance, self.scale, *self.found)
        return self.found


def _forward(rows: int, channels: int, epsilon: float, flags: int, operands: tuple[int, ...]) -> Primitive:
    table = _table(rows, channels)
    return Primitive(
        "batch_normalization_forward",
        *(engine, TRAINING, table, table, ctypes.c_float(epsilon), flags),
        operands=operands,
    )


def _table(rows: int, channels: int) -> Handle:
    """Describe (n, C) as one image of C channels, which is what the library normalises."""
    return image((1, channels, rows, 1))


class _Gradient:
    """(x·slope + shift + dy)·factor on (n, C), in one pass over (n/g, g·C): short rows are joined."""

    def __init__(self, rows: int, channels: int):
        self.group = gcd(rows, max(1, WIDE // channels))
        x, row = dense((rows // self.group, self.group * channels)), dense((1, self.group * channels))
        self.run = Primitive(
            *("binary", engine, MULTIPLY, x, row, x),
            operands=(SRC, SRC_1, operand_of(0), operand_of(1), operand_of(2), DST),
            post_ops=((ADD, row), (ADD, x), (MULTIPLY, row)),
        )

    def __call__(self, x: Array, dy: Array, dx: Array, factor: Array, slope: Array, shift: Array) -> None:
        factor, slope, shift = np.tile(np.array([factor, slope, shift], np.float32), self.group)
        self.run(x, slope, shift, dy, factor, dx)


def _rows(x: Array) -> Array:
    return np.ascontiguousarray(by_channel(x))


def _cut(rows: int, channels: int) -> list[slice]:
    """Return blocks of rows, the first one the largest."""
    step = max(1, min(LONGEST, LARGEST // channels))
    return [slice(start, min(start + step, rows)) for start in range(0, rows, step)]


class OnednnBatchNorm(NumpyNormalisation):
    """The per-channel kernels of batch normalisation."""

    def channel_moments(self, x: Array) -> tuple[Array, Array]:
        if not suits(x):
            return super().channel_moments(x)
        rows = _rows(x)
        count, channels = rows.shape
        blocks = _cut(count, channels)
        unread = buffers.empty((blocks[0].stop, channels))
        found = np.empty((len(blocks), 2, channels))
        for block, moments in zip(blocks, found, strict=True):
            find = get_kernel(_Moments, block.stop - block.start, channels)
            if find is None:
                return super().channel_moments(x)
            moments[...] = find(rows[block], unread)
        if len(blocks) == 1:
            return found[0, 0], found[0, 1]
        weights = np.array([(block.stop - block.start) / count for block in blocks])
        mean = weights @ found[:, 0]
        return mean, weights @ (found[:, 1] + np.square(found[:, 0] - mean))

    def channel_affine(self, x: Array, scale: Array, shift: Array) -> Array:
        possible = suits(x) and x.ndim in (2, 4)
        affine = get_kernel(_Affine, x.size // x.shape[1], x.shape[1]) if possible else None
        if not affine:
            return super().channel_affine(x, scale, shift)
        y = buffers.empty(x.shape, channels_last=x.ndim == 4)
        affine(_rows(x), y, np.ascontiguousarray(scale, np.float32), np.ascontiguousarray(shift, np.float32))
        return y

    def batch_norm_sums(self, x: Array, dy: Array, mean: Array, variance: Array, epsilon: float) -> tuple[Array, Array]:
        if not suits(x, dy):
            return super().batch_norm_sums(x, dy, mean, variance, epsilon)
        rows, dy_rows = _rows(x), _rows(dy)
        count, channels = rows.shape
        blocks = _cut(count, channels)
        given = np.asarray(mean, np.float32), np.asarray(variance, np.float32)
        unread = buffers.empty((blocks[0].stop, channels))
        sums = np.zeros((2, channels))
        for block in blocks:
            back = get_kernel(_Sums, block.stop - block.start, channels, epsilon)
            if back is None:
                return super().batch_norm_sums(x, dy, mean, variance, epsilon)
            sums += back(rows[block], dy_rows[block], unread, *given)
        return sums[0], sums[1]

    def batch_norm_grad(self, x: Array, dy: Array, factor: Array, slope: Array, shift: Array) -> Array:
        possible = suits(x, dy) and x.ndim in (2, 4)
        back = get_kernel(_Gradient, x.size // x.shape[1], x.shape[1]) if possible else None
        if not back:
            return super().batch_norm_grad(x, dy, factor, slope, shift)
        dx = buffers.empty(x.shape, channels_last=x.ndim == 4)
        back(_rows(x), _rows(dy), dx, factor, slope, shift)
        return dx

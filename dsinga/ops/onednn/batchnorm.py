"""Batch normalisation by the library: sums along channels, and what goes over a feature, in one pass each.

The library sums all rows in float32, one after the other: of 6400 numbers its variance is 5e-5 off. Here it sums over
each record, or equal parts of it, and what it finds of these is put together in float64. That leaves an error of 3e-6
at most, and a batch that is cut over workers has the same sums. What the library normalises meanwhile, nobody reads:
that is written over and over, block after block, and stays in the cache.
"""

from __future__ import annotations

import ctypes
from math import gcd, prod

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
from dsinga.ops.onednn.thread import get_kernel, one_thread

SHORTEST, LONGEST = 16, 1024  # rows of a block: fewer cost more in calls than they take, of more float32 loses digits
WIDE = 256  # columns that shorter rows are joined to: constants of 16 channels would meet them at a third of the speed
GIVEN = USE_GLOBAL_STATS | USE_SCALE | USE_SHIFT


class _Moments:
    """Mean and variance of each column of blocks of ``rows`` rows, (blocks·rows, C)."""

    def __init__(self, rows: int, channels: int):
        with one_thread():
            self.normalise = _forward(rows, channels, 0.0, 0, (SRC, DST, MEAN, VARIANCE))
        self.block = rows, channels

    def __call__(self, x: Array) -> tuple[Array, Array]:
        (rows, channels), size = self.block, x.itemsize
        count, unread = len(x) // rows, buffers.empty(self.block)
        mean, variance = np.empty((2, count, channels), np.float32)
        along = channels * size
        with one_thread():
            self.normalise.sweep(count, (x, rows * along), (unread, 0), (mean, along), (variance, along))
        return mean, variance


class _Affine:
    """x·scale + shift on (n, C), as normalisation by a mean of 0 and a variance of 1."""

    def __init__(self, rows: int, channels: int):
        self.normalise = _forward(rows, channels, 0.0, GIVEN, (SRC, DST, MEAN, VARIANCE, SCALE, SHIFT))
        self.given = np.zeros(channels, np.float32), np.ones(channels, np.float32)

    def __call__(self, x: Array, y: Array, scale: Array, shift: Array) -> None:
        self.normalise(x, y, *self.given, scale, shift)


class _Sums:
    """Σ dy and Σ dy·x̂ along each column of blocks of ``rows`` rows: the gradients of shift and scale."""

    def __init__(self, rows: int, channels: int, epsilon: float):
        with one_thread():
            forward = _forward(rows, channels, epsilon, GIVEN, (SRC, DST, MEAN, VARIANCE, SCALE, SHIFT))
            table = _table(rows, channels)
            self.back = Primitive(
                "batch_normalization_backward",
                *(engine, BACKWARD, table, table, table, ctypes.c_float(epsilon), GIVEN, forward.description),
                operands=(SRC, DIFF_DST, DIFF_SRC, MEAN, VARIANCE, SCALE, DIFF_SHIFT, DIFF_SCALE),
            )
        self.block, self.scale = (rows, channels), np.ones(channels, np.float32)

    def __call__(self, x: Array, dy: Array, mean: Array, variance: Array) -> tuple[Array, Array]:
        (rows, channels), size = self.block, x.itemsize
        count, unread = len(x) // rows, buffers.empty(self.block)
        total, along = np.empty((2, count, channels), np.float32)
        step = channels * size
        given = (mean, 0), (variance, 0), (self.scale, 0)
        walks = (x, rows * step), (dy, rows * step), (unread, 0), *given, (total, step), (along, step)
        with one_thread():
            self.back.sweep(count, *walks)
        return total, along


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
    """Return x (B, C, ...) as C-contiguous (n, C)."""
    return np.ascontiguousarray(by_channel(x))


def _block(x: Array) -> int:
    """Return the rows of a block: a record's pixels, or the largest equal parts of them; 0 to leave x to numpy."""
    pixels = prod(x.shape[2:])
    fitting = (pixels // parts for parts in range(1, pixels // SHORTEST + 1) if pixels % parts == 0)
    return next((rows for rows in fitting if rows <= LONGEST), 0) if suits(x) else 0


class OnednnBatchNorm(NumpyNormalisation):
    """The per-channel kernels of batch normalisation."""

    def channel_moments(self, x: Array) -> tuple[Array, Array]:
        block = _block(x)
        find = get_kernel(_Moments, block, x.shape[1]) if block else None
        if find is None:
            return super().channel_moments(x)
        means, variances = find(_rows(x))
        mean = means.mean(axis=0, dtype=np.float64)
        return mean, (variances + np.square(means - mean)).mean(axis=0)

    def channel_affine(self, x: Array, scale: Array, shift: Array) -> Array:
        possible = suits(x) and x.ndim in (2, 4)
        affine = get_kernel(_Affine, x.size // x.shape[1], x.shape[1]) if possible else None
        if not affine:
            return super().channel_affine(x, scale, shift)
        y = buffers.empty(x.shape, channels_last=x.ndim == 4)
        affine(_rows(x), y, np.ascontiguousarray(scale, np.float32), np.ascontiguousarray(shift, np.float32))
        return y

    def batch_norm_sums(self, x: Array, dy: Array, mean: Array, variance: Array, epsilon: float) -> tuple[Array, Array]:
        block = _block(x) if suits(dy) else 0
        find = get_kernel(_Sums, block, x.shape[1], epsilon) if block else None
        if find is None:
            return super().batch_norm_sums(x, dy, mean, variance, epsilon)
        total, along = find(_rows(x), _rows(dy), np.asarray(mean, np.float32), np.asarray(variance, np.float32))
        return total.sum(axis=0, dtype=np.float64), along.sum(axis=0, dtype=np.float64)

    def batch_norm_grad(self, x: Array, dy: Array, factor: Array, slope: Array, shift: Array) -> Array:
        possible = suits(x, dy) and x.ndim in (2, 4)
        back = get_kernel(_Gradient, x.size // x.shape[1], x.shape[1]) if possible else None
        if not back:
            return super().batch_norm_grad(x, dy, factor, slope, shift)
        dx = buffers.empty(x.shape, channels_last=x.ndim == 4)
        back(_rows(x), _rows(dy), dx, factor, slope, shift)
        return dx

"""Batch normalisation: sums along channels at the speed of memory, and one pass over a feature for all else.

The library's own sums run over all rows in float32, one after the other: of 6400 numbers its variance is 5e-5 off, and
on rows of 16 channels they are slow. Here a record is looked at as rows of some hundred numbers, several pixels each;
numpy adds few of them in float32 and what that gives in float64, so that a batch that is cut over workers has the
same sums. Where numbers lie far from 0, for their spread, their mean is taken off them first.
"""

from __future__ import annotations

import ctypes
from functools import lru_cache
from math import gcd, prod
from typing import Any

import numpy as np

from dsinga.ops import buffers
from dsinga.ops.layout import by_channel
from dsinga.ops.numpy_normalisation import NumpyNormalisation
from dsinga.ops.onednn.descriptors import dense, engine, image
from dsinga.ops.onednn.library import (
    ADD,
    DST,
    FUSE_RELU,
    INFERENCE,
    MEAN,
    MULTIPLY,
    RELU,
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
from dsinga.ops.onednn.primitive import Primitive, accepts, operand_of
from dsinga.ops.onednn.thread import get_kernel
from dsinga.ops.types import Array

SHORTEST = 32  # rows added in float32, if a record has as many: fewer leave more to float64, more cost digits
WIDEST = 512  # numbers of a row: with 128 sums take twice as long
FAR = 64.0  # mean² over variance: so many times the error of Σ x² would be that of the variance
WIDE = 256  # columns that rows are joined to: constants of 16 channels would meet them at a third of the speed


class _Affine:
    """x·scale + shift on (n, C), or that rectified, as normalisation by a mean of 0 and a variance of 1."""

    def __init__(self, rows: int, channels: int, rectified: bool = False):
        table, flags = image((1, channels, rows, 1)), USE_GLOBAL_STATS | USE_SCALE | USE_SHIFT
        kind = TRAINING
        if rectified:  # in training the library would make a workspace
            kind, flags = INFERENCE, flags | FUSE_RELU
        self.normalise = Primitive(
            "batch_normalization_forward",
            *(engine, kind, table, table, ctypes.c_float(0.0), flags),
            operands=(SRC, DST, MEAN, VARIANCE, SCALE, SHIFT),
        )
        self.given = np.zeros(channels, np.float32), np.ones(channels, np.float32)

    def __call__(self, x: Array, y: Array, scale: Array, shift: Array) -> None:
        self.normalise(x, y, *self.given, scale, shift)


class _RectifiedSum:
    """max(x·scale + shift + other, 0) on (n, C), in one pass over (n/g, g·C), as :class:`_Gradient`."""

    def __init__(self, rows: int, channels: int):
        self.group, x, row = _wide(rows, channels)
        self.run = Primitive(
            *("binary", engine, MULTIPLY, x, row, x),
            operands=(SRC, SRC_1, operand_of(0), operand_of(1), DST),
            post_ops=((ADD, row), (ADD, x), (RELU, 0.0, 0.0)),
        )

    def __call__(self, x: Array, other: Array, y: Array, scale: Array, shift: Array) -> None:
        scale, shift = _joined(self.group, scale, shift)
        self.run(x, scale, shift, other, y)


class _Gradient:
    """(x·slope + shift + dy)·factor on (n, C), in one pass over (n/g, g·C): short rows are joined."""

    def __init__(self, rows: int, channels: int):
        self.group, x, row = _wide(rows, channels)
        self.run = Primitive(
            *("binary", engine, MULTIPLY, x, row, x),
            operands=(SRC, SRC_1, operand_of(0), operand_of(1), operand_of(2), DST),
            post_ops=((ADD, row), (ADD, x), (MULTIPLY, row)),
        )

    def __call__(self, x: Array, dy: Array, dx: Array, factor: Array, slope: Array, shift: Array) -> None:
        factor, slope, shift = _joined(self.group, factor, slope, shift)
        self.run(x, slope, shift, dy, factor, dx)


def _wide(rows: int, channels: int) -> tuple[int, Any, Any]:
    """Return how many rows of channels are joined, and descriptors of a table (rows, channels) so joined and a row."""
    group = gcd(rows, max(1, WIDE // channels))
    return group, dense((rows // group, group * channels)), dense((1, group * channels))


def _joined(group: int, *constants: Array) -> Array:
    """Return the constants (C,) as float32 rows (g·C), for g pixels each: ``np.tile`` takes three times as long."""
    table = np.empty((len(constants), group, len(constants[0])), np.float32)
    for row, constant in zip(table, constants, strict=True):
        row[...] = constant
    return table.reshape(len(constants), -1)


def _rows(x: Array) -> Array:
    """Return x (B, C, ...) as C-contiguous (n, C)."""
    return np.ascontiguousarray(by_channel(x))


@lru_cache
def _fold(pixels: int, channels: int) -> tuple[int, int]:
    """Return how many rows are added in float32, and how many numbers a row has: pixels of one record alone."""
    length = next((rows for rows in range(SHORTEST, pixels) if pixels % rows == 0), pixels)
    rest = pixels // length
    joined = max((one for one in range(1, WIDEST // channels + 1) if rest % one == 0), default=1)
    return length, joined * channels


def _large(x: Array) -> bool:
    """Whether the records of x (B, C, ...) have pixels enough; else x is left to numpy."""
    return accepts(x) and prod(x.shape[2:]) >= SHORTEST // 2


def _totals(x: Array, y: Array) -> tuple[Array, Array]:
    """Return (Σ y, Σ x·y), (C,) each in float64, of (B, C, ...)."""
    channels = x.shape[1]
    fold = -1, *_fold(prod(x.shape[2:]), channels)
    first, second = _rows(x).reshape(fold), _rows(y).reshape(fold)
    sums = np.add.reduce(second, axis=1), np.einsum("knw,knw->kw", first, second)
    total, along = (np.add.reduce(one, axis=0, dtype=np.float64).reshape(-1, channels) for one in sums)
    return np.add.reduce(total, axis=0), np.add.reduce(along, axis=0)


def _moments(x: Array) -> tuple[Array, Array]:
    share = x.shape[1] / x.size
    total, squares = _totals(x, x)
    mean = total * share
    return mean, np.maximum(squares * share - mean * mean, 0.0)


def _far(mean: Array, variance: Array) -> bool:
    """Whether Σ (x - mean)² is not to be found from Σ x² in float32: too much of it would cancel out."""
    return bool((mean * mean > FAR * variance).any())


def _apply(affine: _Affine, x: Array, scale: Array, shift: Array) -> Array:
    y = buffers.empty(x.shape, channels_last=x.ndim == 4)
    affine(_rows(x), y, np.ascontiguousarray(scale, np.float32), np.ascontiguousarray(shift, np.float32))
    return y


class OnednnBatchNorm(NumpyNormalisation):
    """The per-channel kernels of batch normalisation."""

    def channel_moments(self, x: Array) -> tuple[Array, Array]:
        if not _large(x):
            return super().channel_moments(x)
        mean, variance = _moments(x)
        if not _far(mean, variance):
            return mean, variance
        centred, centre = self._centred(x, mean)
        rest, variance = _moments(centred)
        return centre + rest, variance

    def _centred(self, x: Array, mean: Array) -> tuple[Array, Array]:
        """Return x less its mean, rounded to float32, and what was taken off."""
        centre = mean.astype(np.float32)
        return self.channel_affine(x, np.ones_like(centre), -centre), centre

    def channel_affine(self, x: Array, scale: Array, shift: Array) -> Array:
        possible = accepts(x) and x.ndim in (2, 4)
        affine = get_kernel(_Affine, x.size // x.shape[1], x.shape[1]) if possible else None
        return _apply(affine, x, scale, shift) if affine else super().channel_affine(x, scale, shift)

    def rectified_affine(self, x: Array, scale: Array, shift: Array, other: Array | None = None) -> Array:
        possible = accepts(x, other) and x.ndim in (2, 4)
        size = (x.size // x.shape[1], x.shape[1]) if possible else ()
        if possible and other is None:
            affine = get_kernel(_Affine, *size, True)
            if affine:
                return _apply(affine, x, scale, shift)
        elif possible:
            total = get_kernel(_RectifiedSum, *size)
            if total:
                y = buffers.empty(x.shape, channels_last=x.ndim == 4)
                total(_rows(x), _rows(other), y, scale, shift)
                return y
        return super().rectified_affine(x, scale, shift, other)

    def batch_norm_sums(self, x: Array, dy: Array, mean: Array, variance: Array, epsilon: float) -> tuple[Array, Array]:
        if not _large(x) or not accepts(dy):
            return super().batch_norm_sums(x, dy, mean, variance, epsilon)
        if _far(mean, variance):
            x, centre = self._centred(x, mean)
            mean = mean - centre
        total, along = _totals(x, dy)
        return total, (along - mean * total) / np.sqrt(variance + epsilon)

    def batch_norm_grad(self, x: Array, dy: Array, factor: Array, slope: Array, shift: Array) -> Array:
        possible = accepts(x, dy) and x.ndim in (2, 4)
        back = get_kernel(_Gradient, x.size // x.shape[1], x.shape[1]) if possible else None
        if not back:
            return super().batch_norm_grad(x, dy, factor, slope, shift)
        dx = buffers.empty(x.shape, channels_last=x.ndim == 4)
        back(_rows(x), _rows(dy), dx, factor, slope, shift)
        return dx

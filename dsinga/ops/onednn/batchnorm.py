"""Batch normalisation: numpy computes sums along channels, oneDNN the rest in one pass.

The library's sums in float32 are inexact, and slow with few channels. Here a record is rows of some hundred numbers,
several pixels each; a few rows are added in float32, and these sums in float64.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from functools import lru_cache
from math import gcd, prod
from typing import Any

import numpy as np

from dsinga.base import buffers
from dsinga.ops.compiled.channel_sums import compiled_sums
from dsinga.ops.layout import LAST, by_channel, contiguous, einsum
from dsinga.ops.numpy.normalisation import NumpyNormalisation
from dsinga.ops.onednn.casting import cast_like, to_float32
from dsinga.ops.onednn.library import (
    ADD,
    BFLOAT16,
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
    dense,
    engine,
    image,
)
from dsinga.ops.onednn.primitive import Primitive, accepts_alike, operand_of, shows_nan
from dsinga.ops.onednn.thread import get_kernel
from dsinga.ops.types import FLOAT32, Array

SHORTEST = 32  # rows added in float32, if a record has as many: fewer leave more to float64, more lose digits
WIDEST = 512  # numbers of a row in sums: shorter rows are slower
FAR = 64.0  # mean² / variance, the factor by which the error of Σ x² is larger in the variance; above, x is centred
WIDE = 256  # numbers of a row that is multiplied by constants: shorter rows are slower


class Affine:
    """Computes x·scale + shift on (n, C), rectified or not, as oneDNN's normalisation with mean 0 and variance 1."""

    def __init__(self, rows: int, channels: int, rectified: bool = False, dtype: np.dtype = FLOAT32):
        table, flags = image((1, channels, rows, 1), dtype), USE_GLOBAL_STATS | USE_SCALE | USE_SHIFT
        kind = TRAINING
        if rectified:  # in training the library would make a workspace
            kind, flags = INFERENCE, flags | FUSE_RELU
        self.normalise = Primitive(
            "batch_normalization_forward",
            *(engine, kind, table, table, ctypes.c_float(0.0), flags),
            operands=(SRC, DST, MEAN, VARIANCE, SCALE, SHIFT),
        )
        self.statistics = np.zeros(channels, np.float32), np.ones(channels, np.float32)

    def __call__(self, x: Array, y: Array, scale: Array, shift: Array) -> None:
        self.normalise(x, y, *self.statistics, scale, shift)


class _RectifiedSum:
    """Computes max(x·scale + shift + other, 0) on (n, C), in one pass over (n/g, g·C)."""

    def __init__(self, rows: int, channels: int, dtype: np.dtype = FLOAT32):
        self.group, x, row = wide_table(rows, channels, dtype)
        self.run = Primitive(
            *("binary", engine, MULTIPLY, x, row, x),
            operands=(SRC, SRC_1, operand_of(0), operand_of(1), DST),
            post_ops=((ADD, row), (ADD, x), (RELU, 0.0, 0.0)),
        )

    def __call__(self, x: Array, other: Array, y: Array, scale: Array, shift: Array) -> None:
        scale, shift = repeat_constants(self.group, scale, shift)
        self.run(x, scale, shift, other, y)


class _Gradient:
    """Computes batch normalisation's gradient (x·slope + shift + dy)·factor on (n, C), in one pass over (n/g, g·C)."""

    def __init__(self, rows: int, channels: int, dtype: np.dtype = FLOAT32):
        self.group, x, row = wide_table(rows, channels, dtype)
        self.run = Primitive(
            *("binary", engine, MULTIPLY, x, row, x),
            operands=(SRC, SRC_1, operand_of(0), operand_of(1), operand_of(2), DST),
            post_ops=((ADD, row), (ADD, x), (MULTIPLY, row)),
        )

    def __call__(self, x: Array, dy: Array, dx: Array, factor: Array, slope: Array, shift: Array) -> None:
        factor, slope, shift = repeat_constants(self.group, factor, slope, shift)
        self.run(x, slope, shift, dy, factor, dx)


def wide_table(rows: int, channels: int, dtype: np.dtype) -> tuple[int, Any, Any]:
    """Return how many rows of (rows, channels) to join for speed, and oneDNN's descriptors of table and row."""
    group = gcd(rows, max(1, WIDE // channels))
    return group, dense((rows // group, group * channels), dtype), dense((1, group * channels))


def repeat_constants(group: int, *constants: Array) -> Array:
    """Repeat constants (C,) for g pixels as float32 rows (g·C)."""
    table = np.empty_like(constants[0], np.float32, shape=(len(constants), group, len(constants[0])))
    for row, constant in zip(table, constants, strict=True):
        row[...] = constant
    return table.reshape(len(constants), -1)


def pixel_rows(x: Array) -> Array:
    """Reshape x (B, C, ...) to C-contiguous (n, C), a row for each pixel."""
    return contiguous(by_channel(x))


@lru_cache
def _fold(pixels: int, channels: int) -> tuple[int, int]:
    """Return how many rows of a record to add in float32, and how many numbers each row has."""
    length = next((rows for rows in range(SHORTEST, pixels) if pixels % rows == 0), pixels)
    count = pixels // length
    joined = max((group for group in range(1, WIDEST // channels + 1) if count % group == 0), default=1)
    return length, joined * channels


def _large(x: Array) -> bool:
    return accepts_alike(x) and prod(x.shape[2:]) >= SHORTEST // 2


def _totals(x: Array, y: Array) -> tuple[Array, Array]:
    """Sum y and x·y, arrays (B, C, ...), over all but the channels: (Σ y, Σ x·y), (C,) each in float64."""
    channels = x.shape[1]
    if loops := compiled_sums(x):
        return _by_channel(loops.sums(_numbers(x), _numbers(y)), channels)
    first, second = (_folded(to_float32(array)) for array in (x, y))
    sums = np.add.reduce(second, axis=1), einsum("knw,knw->kw", first, second)
    return _by_channel([np.add.reduce(partial, axis=0, dtype=np.float64) for partial in sums], channels)


def _folded(x: Array) -> Array:
    """Reshape x (B, C, ...) to (k, n, w): n rows of w numbers, several pixels each, which are added in float32."""
    return pixel_rows(x).reshape(-1, *_fold(prod(x.shape[2:]), x.shape[1]))


def _numbers(x: Array) -> Array:
    """Return :func:`_folded` arrays as compiled loops read them: bfloat16 as uint16."""
    folded = _folded(x)
    return folded.view(np.uint16) if x.dtype == BFLOAT16 else folded


def _by_channel(sums: Sequence[Array], channels: int) -> tuple[Array, Array]:
    """Add up sums (2, w) of several joined pixels to two sums of channels, (C,) each."""
    total, along = sums
    return np.add.reduce(total.reshape(-1, channels), axis=0), np.add.reduce(along.reshape(-1, channels), axis=0)


def _normalised(totals: tuple[Array, Array], mean: Array, variance: Array, epsilon: float) -> tuple[Array, Array]:
    total, along = totals
    return total, (along - mean * total) / np.sqrt(variance + epsilon)


def _moments(x: Array) -> tuple[Array, Array]:
    share = x.shape[1] / x.size
    total, squares = _totals(x, x)
    mean = total * share
    return mean, np.maximum(squares * share - mean * mean, 0.0)


def _far(mean: Array, variance: Array) -> bool:
    """Whether to subtract the mean first, because Σ x² - mean·Σ x would lose too many digits in float32."""
    return bool((mean * mean > FAR * variance).any())


def _apply(affine: Affine, x: Array, scale: Array, shift: Array) -> Array:
    y = buffers.empty(x.shape, channels_last=x.ndim in LAST, dtype=x.dtype)
    factors = (contiguous(array.astype(np.float32, copy=False)) for array in (scale, shift))
    affine(pixel_rows(x), y, *factors)
    return y


class OnednnBatchNorm(NumpyNormalisation):
    """Batch normalisation's kernels, by oneDNN and compiled loops."""

    def channel_moments(self, x: Array) -> tuple[Array, Array]:
        if not _large(x):
            return super().channel_moments(to_float32(x))
        mean, variance = _moments(x)
        if not _far(mean, variance):
            return mean, variance
        x = to_float32(x)
        centred, centre = self._centred(x, mean)
        remainder, variance = _moments(centred)
        return centre + remainder, variance

    def _centred(self, x: Array, mean: Array) -> tuple[Array, Array]:
        centre = mean.astype(np.float32)
        return self.channel_affine(x, np.ones_like(centre), -centre), centre

    def channel_affine(self, x: Array, scale: Array, shift: Array) -> Array:
        possible = accepts_alike(x) and (x.ndim == 2 or x.ndim in LAST)
        affine = get_kernel(Affine, x.size // x.shape[1], x.shape[1], False, x.dtype) if possible else None
        if affine:
            return _apply(affine, x, scale, shift)
        return cast_like(super().channel_affine(to_float32(x), scale, shift), x)

    def rectified_affine(self, x: Array, scale: Array, shift: Array, other: Array | None = None) -> Array:
        if other is not None:
            other = cast_like(other, x)
        possible = accepts_alike(x, other) and (x.ndim == 2 or x.ndim in LAST)
        if possible and (
            np.isnan(scale.max()) or np.isnan(shift.max()) or shows_nan(x) or (other is not None and shows_nan(other))
        ):
            return super().rectified_affine(x, scale, shift, other)  # the library's rectifier makes 0 of NaN
        size = (x.size // x.shape[1], x.shape[1]) if possible else ()
        if possible and other is None:
            affine = get_kernel(Affine, *size, True, x.dtype)
            if affine:
                return _apply(affine, x, scale, shift)
        elif possible:
            total = get_kernel(_RectifiedSum, *size, x.dtype)
            if total:
                y = buffers.empty(x.shape, channels_last=x.ndim in LAST, dtype=x.dtype)
                total(pixel_rows(x), pixel_rows(other), y, scale, shift)
                return y
        other = None if other is None else to_float32(other)
        return cast_like(super().rectified_affine(to_float32(x), scale, shift, other), x)

    def batch_norm_sums(self, x: Array, dy: Array, mean: Array, variance: Array, epsilon: float) -> tuple[Array, Array]:
        dy = cast_like(dy, x)
        if not _large(x) or not accepts_alike(x, dy):
            return super().batch_norm_sums(to_float32(x), to_float32(dy), mean, variance, epsilon)
        if _far(mean, variance):
            x, dy = to_float32(x), to_float32(dy)
            x, centre = self._centred(x, mean)
            mean = mean - centre
        return _normalised(_totals(x, dy), mean, variance, epsilon)

    def rectified_batch_norm_sums(
        self, x: Array, feature: Array, dy: Array, mean: Array, variance: Array, epsilon: float
    ) -> tuple[Array, tuple[Array, Array] | None]:
        feature, dy = cast_like(feature, x), cast_like(dy, x)
        possible = accepts_alike(x, feature, dy) and _large(x) and x.ndim in LAST and not _far(mean, variance)
        loops = compiled_sums(x) if possible else None
        if not loops:
            return super().rectified_batch_norm_sums(x, feature, dy, mean, variance, epsilon)
        masked = buffers.empty(x.shape, channels_last=True, dtype=x.dtype)
        totals = loops.rectified_sums(*map(_numbers, (x, feature, dy, masked)))
        return masked, _normalised(_by_channel(totals, x.shape[1]), mean, variance, epsilon)

    def batch_norm_grad(self, x: Array, dy: Array, factor: Array, slope: Array, shift: Array) -> Array:
        dy = cast_like(dy, x)
        possible = accepts_alike(x, dy) and (x.ndim == 2 or x.ndim in LAST)
        back = get_kernel(_Gradient, x.size // x.shape[1], x.shape[1], x.dtype) if possible else None
        if not back:
            return cast_like(super().batch_norm_grad(to_float32(x), to_float32(dy), factor, slope, shift), x)
        dx = buffers.empty(x.shape, channels_last=x.ndim in LAST, dtype=x.dtype)
        back(pixel_rows(x), pixel_rows(dy), dx, factor, slope, shift)
        return dx

"""Local response and group normalisation, and softmax of points, on channels-last images: oneDNN or numpy."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from math import prod
from typing import Any, NamedTuple

import numpy as np

from dsinga.base import buffers
from dsinga.ops.layout import LAST, by_channel, contiguous, is_channels_last, point_blocks, to_image, to_rows
from dsinga.ops.numpy.normalisation import NumpyGroupNorm
from dsinga.ops.numpy.points import Block, NumpyPoints, by_class, classes_first, softmax_by_class
from dsinga.ops.onednn.batchnorm import SHORTEST, Affine, OnednnBatchNorm, pixel_rows, repeat_constants, wide_table
from dsinga.ops.onednn.casting import cast, cast_like, to_float32
from dsinga.ops.onednn.choices import choose_kernel
from dsinga.ops.onednn.elementwise import MatrixSoftmax
from dsinga.ops.onednn.layernorm import OnednnLayerNorm
from dsinga.ops.onednn.library import (
    ADD,
    DIFF_DST,
    DIFF_SRC,
    DST,
    INFERENCE,
    LRN_ACROSS_CHANNELS,
    MULTIPLY,
    SRC,
    SRC_1,
    TRAINING,
    WORKSPACE,
    Unsupported,
    engine,
    image,
)
from dsinga.ops.onednn.primitive import Primitive, accepts, accepts_alike, operand_of, shows_nan
from dsinga.ops.onednn.thread import get_kernel
from dsinga.ops.types import FLOAT32, Array, Shape

BLOCK = 128 * 1024  # elements of a block: 512 KB; smaller ones cost more in calls than they save in memory traffic


class Workspace(NamedTuple):
    """What LRN's :func:`backward` needs: k + alpha/size·Σx² of each element, and its power beta, both (pixels, C)."""

    norm: Array
    power: Array


class ShiftedSums:
    """Numpy's LRN of images (B, C, H, W), as rows (B, H, W, C); returns them and a workspace to train."""

    def __init__(self, x: Shape, size: int, alpha: float, beta: float, k: float, train: bool, dtype: np.dtype):
        self.constants, self.train = (size, alpha, beta, k), train

    def __call__(self, rows: Array) -> tuple[Array, Workspace | None]:
        y, workspace = forward(to_image(to_float32(rows)), *self.constants)
        return cast(y, rows.dtype), workspace if self.train else None


def forward(x: Array, size: int, alpha: float, beta: float, k: float) -> tuple[Array, Workspace]:
    """Local response normalisation x·norm^-beta of float32 images (B, C, H, W), and :func:`backward`'s workspace."""
    y = buffers.empty(x.shape, channels_last=True)
    rows, out = contiguous(by_channel(x)), by_channel(y)
    norm, power = buffers.empty(rows.shape), buffers.empty(rows.shape)
    squares = buffers.empty(rows[_first(rows)].shape)
    for block in _blocks(rows):
        x_block, norm_block, power_block = rows[block], norm[block], power[block]
        square = np.multiply(x_block, x_block, out=squares[: len(x_block)])
        _window_sums(square, size // 2, norm_block)
        norm_block *= np.float32(alpha / size)
        norm_block += np.float32(k)
        _compute_power(norm_block, beta, power_block, square)
        np.divide(x_block, power_block, out=out[block])
    return y, Workspace(norm, power)


def backward(x: Array, workspace: Workspace, dy: Array, size: int, alpha: float, beta: float) -> Array:
    """Return LRN's gradient dx = dy·norm^-beta - 2·alpha·beta/size·x·Σ(dy·x·norm^(-beta-1)), the sum over windows."""
    dx = buffers.empty(x.shape, channels_last=True)
    rows, dy_rows, out = contiguous(by_channel(x)), contiguous(by_channel(dy)), by_channel(dx)
    norm, power = workspace
    scratch = buffers.empty((2, *rows[_first(rows)].shape))
    for block in _blocks(rows):
        x_block, out_block = rows[block], out[block]
        term, sums = scratch[:, : len(x_block)]
        np.divide(dy_rows[block], power[block], out=out_block)
        np.multiply(out_block, x_block, out=term)
        term /= norm[block]
        _window_sums(term, size // 2, sums)
        sums *= x_block
        sums *= np.float32(2 * alpha * beta / size)
        out_block -= sums
    return dx


def _window_sums(rows: Array, reach: int, sums: Array) -> None:
    """Write to ``sums`` (n, C) the sums of ``rows`` (n, C) over channels at most ``reach`` away."""
    channels = rows.shape[1]
    flat, flat_sums = rows.reshape(-1), sums.reshape(-1)
    flat_sums[:1] = 0
    np.add(flat[1:], flat[:-1], out=flat_sums[1:])
    flat_sums[:-1] += flat[1:]
    for shift in range(2, min(reach + 1, channels)):
        flat_sums[shift:] += flat[:-shift]
        flat_sums[:-shift] += flat[shift:]
    for channel in range(channels):
        if not 0 < reach <= channel < channels - reach:
            first, *others = range(max(0, channel - reach), min(channels, channel + reach + 1))
            column = sums[:, channel]
            column[...] = rows[:, first]
            for neighbour in others:
                column += rows[:, neighbour]


def _compute_power(norm: Array, beta: float, power: Array, scratch: Array) -> None:
    """Compute norm^beta, with square roots if possible: numpy's power is slow without AVX-512."""
    if beta == 0.75:
        np.sqrt(norm, out=power)
        power *= np.sqrt(power, out=scratch)
    else:
        np.log(norm, out=power)
        power *= np.float32(beta)
        np.exp(power, out=power)


def _first(rows: Array) -> slice:
    return slice(0, max(1, BLOCK // rows.shape[1]))


def _blocks(rows: Array) -> list[slice]:
    step = _first(rows).stop
    return [slice(start, start + step) for start in range(0, len(rows), step)]


class LRNForward:
    """oneDNN's local response normalisation, with its gradient's workspace in training."""

    def __init__(
        self, x: Shape, size: int, alpha: float, beta: float, k: float, train: bool, dtype: np.dtype = FLOAT32
    ):
        if size == 1 or size % 2 == 0:
            raise Unsupported("windows of even size are centred otherwise than SINGA's; oneDNN 3.2 crashes on size 1")
        self.shape, self.dtype = x, dtype
        self.normalise = Primitive(
            "lrn_forward",
            *(engine, TRAINING if train else INFERENCE, LRN_ACROSS_CHANNELS, image(x, dtype), image(x, dtype)),
            *_constants(size, alpha, beta, k),
            operands=(SRC, DST, WORKSPACE),
        )
        self.implementation = self.normalise.implementation
        self.workspace_size = self.normalise.size(WORKSPACE)

    def __call__(self, x: Array) -> tuple[Array, tuple[Array, ...]]:
        y = buffers.empty(self.shape, channels_last=True, dtype=self.dtype)
        workspace = (buffers.empty((self.workspace_size,), dtype=np.uint8),) if self.workspace_size else ()
        self.normalise(x, y, *workspace)
        return y, workspace


class LRNBackward:
    """oneDNN's gradient of local response normalisation."""

    def __init__(self, x: Shape, size: int, alpha: float, beta: float, k: float, dtype: np.dtype = FLOAT32):
        forward = get_kernel(LRNForward, x, size, alpha, beta, k, True, dtype)
        # The library's bfloat16 gradient is wrong in the last channels after whole blocks of 16.
        if forward is None or (dtype != FLOAT32 and x[1] > 16 and x[1] % 16):
            raise Unsupported("lrn_backward")
        self.shape, self.dtype = x, dtype
        self.normalise = Primitive(
            "lrn_backward",
            *(engine, LRN_ACROSS_CHANNELS, image(x, dtype), image(x, dtype), image(x, dtype)),
            *_constants(size, alpha, beta, k),
            forward.normalise.description,
            operands=(SRC, DIFF_DST, DIFF_SRC, WORKSPACE),
        )

    def __call__(self, x: Array, dy: Array, *workspace: Array) -> Array:
        dx = buffers.empty(self.shape, channels_last=True, dtype=self.dtype)
        self.normalise(x, dy, dx, *workspace)
        return dx


def _constants(size: int, alpha: float, beta: float, k: float) -> tuple[Any, ...]:
    return ctypes.c_int64(size), ctypes.c_float(alpha), ctypes.c_float(beta), ctypes.c_float(k)


def lrn_forward(
    x: Shape, size: int, alpha: float, beta: float, k: float, train: bool, dtype: np.dtype = FLOAT32
) -> LRNForward:
    """Create oneDNN's LRN; raise Unsupported if it or, to train, its gradient is missing."""
    forward = LRNForward(x, size, alpha, beta, k, train, dtype)
    if train and get_kernel(LRNBackward, x, size, alpha, beta, k, dtype) is None:
        raise Unsupported("without AVX-512 the library has the forward pass of some shapes without their backward pass")
    return forward


class OnednnNormalisation(OnednnLayerNorm, OnednnBatchNorm):
    """The backend's normalisation: oneDNN's, or the table's replacements (choices.py)."""

    def lrn(self, x: Array, size: int, alpha: float, beta: float, k: float, train: bool) -> tuple[Array, Any]:
        constants = size, alpha, beta, k, train
        forward = choose_kernel("lrn", lrn_forward, x.shape, *constants, x.dtype) if accepts_alike(x) else None
        if forward:
            return forward(to_rows(x))
        y, workspace = super().lrn(to_float32(x), *constants)
        return cast(y, x.dtype), workspace

    def lrn_grad(self, x: Array, workspace: Any, dy: Array, size: int, alpha: float, beta: float, k: float) -> Array:
        if isinstance(workspace, Workspace):
            return cast(backward(to_float32(x), workspace, to_float32(dy), size, alpha, beta), x.dtype)
        if isinstance(workspace, tuple):
            back: Any = get_kernel(LRNBackward, x.shape, size, alpha, beta, k, x.dtype)
            return back(to_rows(x), to_rows(cast_like(dy, x)), *workspace)
        return cast(super().lrn_grad(to_float32(x), workspace, to_float32(dy), size, alpha, beta, k), x.dtype)


class _ProductAndSum:
    """Computes x·factor + other on (n, C), in one pass over (n/g, g·C)."""

    def __init__(self, rows: int, channels: int):
        self.group, x, row = wide_table(rows, channels, FLOAT32)
        self.run = Primitive(
            *("binary", engine, MULTIPLY, x, row, x), operands=(SRC, SRC_1, operand_of(0), DST), post_ops=((ADD, x),)
        )

    def __call__(self, x: Array, factor: Array, other: Array, y: Array) -> None:
        self.run(x, repeat_constants(self.group, factor)[0], other, y)


class OnednnGroupNorm(NumpyGroupNorm, OnednnBatchNorm):
    """Group normalisation by batch normalisation's kernels on one row at a time, for rows of many points."""

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
    return accepts(*arrays) and arrays[0].ndim in LAST and prod(arrays[0].shape[2:]) >= 4 * SHORTEST


class PointSoftmax(MatrixSoftmax):
    """Softmax over the channels of channels-last fields by oneDNN, block by block."""

    def __call__(self, *arrays: Array) -> Iterator[Block]:
        x, p = arrays
        rows = by_channel(p)
        self.run(by_channel(x), rows)
        if shows_nan(rows):
            rows[np.isnan(rows).any(axis=1)] = np.nan
        result = by_class(p)
        for rows, points in point_blocks(result.shape):
            yield rows, points, classes_first(result[rows, :, points])


class SoftmaxByClass:
    """Softmax over the channels of fields by numpy, for few classes."""

    def __init__(self, points: int, classes: int):
        pass

    def __call__(self, x: Array, p: Array) -> Iterator[Block]:
        return softmax_by_class(x, p)


class OnednnPoints(NumpyPoints):
    """The backend's softmax at each point of fields."""

    def softmax_blocks(self, x: Array, p: Array) -> Iterator[Block]:
        kernel: Any = None
        if is_channels_last(x) and accepts(x):
            kernel = choose_kernel("point_softmax", PointSoftmax, x.size // x.shape[1], x.shape[1])
        return kernel(x, p) if kernel else super().softmax_blocks(x, p)

"""The kernels of the oneDNN backend in float32: its families, and those that need few lines.

Grouped convolutions are computed in float32 in bf16, too: depthwise ones have few products for each number that moves.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import prod
from typing import Any

import numpy as np

from dsinga.ops import buffers
from dsinga.ops.attention_blocks import BlockSums, attend_in_blocks, derive_in_blocks
from dsinga.ops.layout import LAST, by_channel, is_channels_last, point_blocks, to_rows
from dsinga.ops.numpy.attention import NumpyAttention
from dsinga.ops.numpy.convolution import NumpyGroupedConvolution
from dsinga.ops.numpy.normalisation import NumpyGroupNorm
from dsinga.ops.numpy.numpy_ops import NumpyOps
from dsinga.ops.numpy.points import Block, NumpyPoints, by_class, classes_first, softmax_by_class
from dsinga.ops.onednn.batchnorm import SHORTEST, Affine, OnednnBatchNorm, pixel_rows, repeat_constants, wide_table
from dsinga.ops.onednn.choices import NONE, choose, choose_kernel
from dsinga.ops.onednn.convolution import BackwardData, BackwardWeights, ConvolutionForward, OnednnConvolution
from dsinga.ops.onednn.elementwise import MatrixSoftmax, OnednnElementwise
from dsinga.ops.onednn.library import ADD, DST, MULTIPLY, SRC, SRC_1, engine, form_of
from dsinga.ops.onednn.normalisation import OnednnNormalisation
from dsinga.ops.onednn.pooling import OnednnPooling
from dsinga.ops.onednn.primitive import Primitive, accepts, operand_of
from dsinga.ops.onednn.products import OnednnProducts, Product, column_sums
from dsinga.ops.onednn.recurrent import OnednnRecurrent
from dsinga.ops.onednn.thread import get_kernel, set_threads
from dsinga.ops.types import FLOAT32, Array, Sizes


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
    """The kernels of batch normalisation, on one row after the other, for images whose rows have many points.

    A row then stays in the cache between its passes.
    """

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


class OnednnGroupedConvolution(NumpyGroupedConvolution):
    """Convolutions with groups or dilation by the library, by numpy where it has none but its reference code."""

    def grouped_convolution(
        self, x: Array, w: Array, b: Array | None, stride: Sizes, pad: Sizes, dilation: Sizes, groups: int
    ) -> Array:
        forward = None
        if accepts(x, w, b):
            shapes = x.shape, w.shape, stride, pad, b is not None, FLOAT32
            forward = get_kernel(ConvolutionForward, *shapes, dilation, groups)
        if forward is None:
            return super().grouped_convolution(x, w, b, stride, pad, dilation, groups)
        bias = () if b is None else (np.ascontiguousarray(b),)
        y: Array = forward(to_rows(x), np.ascontiguousarray(w), *bias)
        return y

    def grouped_convolution_grad(
        self,
        x: Array,
        w: Array,
        dy: Array,
        stride: Sizes,
        pad: Sizes,
        dilation: Sizes,
        groups: int,
        need_dx: bool,
        need_db: bool,
    ) -> tuple[Array | None, Array, Array | None]:
        shapes, spacing = (x.shape, w.shape, stride, pad), (dilation, groups)
        weights = data = None
        if accepts(x, w, dy):
            weights = get_kernel(BackwardWeights, *shapes, FLOAT32, *spacing)
        if weights and need_dx:
            data = get_kernel(BackwardData, *shapes, FLOAT32, FLOAT32, *spacing)
        if not weights or (need_dx and not data):
            return super().grouped_convolution_grad(x, w, dy, stride, pad, *spacing, need_dx, need_db)
        dy_rows = to_rows(dy)
        dw = weights(to_rows(x), dy_rows)
        db = column_sums(dy_rows.reshape(-1, w.shape[0])) if need_db else None
        return data(dy_rows, np.ascontiguousarray(w)) if data else None, dw, db


class PointSoftmax(MatrixSoftmax):
    """The blocks of the softmax over the channels of channels-last fields, with so many points and classes."""

    def __call__(self, *arrays: Array) -> Iterator[Block]:
        x, p = arrays
        self.run(by_channel(x), by_channel(p))
        result = by_class(p)
        for rows, points in point_blocks(result.shape):
            yield rows, points, classes_first(result[rows, :, points])


class SoftmaxByClass:
    """The same by numpy, for few classes."""

    def __init__(self, points: int, classes: int):
        pass

    def __call__(self, x: Array, p: Array) -> Iterator[Block]:
        return softmax_by_class(x, p)


class OnednnPoints(NumpyPoints):
    """Softmax of the points of fields by the library."""

    def softmax_blocks(self, x: Array, p: Array) -> Iterator[Block]:
        kernel: Any = None
        if is_channels_last(x) and accepts(x):
            kernel = choose_kernel("point_softmax", PointSoftmax, x.size // x.shape[1], x.shape[1])
        return kernel(x, p) if kernel else super().softmax_blocks(x, p)


class OnednnAttention(NumpyAttention):
    """The products of attention by the library, on float32; its softmax and tanh are those of other layers."""

    def batched_product(self, a: Array, b: Array, out: Array, factor: float = 1.0, add: bool = False) -> None:
        kernel = None
        if accepts(a, b, out):
            kernel = get_kernel(Product, form_of(a), form_of(b), form_of(out), FLOAT32, factor, add)
        if kernel is None:
            super().batched_product(a, b, out, factor, add)
        else:
            kernel.multiply(a, b, out)

    def attention(
        self, query: Array, keys: Array, values: Array, heads: int, factor: float, visible: Array | None, train: bool
    ) -> tuple[Array, Any]:
        """Return the means and a workspace: the weights, or the sums of blocks."""
        if not accepts(query, keys, values) or choose("attention", NONE, query.shape[1], keys.shape[1]) is None:
            return super().attention(query, keys, values, heads, factor, visible, train)
        y, sums = attend_in_blocks(self.batched_product, query, keys, values, heads, factor, visible)
        return y, sums if train else None

    def attention_grad(
        self,
        query: Array,
        keys: Array,
        values: Array,
        y: Array,
        workspace: Any,
        dy: Array,
        heads: int,
        factor: float,
        visible: Array | None,
    ) -> tuple[Array, Array, Array]:
        if isinstance(workspace, BlockSums):
            return derive_in_blocks(self.batched_product, query, keys, values, y, workspace, dy, heads, factor, visible)
        return super().attention_grad(query, keys, values, y, workspace, dy, heads, factor, visible)


class Float32Ops(
    OnednnConvolution,
    OnednnGroupedConvolution,
    OnednnProducts,
    OnednnPooling,
    OnednnGroupNorm,
    OnednnNormalisation,
    OnednnElementwise,
    OnednnPoints,
    OnednnRecurrent,
    OnednnAttention,
    NumpyOps,
):
    """Kernels of oneDNN on float32; numpy computes what the library does not support, as float64 and empty batches."""

    name = "onednn"

    def empty(self, shape: tuple[int, ...], dtype: Any) -> Array:
        return buffers.empty(shape, channels_last=len(shape) in LAST, dtype=dtype)

    def set_threads(self, count: int) -> None:
        set_threads(count)

"""Convolutions on channels-last images by oneDNN, which reorders their weights."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np

from dsinga.base import buffers
from dsinga.ops.layout import by_channel, contiguous, extents, join_rows, output_sizes, to_rows
from dsinga.ops.numpy.convolution import NumpyConvolution, NumpyGroupedConvolution
from dsinga.ops.onednn.choices import choose_kernel
from dsinga.ops.onednn.library import (
    BIAS,
    CONVOLUTION,
    DIFF_DST,
    DIFF_SRC,
    DIFF_WEIGHTS,
    DST,
    SRC,
    TRAINING,
    WEIGHTS,
    Unsupported,
    dense,
    dims,
    engine,
    free,
    image,
)
from dsinga.ops.onednn.primitive import LANES, Primitive, accepts, reorder
from dsinga.ops.onednn.products import column_sums
from dsinga.ops.onednn.thread import get_kernel, thread_state
from dsinga.ops.types import FLOAT32, Array, Shape, Sizes

DIRECT = "jit:avx512_core"  # the library's name for a direct convolution, one of its later choices


class ConvolutionForward:
    """oneDNN's convolution, with or without a bias, of images of ``dtype`` and float32 weights."""

    by = ""  # the library's first implementation

    def __init__(
        self, x: Shape, w: Shape, stride: Sizes, pad: Sizes, bias: bool = False, dtype: np.dtype = FLOAT32,
        dilation: Sizes = (), groups: int = 1,
    ):  # fmt: skip
        if dtype != FLOAT32 and _fits_without_padding(x[-1], w[-1], stride[-1], pad[-1]):
            raise Unsupported("oneDNN 3.2 writes past the end of the results of few windows that fit without padding")
        self.dtype = dtype
        self.output_shape = (x[0], w[0], *output_sizes(x, extents(w[2:], dilation) if dilation else w[2:], stride, pad))
        by_group = by_group_of(w, groups)
        self.convolve = Primitive(
            "convolution_forward",
            *(engine, TRAINING, CONVOLUTION),
            *(image(x, dtype), free(by_group, dtype), dense(w[:1]) if bias else None, image(self.output_shape, dtype)),
            *geometry_of(stride, pad, dilation),
            operands=(SRC, WEIGHTS, DST, BIAS) if bias else (SRC, WEIGHTS, DST),
            operations=_operations(self.output_shape, w),
            implementation=self.by,
        )
        self.implementation = self.convolve.implementation
        self.pack = reorder(dense(by_group), self.convolve.layout(WEIGHTS))
        thread_state.packed_weights.reserve(self.convolve.size(WEIGHTS))

    def __call__(self, x: Array, w: Array, b: Array | None = None) -> Array:
        y = buffers.empty(self.output_shape, channels_last=True, dtype=self.dtype)
        self.convolve(x, _packed(self.pack, w), y, *(() if b is None else (contiguous(b),)))
        return y


class BackwardData:
    """oneDNN's gradient of a convolution for its images, from rows (B, H', W', F) and the kernel (F, C, kh, kw)."""

    by = ""

    def __init__(
        self, x: Shape, w: Shape, stride: Sizes, pad: Sizes, dtype: np.dtype = FLOAT32, result: np.dtype = FLOAT32,
        dilation: Sizes = (), groups: int = 1,
    ):  # fmt: skip
        forward = forward_of(x, w, stride, pad, False, dtype, dilation, groups)
        self.shape, self.dtype = x, result
        by_group = by_group_of(w, groups)
        self.convolve = Primitive(
            "convolution_backward_data",
            *(engine, CONVOLUTION, image(x, result), free(by_group, dtype), image(forward.output_shape, dtype)),
            *geometry_of(stride, pad, dilation),
            forward.convolve.description,
            operands=(DIFF_DST, WEIGHTS, DIFF_SRC),
            operations=_operations(forward.output_shape, w),
            implementation=self.by,
        )
        self.implementation = self.convolve.implementation
        self.pack = reorder(dense(by_group), self.convolve.layout(WEIGHTS))
        thread_state.packed_weights.reserve(self.convolve.size(WEIGHTS))

    def __call__(self, dy: Array, w: Array) -> Array:
        dx = buffers.empty(self.shape, channels_last=True, dtype=self.dtype)
        self.convolve(dy, _packed(self.pack, w), dx)
        return dx


class DirectForward(ConvolutionForward):
    """The convolution by oneDNN's AVX-512 code without matrix products."""

    by = DIRECT


class DirectBackwardData(BackwardData):
    """The gradient for images by oneDNN's AVX-512 code without matrix products."""

    by = DIRECT


class PaddedBackwardData:
    """The gradient for images with channels padded to a multiple of LANES, to avoid masks."""

    def __init__(self, x: Shape, w: Shape, stride: Sizes, pad: Sizes):
        batch, self.channels, *size = self.shape = x
        padded = -(-self.channels // LANES) * LANES
        self.weights = np.zeros((w[0], padded, *w[2:]), np.float32)
        self.gradient = BackwardData((batch, padded, *size), self.weights.shape, stride, pad)

    def __call__(self, dy: Array, w: Array) -> Array:
        np.copyto(self.weights[:, : self.channels], w)
        dx = buffers.empty(self.shape, channels_last=True)
        dx[...] = self.gradient(dy, self.weights)[:, : self.channels]
        return dx


class BackwardWeights:
    """oneDNN's gradient of a convolution for its kernel, float32, from rows (B, H, W, C) and (B, H', W', F)."""

    by = ""

    def __init__(
        self, x: Shape, w: Shape, stride: Sizes, pad: Sizes, dtype: np.dtype = FLOAT32, dilation: Sizes = (),
        groups: int = 1,
    ):  # fmt: skip
        forward = forward_of(x, w, stride, pad, False, dtype, dilation, groups)
        if dtype != FLOAT32 and not all(map(_reaches_images, x[2:], w[2:], stride, pad)):
            raise Unsupported("oneDNN 3.2 leaves the gradient of a weight that meets nothing but padding undefined")
        if dtype != FLOAT32 and len(x) == 5 and w[2] > x[2]:
            raise Unsupported("oneDNN 3.2 leaves gradients of a kernel that is deeper than its volumes undefined")
        if dtype != FLOAT32 and x[1] == 1 and stride[-1] > x[-1]:
            raise Unsupported("oneDNN 3.2 reads past the end of images of one channel narrower than the stride")
        self.shape = w
        by_group = by_group_of(w, groups)
        # No bias here: column_sums is several times quicker than the library's sums beside a first convolution.
        self.convolve = Primitive(
            "convolution_backward_weights",
            *(engine, CONVOLUTION, image(x, dtype), free(by_group), None, image(forward.output_shape, dtype)),
            *geometry_of(stride, pad, dilation),
            forward.convolve.description,
            operands=(SRC, DIFF_DST, DIFF_WEIGHTS),
            operations=_operations(forward.output_shape, w),
            implementation=self.by,
        )
        self.implementation = self.convolve.implementation
        self.unpack = reorder(self.convolve.layout(DIFF_WEIGHTS), dense(by_group))
        thread_state.packed_weights.reserve(self.convolve.size(DIFF_WEIGHTS))

    def __call__(self, x: Array, dy: Array) -> Array:
        dw = buffers.empty(self.shape)
        if self.unpack is None:
            self.convolve(x, dy, dw)
        else:
            self.convolve(x, dy, thread_state.packed_weights.array)
            self.unpack(thread_state.packed_weights.array, dw)
        return dw


class NarrowBackwardWeights(BackwardWeights):
    """The gradient for kernels by oneDNN's AVX2 code."""

    by = "jit:avx2"


class OnednnConvolution(NumpyConvolution):
    """The backend's convolutions: oneDNN's, or the table's replacements (choices.py)."""

    def convolution(self, x: Array, w: Array, b: Array | None, stride: Sizes, pad: Sizes) -> Array:
        shapes = x.shape, w.shape, stride, pad
        accepted = accepts(x, w, b)
        forward = choose_kernel("convolution", ConvolutionForward, *shapes, b is not None) if accepted else None
        if not forward:
            return super().convolution(x, w, b, stride, pad)
        return forward(to_rows(x), contiguous(w), b)

    def convolution_grad(
        self, x: Array, w: Array, dy: Array, stride: Sizes, pad: Sizes, need_dx: bool, need_db: bool
    ) -> tuple[Array | None, Array, Array | None]:
        shapes = x.shape, w.shape, stride, pad
        weights = choose_kernel("convolution_grad_w", BackwardWeights, *shapes) if accepts(x, w, dy) else None
        data = weights and need_dx and backward_data(*shapes)
        if not weights or (need_dx and not data):
            return super().convolution_grad(x, w, dy, stride, pad, need_dx, need_db)
        dy_rows = to_rows(dy)
        dw = weights(to_rows(x), dy_rows)
        db = column_sums(dy_rows.reshape(-1, w.shape[0])) if need_db else None
        return data(dy_rows, contiguous(w)) if data else None, dw, db

    def transposed_convolution(
        self, x: Array, w: Array, b: Array | None, stride: Sizes, pad: Sizes, size: Sizes
    ) -> Array:
        shapes = (x.shape[0], w.shape[1], *size), w.shape, stride, pad
        data = backward_data(*shapes) if accepts(x, w, b) else None
        if not data:
            return super().transposed_convolution(x, w, b, stride, pad, size)
        y: Array = data(to_rows(x), contiguous(w))
        if b is not None:
            add_to_rows(y, b)
        return y


def backward_data(*shapes: Any) -> Any:
    """Make the kernel that computes a convolution's gradient for its images, or None."""
    return choose_kernel("convolution_grad_x", BackwardData, *shapes)


def add_to_rows(y: Array, b: Array) -> None:
    """Add a bias (C,) to each pixel of a channels-last image y (B, C, H, W), several pixels at a time."""
    rows = join_rows(by_channel(y))
    rows += np.tile(b, rows.shape[1] // len(b)).astype(y.dtype, copy=False)


def forward_of(*shapes: Any) -> ConvolutionForward:
    """Create oneDNN's convolution without a bias, from which oneDNN derives the gradients."""
    forward = get_kernel(ConvolutionForward, *shapes)
    if forward is None:
        raise Unsupported("a convolution backward whose forward is unsupported")
    return forward


def _reaches_images(size: int, kernel: int, stride: int, pad: int) -> bool:
    """Whether each row of a kernel meets the images, not only padding, somewhere."""
    places = range(-pad, size + pad - kernel + 1, stride)
    return all(any(0 <= place + row < size for place in places) for row in range(kernel))


def _fits_without_padding(size: int, kernel: int, stride: int, pad: int) -> bool:
    """Whether several windows, fewer than padded columns, would fill the unpadded row."""
    windows = (size + 2 * pad - kernel) // stride + 1
    return 1 < windows < pad and size == (windows - 1) * stride + kernel


def _operations(y: Shape, w: Shape) -> int:
    return 2 * prod(y) * prod(w[1:])


def by_group_of(w: Shape, groups: int) -> Shape:
    """Return oneDNN's shape of filters: (F, C, ...) or, with groups, (groups, F/groups, C/groups, ...)."""
    return w if groups == 1 else (groups, w[0] // groups, *w[1:])


def geometry_of(stride: Sizes, pad: Sizes, dilation: Sizes = ()) -> tuple[Any, ...]:
    """Convert strides, dilation and pads to oneDNN's arguments."""
    return dims(*stride), dims(*(gap - 1 for gap in dilation or (1,) * len(stride))), dims(*pad), dims(*pad)


def _packed(pack: Primitive | None, w: Array) -> Array:
    if pack is None:
        return w
    pack(w, thread_state.packed_weights.array)
    return thread_state.packed_weights.array


class OnednnGroupedConvolution(NumpyGroupedConvolution):
    """Grouped or dilated convolutions by oneDNN, or by numpy where oneDNN has only slow reference code."""

    def grouped_convolution(
        self, x: Array, w: Array, b: Array | None, stride: Sizes, pad: Sizes, dilation: Sizes, groups: int
    ) -> Array:
        forward = None
        if accepts(x, w, b):
            shapes = x.shape, w.shape, stride, pad, b is not None, FLOAT32
            forward = get_kernel(ConvolutionForward, *shapes, dilation, groups)
        if forward is None:
            return super().grouped_convolution(x, w, b, stride, pad, dilation, groups)
        y: Array = forward(to_rows(x), contiguous(w), b)
        return y

    def grouped_convolution_grad(
        self, x: Array, w: Array, dy: Array, stride: Sizes, pad: Sizes, dilation: Sizes, groups: int, need_dx: bool,
        need_db: bool,
    ) -> tuple[Array | None, Array, Array | None]:  # fmt: skip
        shapes, spacing = (x.shape, w.shape, stride, pad), (dilation, groups)
        weights = data = None
        if accepts(x, w, dy):
            weights = choose_kernel("grouped_convolution_grad_w", BackwardWeights, *shapes, FLOAT32, *spacing)
        if weights and need_dx:
            data = get_kernel(BackwardData, *shapes, FLOAT32, FLOAT32, *spacing)
        if not weights or (need_dx and not data):
            return super().grouped_convolution_grad(x, w, dy, stride, pad, *spacing, need_dx, need_db)
        dy_rows = to_rows(dy)
        dw = weights(to_rows(x), dy_rows)
        db = column_sums(dy_rows.reshape(-1, w.shape[0])) if need_db else None
        return data(dy_rows, contiguous(w)) if data else None, dw, db

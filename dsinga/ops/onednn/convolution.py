"""Convolution on channels-last images; the weights take the layout that the library likes for each direction."""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any

import numpy as np

from dsinga.ops import buffers
from dsinga.ops.layout import output_sizes, to_rows
from dsinga.ops.numpy_convolution import NumpyConvolution
from dsinga.ops.onednn import image_gradient, kernel_gradient
from dsinga.ops.onednn.descriptors import Unsupported, dense, dims, engine, free, image
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
)
from dsinga.ops.onednn.primitive import LANES, Primitive, reorder, suits
from dsinga.ops.onednn.products import column_sums
from dsinga.ops.onednn.thread import get_kernel, this
from dsinga.ops.types import Array, Pair

Shape = tuple[int, ...]

# What the library ranks first for AVX2, its brgconv, is slower than
# the next, for kernels of one pixel: y by a seventh, dx by a tenth; with strides by a third and by half;
ONE_PIXEL = "jit_1x1:avx2"
# another for dx of convolutions with strides, by a third, as long as filters are few;
DIRECT, FEW_FILTERS = "jit:avx2", 64
# and than itself with more channels, where those of x are few and no multiple of LANES.
MASKED, FEW_CHANNELS = "brg_fwd:avx2+brgconv:avx2", range(5, 24)


class _Forward:
    def __init__(self, x: Shape, w: Shape, bias: bool, stride: Pair, pad: Pair):
        self.output_shape = (x[0], w[0], *output_sizes(x, w[2:], stride, pad))
        self.convolve = Primitive(
            "convolution_forward",
            *(engine, TRAINING, CONVOLUTION),
            *(image(x), free(w), dense(w[:1]) if bias else None, image(self.output_shape)),
            *_geometry(stride, pad),
            operands=(SRC, WEIGHTS, DST, BIAS) if bias else (SRC, WEIGHTS, DST),
            prefer=ONE_PIXEL if w[2:] == (1, 1) else None,
            operations=_operations(self.output_shape, w),
        )
        self.pack = reorder(dense(w), self.convolve.layout(WEIGHTS))
        this.packed.reserve(self.convolve.size(WEIGHTS))

    def __call__(self, x: Array, w: Array, *bias: Array) -> Array:
        y = buffers.empty(self.output_shape, channels_last=True)
        self.convolve(x, _packed(self.pack, w), y, *bias)
        return y


class _BackwardData:
    def __init__(self, x: Shape, w: Shape, stride: Pair, pad: Pair):
        forward = _forward(x, w, False, stride, pad)
        self.shape = x
        self.convolve = Primitive(
            "convolution_backward_data",
            *(engine, CONVOLUTION, image(x), free(w), image(forward.output_shape)),
            *_geometry(stride, pad),
            forward.convolve.description,
            operands=(DIFF_DST, WEIGHTS, DIFF_SRC),
            operations=_operations(forward.output_shape, w),
            prefer=_preferred_backward(w, stride),
        )
        self.pack = reorder(dense(w), self.convolve.layout(WEIGHTS))
        this.packed.reserve(self.convolve.size(WEIGHTS))

    def __call__(self, dy: Array, w: Array) -> Array:
        dx = buffers.empty(self.shape, channels_last=True)
        self.convolve(dy, _packed(self.pack, w), dx)
        return dx


def _preferred_backward(w: Shape, stride: Pair) -> str | None:
    if w[2:] == (1, 1):
        return ONE_PIXEL
    return DIRECT if stride != (1, 1) and w[0] <= FEW_FILTERS else None


class _PaddedBackwardData:
    """The gradient of x and of channels beside its own, which make a multiple of LANES.

    These and one more copy cost less than the masks the library takes otherwise: of 20 channels of 144 pixels, kernels
    of 5 x 5, 64 records, 5.6 -> 4.6 ms. From 24 channels on it pays as often as not.
    """

    def __init__(self, x: Shape, w: Shape, stride: Pair, pad: Pair):
        batch, self.channels, *size = self.shape = x
        padded = -(-self.channels // LANES) * LANES
        self.weights = np.zeros((w[0], padded, *w[2:]), np.float32)
        self.gradient = _BackwardData((batch, padded, *size), self.weights.shape, stride, pad)

    def __call__(self, dy: Array, w: Array) -> Array:
        self.weights[:, : self.channels] = w
        dx = buffers.empty(self.shape, channels_last=True)
        dx[...] = self.gradient(dy, self.weights)[:, : self.channels]
        return dx


def _backward_data(x: Shape, w: Shape, stride: Pair, pad: Pair) -> Callable[[Array, Array], Array]:
    """Return what finds the gradient of x from rows of dy and from w: the library's kernel or products."""
    kernel = _BackwardData(x, w, stride, pad)
    if image_gradient.suits(x, w, stride, pad, kernel.convolve.implementation):
        return image_gradient.ImageGradient(x, w, stride, pad)
    if kernel.convolve.implementation == MASKED and x[1] in FEW_CHANNELS and x[1] % LANES:
        return _PaddedBackwardData(x, w, stride, pad)
    return kernel


class _BackwardWeights:
    def __init__(self, x: Shape, w: Shape, stride: Pair, pad: Pair):
        forward = _forward(x, w, False, stride, pad)
        self.shape = w
        # No bias here: column_sums is several times quicker than the library's sums beside a first convolution.
        self.convolve = Primitive(
            "convolution_backward_weights",
            *(engine, CONVOLUTION, image(x), free(w), None, image(forward.output_shape)),
            *_geometry(stride, pad),
            forward.convolve.description,
            operands=(SRC, DIFF_DST, DIFF_WEIGHTS),
            operations=_operations(forward.output_shape, w),
        )
        self.unpack = reorder(self.convolve.layout(DIFF_WEIGHTS), dense(w))
        this.packed.reserve(self.convolve.size(DIFF_WEIGHTS))

    def __call__(self, x: Array, dy: Array) -> Array:
        dw = buffers.empty(self.shape)
        if self.unpack is None:
            self.convolve(x, dy, dw)
        else:
            self.convolve(x, dy, this.packed.array)
            self.unpack(this.packed.array, dw)
        return dw


def _backward_weights(x: Shape, w: Shape, stride: Pair, pad: Pair) -> Callable[[Array, Array], Array]:
    """Return what finds the gradient of the weights from rows of x and dy: the library's kernel or products."""
    kernel = _BackwardWeights(x, w, stride, pad)
    if kernel_gradient.suits(x, w, stride, pad, kernel.convolve.implementation):
        return kernel_gradient.KernelGradient(x, w, stride, pad)
    return kernel


class OnednnConvolution(NumpyConvolution):
    """Convolutions by the library."""

    def convolution(self, x: Array, w: Array, b: Array | None, stride: Pair, pad: Pair) -> Array:
        forward = get_kernel(_Forward, x.shape, w.shape, b is not None, stride, pad) if suits(x, w, b) else None
        if not forward:
            return super().convolution(x, w, b, stride, pad)
        bias = () if b is None else (np.ascontiguousarray(b),)
        return forward(to_rows(x), np.ascontiguousarray(w), *bias)

    def convolution_grad(
        self, x: Array, w: Array, dy: Array, stride: Pair, pad: Pair, need_dx: bool, need_db: bool
    ) -> tuple[Array | None, Array, Array | None]:
        weights = get_kernel(_backward_weights, x.shape, w.shape, stride, pad) if suits(x, w, dy) else None
        data = weights and need_dx and get_kernel(_backward_data, x.shape, w.shape, stride, pad)
        if not weights or (need_dx and not data):
            return super().convolution_grad(x, w, dy, stride, pad, need_dx, need_db)
        dy_rows = to_rows(dy)
        dw = weights(to_rows(x), dy_rows)
        db = column_sums(dy_rows.reshape(-1, w.shape[0])) if need_db else None
        return data(dy_rows, np.ascontiguousarray(w)) if data else None, dw, db


def _forward(*arguments: Any) -> _Forward:
    forward = get_kernel(_Forward, *arguments)
    if forward is None:
        raise Unsupported("a convolution backward whose forward is unsupported")
    return forward


def _operations(y: Shape, w: Shape) -> int:
    return 2 * prod(y) * prod(w[1:])


def _geometry(stride: Pair, pad: Pair) -> tuple[Any, ...]:
    """Strides, dilation (less one), pads before and after."""
    return dims(*stride), dims(0, 0), dims(*pad), dims(*pad)


def _packed(pack: Primitive | None, w: Array) -> Array:
    """Return weights in the layout that a convolution wants, valid until the thread packs others."""
    if pack is None:
        return w
    pack(w, this.packed.array)
    return this.packed.array

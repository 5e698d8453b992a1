"""Grouped and dilated convolutions of float32 images by oneDNN.

In bf16 they are computed in float32, too: depthwise convolutions have few products for each number that is moved.
"""

from __future__ import annotations

import numpy as np

from dsinga.ops.layout import to_rows
from dsinga.ops.numpy.grouped_convolution import NumpyGroupedConvolution
from dsinga.ops.onednn.convolution import BackwardData, BackwardWeights, ConvolutionForward
from dsinga.ops.onednn.primitive import accepts
from dsinga.ops.onednn.products import column_sums
from dsinga.ops.onednn.thread import get_kernel
from dsinga.ops.types import FLOAT32, Array, Sizes


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

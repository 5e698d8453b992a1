"""Max and mean pooling of channels-last images, float32 or bfloat16, by oneDNN."""

from __future__ import annotations

from typing import Any

import numpy as np

from dsinga.base import buffers
from dsinga.ops.layout import output_sizes, to_rows
from dsinga.ops.numpy.convolution import NumpyPooling
from dsinga.ops.onednn.casting import cast, cast_like, to_float32
from dsinga.ops.onednn.library import (
    AVG_POOLING,
    DIFF_DST,
    DIFF_SRC,
    DST,
    INFERENCE,
    MAX_POOLING,
    SRC,
    TRAINING,
    WORKSPACE,
    Unsupported,
    dims,
    engine,
    image,
)
from dsinga.ops.onednn.primitive import Primitive, accepts_alike, shows_nan
from dsinga.ops.onednn.thread import get_kernel
from dsinga.ops.types import FLOAT32, Array, Shape, Sizes


class PoolingForward:
    """oneDNN's pooling; in training, max pooling stores each maximum's position in a workspace."""

    def __init__(
        self, algorithm: int, x: Shape, window: Sizes, stride: Sizes, pad: Sizes, train: bool, dtype: np.dtype = FLOAT32
    ):
        self.dtype = dtype
        self.output_shape = (*x[:2], *output_sizes(x, window, stride, pad))
        keep = (WORKSPACE,) if train and algorithm == MAX_POOLING else ()
        self.pool = Primitive(
            "pooling_forward",
            *(engine, TRAINING if train else INFERENCE, algorithm, image(x, dtype), image(self.output_shape, dtype)),
            *_geometry(window, stride, pad),
            operands=(SRC, DST, *keep),
        )
        self.workspace_size = self.pool.size(WORKSPACE) if keep else 0

    def __call__(self, x: Array) -> tuple[Array, Array | None]:
        y = buffers.empty(self.output_shape, channels_last=True, dtype=self.dtype)
        if not self.workspace_size:
            self.pool(x, y)
            return y, None
        workspace = buffers.empty((self.workspace_size,), dtype=np.uint8)
        self.pool(x, y, workspace)
        return y, workspace


class PoolingBackward:
    """oneDNN's gradient of a pooling, from rows (B, H', W', C)."""

    def __init__(self, algorithm: int, x: Shape, window: Sizes, stride: Sizes, pad: Sizes, dtype: np.dtype = FLOAT32):
        forward = get_kernel(PoolingForward, algorithm, x, window, stride, pad, True, dtype)
        if forward is None:
            raise Unsupported("pooling_backward")
        self.shape, self.dtype = x, dtype
        self.pool = Primitive(
            "pooling_backward",
            *(engine, algorithm, image(x, dtype), image(forward.output_shape, dtype)),
            *_geometry(window, stride, pad),
            forward.pool.description,
            operands=(DIFF_DST, DIFF_SRC, *((WORKSPACE,) if forward.workspace_size else ())),
        )

    def __call__(self, dy: Array, *workspace: Array) -> Array:
        dx = buffers.empty(self.shape, channels_last=True, dtype=self.dtype)
        self.pool(dy, dx, *workspace)
        return dx


def _geometry(window: Sizes, stride: Sizes, pad: Sizes) -> tuple[Any, ...]:
    return dims(*stride), dims(*window), dims(*(0 for _ in window)), dims(*pad), dims(*pad)


def pooling_forward(
    algorithm: int, x: Shape, window: Sizes, stride: Sizes, pad: Sizes, train: bool, dtype: np.dtype
) -> PoolingForward:
    """Create oneDNN's pooling; raise Unsupported if it or, to train, its gradient is missing."""
    if train and get_kernel(PoolingBackward, algorithm, x, window, stride, pad, dtype) is None:
        raise Unsupported("the library has the forward pass of some shapes without their backward pass")
    return PoolingForward(algorithm, x, window, stride, pad, train, dtype)


class OnednnPooling(NumpyPooling):
    """The backend's pooling by oneDNN, with a 1-d workspace; results have the dtype of the images."""

    def max_pool(self, x: Array, kernel: Sizes, stride: Sizes, pad: Sizes, train: bool) -> tuple[Array, Any]:
        shapes = MAX_POOLING, x.shape, kernel, stride, pad
        pool = get_kernel(pooling_forward, *shapes, train, x.dtype) if accepts_alike(x) else None
        if pool and not shows_nan(x):  # the library leaves NaN out
            return pool(to_rows(x))
        y, workspace = super().max_pool(to_float32(x), kernel, stride, pad, train)
        return cast(y, x.dtype), workspace

    def max_pool_grad(self, x: Array, workspace: Any, dy: Array, kernel: Sizes, stride: Sizes, pad: Sizes) -> Array:
        if workspace.ndim == 1:
            back: Any = get_kernel(PoolingBackward, MAX_POOLING, x.shape, kernel, stride, pad, x.dtype)
            return back(to_rows(cast_like(dy, x)), workspace)
        return cast(super().max_pool_grad(to_float32(x), workspace, to_float32(dy), kernel, stride, pad), x.dtype)

    def avg_pool(self, x: Array, kernel: Sizes, stride: Sizes, pad: Sizes) -> Array:
        shapes = AVG_POOLING, x.shape, kernel, stride, pad
        pool = get_kernel(pooling_forward, *shapes, True, x.dtype) if accepts_alike(x) else None
        return pool(to_rows(x))[0] if pool else cast(super().avg_pool(to_float32(x), kernel, stride, pad), x.dtype)

    def avg_pool_grad(self, x: Array, dy: Array, kernel: Sizes, stride: Sizes, pad: Sizes) -> Array:
        dy, shapes = cast_like(dy, x), (x.shape, kernel, stride, pad)
        back = get_kernel(PoolingBackward, AVG_POOLING, *shapes, x.dtype) if accepts_alike(x, dy) else None
        if back:
            return back(to_rows(dy))
        return cast(super().avg_pool_grad(to_float32(x), to_float32(dy), kernel, stride, pad), x.dtype)

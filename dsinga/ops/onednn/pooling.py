"""Max and mean pooling of channels-last images by oneDNN."""

from __future__ import annotations

from typing import Any

import numpy as np

from dsinga.base import buffers
from dsinga.ops.layout import output_sizes, to_rows
from dsinga.ops.numpy.convolution import NumpyPooling
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
from dsinga.ops.onednn.primitive import Primitive, accepts, shows_nan
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


class OnednnPooling(NumpyPooling):
    """The backend's pooling by oneDNN, with a 1-d workspace."""

    def max_pool(self, x: Array, kernel: Sizes, stride: Sizes, pad: Sizes, train: bool) -> tuple[Array, Any]:
        pool = get_kernel(PoolingForward, MAX_POOLING, x.shape, kernel, stride, pad, train) if accepts(x) else None
        if pool and not shows_nan(x):  # the library leaves NaN out
            return pool(to_rows(x))
        return super().max_pool(x, kernel, stride, pad, train)

    def max_pool_grad(self, x: Array, workspace: Any, dy: Array, kernel: Sizes, stride: Sizes, pad: Sizes) -> Array:
        windows = kernel, stride, pad
        back = get_kernel(PoolingBackward, MAX_POOLING, x.shape, *windows) if workspace.ndim == 1 else None
        if back:
            return back(to_rows(dy), workspace)
        if workspace.ndim == 1:
            _, workspace = super().max_pool(x, *windows, True)
        return super().max_pool_grad(x, workspace, dy, *windows)

    def avg_pool(self, x: Array, kernel: Sizes, stride: Sizes, pad: Sizes) -> Array:
        pool = get_kernel(PoolingForward, AVG_POOLING, x.shape, kernel, stride, pad, True) if accepts(x) else None
        return pool(to_rows(x))[0] if pool else super().avg_pool(x, kernel, stride, pad)

    def avg_pool_grad(self, x: Array, dy: Array, kernel: Sizes, stride: Sizes, pad: Sizes) -> Array:
        back = get_kernel(PoolingBackward, AVG_POOLING, x.shape, kernel, stride, pad) if accepts(x, dy) else None
        return back(to_rows(dy)) if back else super().avg_pool_grad(x, dy, kernel, stride, pad)

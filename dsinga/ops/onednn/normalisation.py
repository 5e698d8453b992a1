"""Local response normalisation on channels-last images."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np

from dsinga.ops import buffers
from dsinga.ops.layout import to_rows
from dsinga.ops.onednn import lrn
from dsinga.ops.onednn.batchnorm import OnednnBatchNorm
from dsinga.ops.onednn.descriptors import Unsupported, engine, image
from dsinga.ops.onednn.library import (
    DIFF_DST,
    DIFF_SRC,
    DST,
    INFERENCE,
    LRN_ACROSS_CHANNELS,
    SRC,
    TRAINING,
    WORKSPACE,
)
from dsinga.ops.onednn.primitive import Primitive, suits
from dsinga.ops.onednn.thread import get_kernel
from dsinga.ops.types import Array

Shape = tuple[int, ...]


class _Forward:
    def __init__(self, x: Shape, size: int, alpha: float, beta: float, k: float, train: bool):
        if size == 1 or size % 2 == 0:
            raise Unsupported("windows of even size lie otherwise than SINGA's; size 1 ends oneDNN 3.2 by a fault")
        self.shape = x
        self.normalise = Primitive(
            "lrn_forward",
            *(engine, TRAINING if train else INFERENCE, LRN_ACROSS_CHANNELS, image(x), image(x)),
            *_constants(size, alpha, beta, k),
            operands=(SRC, DST, WORKSPACE),
        )
        self.workspace_size = self.normalise.size(WORKSPACE)

    def __call__(self, x: Array) -> tuple[Array, tuple[Array, ...]]:
        y = buffers.empty(self.shape, channels_last=True)
        workspace = (buffers.empty((self.workspace_size,), dtype=np.uint8),) if self.workspace_size else ()
        self.normalise(x, y, *workspace)
        return y, workspace


class _Backward:
    def __init__(self, x: Shape, size: int, alpha: float, beta: float, k: float):
        forward = get_kernel(_Forward, x, size, alpha, beta, k, True)
        if forward is None:
            raise Unsupported("lrn_backward")
        self.shape = x
        self.normalise = Primitive(
            "lrn_backward",
            *(engine, LRN_ACROSS_CHANNELS, image(x), image(x), image(x)),
            *_constants(size, alpha, beta, k),
            forward.normalise.description,
            operands=(SRC, DIFF_DST, DIFF_SRC, WORKSPACE),
        )

    def __call__(self, x: Array, dy: Array, *workspace: Array) -> Array:
        dx = buffers.empty(self.shape, channels_last=True)
        self.normalise(x, dy, dx, *workspace)
        return dx


def _constants(size: int, alpha: float, beta: float, k: float) -> tuple[Any, ...]:
    return ctypes.c_int64(size), ctypes.c_float(alpha), ctypes.c_float(beta), ctypes.c_float(k)


class OnednnNormalisation(OnednnBatchNorm):
    """Normalisation by the library; LRN by a primitive, else by shifted sums."""

    def lrn(self, x: Array, size: int, alpha: float, beta: float, k: float, train: bool) -> tuple[Array, Any]:
        """The workspace says who made it: one of the library is a tuple, one of numpy an array."""
        normalise = get_kernel(_Forward, x.shape, size, alpha, beta, k, train) if suits(x) else None
        if normalise and train and get_kernel(_Backward, x.shape, size, alpha, beta, k) is None:
            normalise = None  # without AVX-512 the library goes forward through shapes that it cannot go back through
        if normalise:
            return normalise(to_rows(x))
        if lrn.suits(x):
            y, workspace = lrn.forward(x, size, alpha, beta, k)
            return y, workspace if train else None
        return super().lrn(x, size, alpha, beta, k, train)

    def lrn_grad(self, x: Array, workspace: Any, dy: Array, size: int, alpha: float, beta: float, k: float) -> Array:
        if isinstance(workspace, lrn.Workspace):
            return lrn.backward(x, workspace, dy, size, alpha, beta)
        if not isinstance(workspace, tuple):
            return super().lrn_grad(x, workspace, dy, size, alpha, beta, k)
        back = get_kernel(_Backward, x.shape, size, alpha, beta, k)
        assert back is not None, "a normalisation has no backward although it has a forward"
        return back(to_rows(x), to_rows(dy), *workspace)

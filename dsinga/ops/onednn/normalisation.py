"""Local response normalisation on channels-last images."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np

from dsinga.ops import buffers
from dsinga.ops.layout import to_rows
from dsinga.ops.onednn.batchnorm import OnednnBatchNorm
from dsinga.ops.onednn.choices import choose_kernel
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
from dsinga.ops.onednn.lrn import Workspace, backward
from dsinga.ops.onednn.primitive import Primitive, accepts
from dsinga.ops.onednn.thread import get_kernel
from dsinga.ops.types import Array

Shape = tuple[int, ...]


class LRNForward:
    """The library's normalisation, with the workspace of its gradient where it trains."""

    def __init__(self, x: Shape, size: int, alpha: float, beta: float, k: float, train: bool):
        if size == 1 or size % 2 == 0:
            raise Unsupported("windows of even size are centred otherwise than SINGA's; oneDNN 3.2 crashes on size 1")
        self.shape = x
        self.normalise = Primitive(
            "lrn_forward",
            *(engine, TRAINING if train else INFERENCE, LRN_ACROSS_CHANNELS, image(x), image(x)),
            *_constants(size, alpha, beta, k),
            operands=(SRC, DST, WORKSPACE),
        )
        self.implementation = self.normalise.implementation
        self.workspace_size = self.normalise.size(WORKSPACE)

    def __call__(self, x: Array) -> tuple[Array, tuple[Array, ...]]:
        y = buffers.empty(self.shape, channels_last=True)
        workspace = (buffers.empty((self.workspace_size,), dtype=np.uint8),) if self.workspace_size else ()
        self.normalise(x, y, *workspace)
        return y, workspace


class LRNBackward:
    """The library's gradient of the normalisation."""

    def __init__(self, x: Shape, size: int, alpha: float, beta: float, k: float):
        forward = get_kernel(LRNForward, x, size, alpha, beta, k, True)
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


def _lrn_forward(x: Shape, size: int, alpha: float, beta: float, k: float, train: bool) -> LRNForward:
    """Return the library's normalisation; raise Unsupported where it, or to train its gradient, is missing."""
    forward = LRNForward(x, size, alpha, beta, k, train)
    if train and get_kernel(LRNBackward, x, size, alpha, beta, k) is None:
        raise Unsupported("without AVX-512 the library has the forward pass of some shapes without their backward pass")
    return forward


class OnednnNormalisation(OnednnBatchNorm):
    """Normalisation by the library, or by the implementation that the table of choices has in its place."""

    def lrn(self, x: Array, size: int, alpha: float, beta: float, k: float, train: bool) -> tuple[Array, Any]:
        """Return the result and a workspace: the library's is a tuple, that of lrn.py a Workspace, numpy's an array."""
        forward = choose_kernel("lrn", _lrn_forward, x.shape, size, alpha, beta, k, train) if accepts(x) else None
        return forward(to_rows(x)) if forward else super().lrn(x, size, alpha, beta, k, train)

    def lrn_grad(self, x: Array, workspace: Any, dy: Array, size: int, alpha: float, beta: float, k: float) -> Array:
        if isinstance(workspace, Workspace):
            return backward(x, workspace, dy, size, alpha, beta)
        if not isinstance(workspace, tuple):
            return super().lrn_grad(x, workspace, dy, size, alpha, beta, k)
        back = get_kernel(LRNBackward, x.shape, size, alpha, beta, k)
        assert back is not None, "a normalisation has no backward although it has a forward"
        return back(to_rows(x), to_rows(dy), *workspace)

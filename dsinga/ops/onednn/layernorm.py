"""Layer normalisation of rows by oneDNN, which saves a mean and a variance of each row for the backward pass."""

from __future__ import annotations

import ctypes
from typing import Any, NamedTuple

from dsinga.base import buffers
from dsinga.ops.layout import contiguous
from dsinga.ops.numpy.normalisation import NumpyNormalisation
from dsinga.ops.onednn.library import (
    BACKWARD,
    DIFF_DST,
    DIFF_SCALE,
    DIFF_SHIFT,
    DIFF_SRC,
    DST,
    MEAN,
    SCALE,
    SHIFT,
    SRC,
    TRAINING,
    USE_SCALE,
    USE_SHIFT,
    VARIANCE,
    dense,
    engine,
)
from dsinga.ops.onednn.primitive import Primitive, accepts
from dsinga.ops.onednn.thread import get_kernel
from dsinga.ops.types import Array

PARAMS = USE_SCALE | USE_SHIFT


class RowMoments(NamedTuple):
    """The mean and the variance of each row, and the shift, which oneDNN asks for without using it."""

    mean: Array
    variance: Array
    shift: Array


class LayerNormalisation:
    """oneDNN's layer normalisation of (R, n), forward and backward."""

    def __init__(self, rows: int, columns: int, epsilon: float):
        table, moments, constant = dense((rows, columns)), dense((rows,)), ctypes.c_float(epsilon)
        self.forward = Primitive(
            *("layer_normalization_forward", engine, TRAINING, table, table, moments, constant, PARAMS),
            operands=(SRC, SCALE, SHIFT, DST, MEAN, VARIANCE),
        )
        self.backward = Primitive(
            *("layer_normalization_backward", engine, BACKWARD, table, table, table, moments, constant, PARAMS),
            self.forward.description,
            operands=(SRC, MEAN, VARIANCE, SHIFT, DIFF_DST, SCALE, DIFF_SRC, DIFF_SCALE, DIFF_SHIFT),
        )


class OnednnLayerNorm(NumpyNormalisation):
    """The backend's layer normalisation."""

    def layer_norm(self, x: Array, scale: Array, shift: Array, epsilon: float, train: bool) -> tuple[Array, Any]:
        kernel = get_kernel(LayerNormalisation, *x.shape, epsilon) if accepts(x, scale, shift) else None
        if kernel is None:
            return super().layer_norm(x, scale, shift, epsilon, train)
        y, mean, variance = buffers.empty(x.shape), *(buffers.empty((len(x),)) for _ in range(2))
        shift = contiguous(shift)
        kernel.forward(contiguous(x), contiguous(scale), shift, y, mean, variance)
        return y, RowMoments(mean, variance, shift) if train else None

    def layer_norm_grad(
        self, x: Array, workspace: Any, dy: Array, scale: Array, epsilon: float
    ) -> tuple[Array, Array, Array]:
        if not isinstance(workspace, RowMoments):
            return super().layer_norm_grad(x, workspace, dy, scale, epsilon)
        kernel = get_kernel(LayerNormalisation, *x.shape, epsilon)
        assert kernel is not None, "the forward pass had it"
        dx, *sums = buffers.empty(x.shape), *(buffers.empty(scale.shape) for _ in range(2))
        kernel.backward(contiguous(x), *workspace, contiguous(dy), contiguous(scale), dx, *sums)
        return dx, *sums

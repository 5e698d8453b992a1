"""Pooling, normalisation, rectifiers and sums of bfloat16 arrays, converted where the library has no kernel."""

from __future__ import annotations

from typing import Any

from dsinga.ops.layout import to_rows
from dsinga.ops.onednn.casting import cast, cast_like, to_float32
from dsinga.ops.onednn.elementwise import Binary, Derivative, Function, run_elementwise
from dsinga.ops.onednn.float32_ops import Float32Ops
from dsinga.ops.onednn.library import ADD, AVG_POOLING, BFLOAT16, DST, MAX_POOLING, RELU, RELU_FROM_OUTPUT, Unsupported
from dsinga.ops.onednn.normalisation import LRNBackward, LRNForward, lrn_forward
from dsinga.ops.onednn.pooling import PoolingBackward, PoolingForward
from dsinga.ops.onednn.thread import get_kernel
from dsinga.ops.types import Array, Shape, Sizes


def _pooling(algorithm: int, x: Shape, window: Sizes, stride: Sizes, pad: Sizes, train: bool) -> PoolingForward:
    """Return the pooling of bfloat16 images; raise Unsupported where it, or in training its gradient, is missing."""
    forward = get_kernel(PoolingForward, algorithm, x, window, stride, pad, train, BFLOAT16)
    if forward is None or (train and get_kernel(PoolingBackward, algorithm, x, window, stride, pad, BFLOAT16) is None):
        raise Unsupported("the library has the forward pass of some shapes without their backward pass")
    return forward


def _kernel(make: Any, x: Array, *arguments: Any) -> Any:
    """Return a kernel for an array, None if it is not of bfloat16 or the library has none."""
    return get_kernel(make, *arguments) if x.dtype == BFLOAT16 and x.size else None


class Bf16Images(Float32Ops):
    """Kernels on bfloat16 images and other arrays; the results are of the dtype of the first argument."""

    def max_pool(self, x: Array, kernel: Sizes, stride: Sizes, pad: Sizes, train: bool) -> tuple[Array, Any]:
        pool = _kernel(_pooling, x, MAX_POOLING, x.shape, kernel, stride, pad, train)
        if pool:
            return pool(to_rows(x))
        y, workspace = super().max_pool(to_float32(x), kernel, stride, pad, train)
        return cast(y, x.dtype), workspace

    def max_pool_grad(self, x: Array, workspace: Any, dy: Array, kernel: Sizes, stride: Sizes, pad: Sizes) -> Array:
        shapes = MAX_POOLING, x.shape, kernel, stride, pad
        if _kernel(_pooling, x, *shapes, True):
            return _kernel(PoolingBackward, x, *shapes, BFLOAT16)(to_rows(cast_like(dy, x)), workspace)
        return cast(super().max_pool_grad(to_float32(x), workspace, to_float32(dy), kernel, stride, pad), x.dtype)

    def avg_pool(self, x: Array, kernel: Sizes, stride: Sizes, pad: Sizes) -> Array:
        pool = _kernel(_pooling, x, AVG_POOLING, x.shape, kernel, stride, pad, True)
        return pool(to_rows(x))[0] if pool else cast(super().avg_pool(to_float32(x), kernel, stride, pad), x.dtype)

    def avg_pool_grad(self, x: Array, dy: Array, kernel: Sizes, stride: Sizes, pad: Sizes) -> Array:
        back = _kernel(PoolingBackward, x, AVG_POOLING, x.shape, kernel, stride, pad, BFLOAT16)
        if back:
            return back(to_rows(cast_like(dy, x)))
        return cast(super().avg_pool_grad(to_float32(x), to_float32(dy), kernel, stride, pad), x.dtype)

    def lrn(self, x: Array, size: int, alpha: float, beta: float, k: float, train: bool) -> tuple[Array, Any]:
        constants = size, alpha, beta, k, train
        forward: LRNForward | None = _kernel(lrn_forward, x, x.shape, *constants, BFLOAT16)
        if forward:
            return forward(to_rows(x))
        y, workspace = super().lrn(to_float32(x), *constants)
        return cast(y, x.dtype), workspace

    def lrn_grad(self, x: Array, workspace: Any, dy: Array, size: int, alpha: float, beta: float, k: float) -> Array:
        constants = size, alpha, beta, k
        if _kernel(lrn_forward, x, x.shape, *constants, True, BFLOAT16):
            back = _kernel(LRNBackward, x, x.shape, *constants, BFLOAT16)
            return back(to_rows(x), to_rows(cast_like(dy, x)), *workspace)
        return cast(super().lrn_grad(to_float32(x), workspace, to_float32(dy), *constants), x.dtype)

    def relu(self, x: Array, slope: float = 0.0) -> Array:
        kernel = _kernel(Function, x, x.size, RELU, slope, 0.0, BFLOAT16)
        return run_elementwise(kernel, x) if kernel else cast(super().relu(to_float32(x), slope), x.dtype)

    def relu_grad(self, y: Array, dy: Array, slope: float = 0.0) -> Array:
        kernel = _kernel(Derivative, y, y.size, RELU_FROM_OUTPUT, slope, DST, BFLOAT16)
        if kernel:
            return run_elementwise(kernel, y, cast_like(dy, y))
        return cast(super().relu_grad(to_float32(y), to_float32(dy), slope), y.dtype)

    def add(self, x: Array, y: Array) -> Array:
        kernel = _kernel(Binary, x, x.size, ADD, BFLOAT16)
        return (
            run_elementwise(kernel, x, cast_like(y, x))
            if kernel
            else cast(super().add(to_float32(x), to_float32(y)), x.dtype)
        )

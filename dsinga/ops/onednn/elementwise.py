"""Elementwise kernels and softmax by oneDNN, on flat arrays of any layout; small arrays by numpy, which is faster."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np

from dsinga.base import buffers
from dsinga.ops.layout import contiguous, is_channels_last
from dsinga.ops.numpy.elementwise import NumpyLoss
from dsinga.ops.onednn.casting import cast_like, to_float32
from dsinga.ops.onednn.choices import choose_kernel
from dsinga.ops.onednn.library import (
    ADD,
    DIFF_DST,
    DIFF_SRC,
    DST,
    GELU,
    HARD_SWISH,
    LINEAR,
    LOGISTIC,
    LOGISTIC_FROM_OUTPUT,
    MAX,
    MULTIPLY,
    RELU,
    RELU_FROM_OUTPUT,
    SOFTMAX,
    SRC,
    SRC_1,
    SWISH,
    TANH,
    TRAINING,
    dense,
    engine,
)
from dsinga.ops.onednn.primitive import Primitive, accepts, accepts_alike, operand_of, shows_nan
from dsinga.ops.onednn.thread import get_kernel
from dsinga.ops.types import FLOAT32, Array


class _SmallKernel:
    """Base of numpy kernels for arrays of one small size, in place of oneDNN's."""

    def __init__(self, size: int, *constants: Any):
        self.constants = constants


class SmallTanh(_SmallKernel):
    """Computes outer·tanh(inner·x) of a small array."""

    def __call__(self, x: Array) -> Array:
        outer, inner = self.constants
        if outer == inner == 1.0:
            return np.tanh(x)
        y = np.tanh(x * np.float32(inner))
        y *= np.float32(outer)
        return y


class SmallTanhGradient(_SmallKernel):
    """Computes tanh's gradient (inner·outer - y²·inner/outer)·dy for a small array."""

    def __call__(self, y: Array, dy: Array) -> Array:
        outer, inner = self.constants
        dx = y * y
        if outer == inner == 1.0:
            np.subtract(1.0, dx, out=dx)
        else:
            dx *= -inner / outer
            dx += inner * outer
        dx *= dy
        return dx


def _dense(x: Array) -> Array:
    """Return x if it is C-contiguous or a channels-last image, else a C-contiguous copy."""
    if x.flags.c_contiguous or is_channels_last(x):
        return x
    return contiguous(x)


def _aligned(x: Array, layout: Array) -> Array:
    """Return x in the memory layout of ``layout``, copied if necessary."""
    if x.strides == layout.strides or (x.flags.c_contiguous and layout.flags.c_contiguous):
        return x
    copy = buffers.like(layout)
    copy[...] = x
    return copy


class ElementwiseKernel:
    """Base of oneDNN primitives on arrays of one shape; the result has the first one's layout."""

    run: Primitive

    @property
    def implementation(self) -> str:
        return self.run.implementation

    def __call__(self, *arrays: Array) -> Array:
        return run_elementwise(self, *arrays)


class Function(ElementwiseKernel):
    """oneDNN's elementwise function for arrays of n numbers."""

    def __init__(self, size: int, algorithm: int, alpha: float = 0.0, beta: float = 0.0, dtype: np.dtype = FLOAT32):
        self.description = dense((size,), dtype)
        self.constants = ctypes.c_float(alpha), ctypes.c_float(beta)
        self.run = Primitive(
            *("eltwise_forward", engine, TRAINING, algorithm, self.description, self.description, *self.constants),
            operands=(SRC, DST),
        )


class Derivative(ElementwiseKernel):
    """The gradient of oneDNN's function of n numbers, from its output, or its input with ``operand`` SRC."""

    def __init__(
        self, size: int, algorithm: int, slope: float = 0.0, operand: int = DST, dtype: np.dtype = FLOAT32,
        beta: float = 0.0,
    ):  # fmt: skip
        forward = Function(size, algorithm, slope, beta, dtype)
        flat = forward.description
        self.run = Primitive(
            *("eltwise_backward", engine, algorithm, flat, flat, flat, *forward.constants, forward.run.description),
            operands=(operand, DIFF_DST, DIFF_SRC),
        )


class Binary:
    """oneDNN's sum or product of two arrays of n numbers."""

    def __init__(self, size: int, algorithm: int, dtype: np.dtype = FLOAT32):
        flat = dense((size,), dtype)
        self.run = Primitive("binary", engine, algorithm, flat, flat, flat, operands=(SRC, SRC_1, DST))


class Rectifier(ElementwiseKernel):
    """ReLU of n numbers, max(x, 0), that keeps NaN, unlike oneDNN's maximum and rectifier."""

    def __init__(self, size: int, dtype: np.dtype = FLOAT32):
        self.zero = np.zeros(1, np.float32)
        flat = dense((size,), dtype)
        self.run = Primitive(
            *("binary", engine, MAX, flat, dense((1,)), flat),
            operands=(SRC, SRC_1, operand_of(0), DST),
            post_ops=((MAX, flat), (LINEAR, 1.0, 0.0)),  # which also turns -0 into 0
        )

    def __call__(self, *arrays: Array) -> Array:
        x = _dense(arrays[0])
        y = buffers.like(x)
        self.run(x, self.zero, x, y)
        return y


class _ScaledTanh(ElementwiseKernel):
    """Computes outer·tanh(inner·x) of n numbers, in one pass."""

    def __init__(self, size: int, outer: float, inner: float):
        self.factor = np.array([inner], np.float32)
        flat = dense((size,))
        self.run = Primitive(
            *("binary", engine, MULTIPLY, flat, dense((1,)), flat),
            operands=(SRC, SRC_1, DST),
            post_ops=((TANH, 0.0, 0.0), (LINEAR, outer, 0.0)),
        )

    def __call__(self, *arrays: Array) -> Array:
        x = _dense(arrays[0])
        y = buffers.like(x)
        self.run(x, self.factor, y)
        return y


class _ScaledTanhDerivative(ElementwiseKernel):
    """Computes tanh's gradient (y·y·(-inner/outer) + inner·outer)·dy of n numbers, in one pass."""

    def __init__(self, size: int, outer: float, inner: float):
        flat = dense((size,))
        self.run = Primitive(
            *("binary", engine, MULTIPLY, flat, flat, flat),
            operands=(SRC, SRC_1, operand_of(1), DST),
            post_ops=((LINEAR, -inner / outer, inner * outer), (MULTIPLY, flat)),
        )

    def __call__(self, *arrays: Array) -> Array:
        y, dy = arrays
        return run_elementwise(self, y, y, dy)


class MatrixSoftmax(ElementwiseKernel):
    """oneDNN's softmax over the rows of a matrix."""

    def __init__(self, rows: int, columns: int):
        table = dense((rows, columns))
        self.run = Primitive("softmax_forward", engine, TRAINING, SOFTMAX, table, table, 1, operands=(SRC, DST))


class _SoftmaxDerivative:
    def __init__(self, rows: int, columns: int):
        table = dense((rows, columns))
        forward = MatrixSoftmax(rows, columns).run.description
        self.run = Primitive(
            *("softmax_backward", engine, SOFTMAX, table, table, table, 1, forward), operands=(DST, DIFF_DST, DIFF_SRC)
        )


def run_elementwise(kernel: Any, *arrays: Array) -> Array:
    """Run an elementwise kernel on arrays of one shape; the result has the first one's layout."""
    first = _dense(arrays[0])
    result = buffers.like(first)
    kernel.run(first, *(_aligned(array, first) for array in arrays[1:]), result)
    return result


def _method(name: str, make: Any, *arguments: Any) -> Any:
    """Make a backend method that calls oneDNN's kernel for arrays of one shape, else numpy's."""
    compute = getattr(NumpyLoss, name)

    def method(self: NumpyLoss, *arrays: Array) -> Array:
        kernel = get_kernel(make, arrays[0].size, *arguments) if accepts(*arrays) else None
        return run_elementwise(kernel, *arrays) if kernel else compute(self, *arrays)

    return method


class OnednnElementwise(NumpyLoss):
    """The backend's activations, sums, products and softmax by oneDNN. NaN stays NaN, as in numpy.

    ReLU, GELU and sums also accept bfloat16; results have the first argument's dtype.
    """

    equal_rows = False

    sigmoid = _method("sigmoid", Function, LOGISTIC)
    sigmoid_grad = _method("sigmoid_grad", Derivative, LOGISTIC_FROM_OUTPUT)
    hard_swish = _method("hard_swish", Function, HARD_SWISH, 1 / 6, 0.5)
    hard_swish_grad = _method("hard_swish_grad", Derivative, HARD_SWISH, 1 / 6, SRC, FLOAT32, 0.5)
    silu = _method("silu", Function, SWISH, 1.0)
    silu_grad = _method("silu_grad", Derivative, SWISH, 1.0, SRC)
    multiply = _method("multiply", Binary, MULTIPLY)

    def add(self, x: Array, y: Array) -> Array:
        y = cast_like(y, x)
        kernel = get_kernel(Binary, x.size, ADD, x.dtype) if accepts_alike(x, y) else None
        return run_elementwise(kernel, x, y) if kernel else super().add(x, y)

    def gelu(self, x: Array) -> Array:
        kernel = get_kernel(Function, x.size, GELU, 0.0, 0.0, x.dtype) if accepts_alike(x) else None
        return run_elementwise(kernel, x) if kernel else cast_like(super().gelu(to_float32(x)), x)

    def gelu_grad(self, x: Array, dy: Array) -> Array:
        kernel = get_kernel(Derivative, x.size, GELU, 0.0, SRC, x.dtype) if accepts_alike(x, dy) else None
        if kernel is None:
            return cast_like(super().gelu_grad(to_float32(x), to_float32(dy)), x)
        return run_elementwise(kernel, x, dy)

    def relu(self, x: Array, slope: float = 0.0) -> Array:
        rectifier = (Function, x.size, RELU, slope, 0.0) if slope else (Rectifier, x.size)
        kernel = get_kernel(*rectifier, x.dtype) if accepts_alike(x) else None
        return kernel(x) if kernel else super().relu(x, slope)

    def relu_grad(self, y: Array, dy: Array, slope: float = 0.0) -> Array:
        dy = cast_like(dy, y)
        kernel = get_kernel(Derivative, y.size, RELU_FROM_OUTPUT, slope, DST, y.dtype) if accepts_alike(y, dy) else None
        return run_elementwise(kernel, y, dy) if kernel else super().relu_grad(y, dy, slope)

    def tanh(self, x: Array, outer: float = 1.0, inner: float = 1.0) -> Array:
        if self.equal_rows and accepts(x):
            return SmallTanh(x.size, outer, inner)(x)
        kernel = choose_kernel("tanh", _ScaledTanh, x.size, outer, inner) if accepts(x) else None
        return kernel(x) if kernel else super().tanh(x, outer, inner)

    def tanh_grad(self, y: Array, dy: Array, outer: float = 1.0, inner: float = 1.0) -> Array:
        kernel = choose_kernel("tanh_grad", _ScaledTanhDerivative, y.size, outer, inner) if accepts(y, dy) else None
        return kernel(y, dy) if kernel else super().tanh_grad(y, dy, outer, inner)

    def scale_and_shift(self, x: Array, factor: float, shift: float) -> Array:
        kernel = get_kernel(Function, x.size, LINEAR, factor, shift) if accepts(x) else None
        return run_elementwise(kernel, x) if kernel else super().scale_and_shift(x, factor, shift)

    def softmax(self, x: Array) -> Array:
        kernel = get_kernel(MatrixSoftmax, *x.shape) if accepts(x) else None
        if not kernel:
            return super().softmax(x)
        y = run_elementwise(kernel, x)
        if shows_nan(y):  # where x has it; the library leaves it out of the sum
            y[np.isnan(y).any(axis=1)] = np.nan
        return y

    def softmax_grad(self, y: Array, dy: Array) -> Array:
        kernel = get_kernel(_SoftmaxDerivative, *y.shape) if accepts(y, dy) else None
        return run_elementwise(kernel, y, dy) if kernel else super().softmax_grad(y, dy)

"""The oneDNN backend in bf16: products of bfloat16 numbers, summed in float32.

Images between convolutions, pooling, rectifiers and normalisation are bfloat16, and so are products over steps that
only activations and further products take. Features of other products, all params and their gradients are float32.
Layers without support for bfloat16 get their sources in float32 (:meth:`Bf16Ops.to_float32`).
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import numpy as np

from dsinga.base import buffers
from dsinga.base.buffers import address
from dsinga.ops.factored_gradient import FactoredGradient
from dsinga.ops.layout import contiguous, join_rows, to_rows
from dsinga.ops.onednn.casting import cast, cast_contiguous, cast_factor, cast_like, to_float32
from dsinga.ops.onednn.convolution import BackwardData, BackwardWeights, ConvolutionForward, add_to_rows
from dsinga.ops.onednn.library import (
    BFLOAT16,
    form_of,
)
from dsinga.ops.onednn.onednn_ops import Float32Ops
from dsinga.ops.onednn.primitive import accepts
from dsinga.ops.onednn.products import PART_BYTES, PART_ROWS, Product, TransposedProduct
from dsinga.ops.onednn.rounded_params import RoundedParams
from dsinga.ops.onednn.thread import get_kernel, thread_state
from dsinga.ops.recorded_array import recorder
from dsinga.ops.types import FLOAT32, Array, Shaped, Sizes, converted

FEW_ROWS = 256  # of x, from which on its product with a weight is written as it is
# How often the numbers of a product of attention are multiplied, on average, from which on it pays to round them.
FEW_USES = 24
LANES = 16  # numbers in a register, float32 or pairs of bfloat16


def multiply(a: Array, b: Array, out: Array, factor: float = 1.0, add: bool = False) -> None:
    """Compute factor·(a b) of bfloat16 matrices, or stacks, into float32 ``out``, or add it."""
    kernel = get_kernel(Product, form_of(a), form_of(b), form_of(out), BFLOAT16, factor, add)
    if kernel is not None:
        kernel.multiply(a, b, out)
        return
    product = buffers.empty(out.shape)
    kernel = get_kernel(Product, form_of(a), form_of(b), form_of(product), BFLOAT16, factor)
    if kernel is not None:
        kernel.multiply(a, b, product)
    else:
        np.multiply(a.astype(FLOAT32) @ b.astype(FLOAT32), np.float32(factor), out=product)
    if add:
        out += product
    else:
        out[...] = product


class DepthwiseBackwardData(BackwardData):
    """The gradient of depthwise convolutions for images; other code of the library takes 20 times as long."""

    by = "jit_dw:avx512_core_bf16"


def _grouped(make: Any, x: Array, w: Array, dilation: Sizes, groups: int, *arguments: Any) -> Any:
    """Return a kernel of bfloat16 images, if its code is for depthwise filters or for groups that fill registers."""
    is_depthwise, is_full = w.shape[1] == 1, not (w.shape[1] % LANES or w.shape[0] // groups % LANES)
    if max(dilation) > 1 or not (is_depthwise or is_full):
        return None
    kernel = get_kernel(make, x.shape, w.shape, *arguments, dilation, groups)
    return kernel if kernel is not None and (is_full or "_dw:" in kernel.implementation) else None


Gradients = tuple[Array | None, Array, Array | None]  # (dx, dw, db)


class Bf16Ops(Float32Ops):
    """oneDNN kernels with bfloat16 products, for processors with AVX512_BF16 or AMX."""

    precision = "bf16"
    has_bf16_features = True
    factor_dtype = BFLOAT16

    captures_passes = False  # its conversions are no calls of numpy's

    def __init__(self) -> None:
        self.rounded_params = RoundedParams()

    def to_float32(self, x: Array) -> Array:
        return converted(x, lambda array: to_float32(array) if type(array) is np.ndarray else array)

    def to_numpy_bf16(self, array: Array) -> Array:
        return cast(array, BFLOAT16) if array.dtype == FLOAT32 else array

    def cast_like(self, x: Array, target: Array) -> Array:
        return cast_like(x, target) if type(x) is np.ndarray and type(target) in (np.ndarray, Shaped) else x

    def as_source(self, x: Array) -> Array:
        if x.dtype != FLOAT32:
            return x
        key = address(x), x.shape, x.strides, id(recorder())
        last, source, rounded = thread_state.last_rounded  # several layers may round one source
        y = rounded()
        if last != key or y is None or source() is not (owner := _owner(x)):
            y, owner = cast(x, BFLOAT16), _owner(x)
            thread_state.last_rounded = key, weakref.ref(owner), weakref.ref(y)
        return y

    def attention(
        self, query: Array, keys: Array, values: Array, heads: int, factor: float, visible: Array | None, train: bool
    ) -> tuple[Array, Any]:
        y, workspace = super().attention(query, keys, values, heads, factor, visible, train)
        return y, cast_contiguous(workspace, BFLOAT16) if type(workspace) is np.ndarray else workspace

    def attention_grad(
        self, query: Array, keys: Array, values: Array, y: Array, workspace: Any, dy: Array, heads: int, factor: float,
        visible: Array | None,
    ) -> tuple[Array, Array, Array]:  # fmt: skip
        if type(workspace) is not np.ndarray:
            return super().attention_grad(query, keys, values, y, workspace, dy, heads, factor, visible)
        dweights, dvalues = self.weighted_means_grad(workspace, values, dy)
        weights = cast_contiguous(workspace, FLOAT32)
        dquery, dkeys, _ = self.attention_weights_grad(query, keys, weights, None, dweights, factor, None)
        return dquery, dkeys, dvalues

    def as_factor(self, w: Array) -> Array:
        return self.rounded_params.of(w) if w.ndim == 2 and w.dtype == FLOAT32 else w

    def convolution(self, x: Array, w: Array, b: Array | None, stride: Sizes, pad: Sizes) -> Array:
        if not _are_numbers(x, w):
            return super().convolution(to_float32(x), w, b, stride, pad)
        kernel = get_kernel(ConvolutionForward, x.shape, w.shape, stride, pad, b is not None, BFLOAT16)
        if kernel is None:
            return cast(super().convolution(to_float32(x), w, b, stride, pad), BFLOAT16)
        return kernel(cast_contiguous(to_rows(x), BFLOAT16), contiguous(w), b)

    def convolution_grad(
        self, x: Array, w: Array, dy: Array, stride: Sizes, pad: Sizes, need_dx: bool, need_db: bool
    ) -> tuple[Array | None, Array, Array | None]:
        weights = data = None
        if _are_numbers(x, w, dy):
            weights = get_kernel(BackwardWeights, x.shape, w.shape, stride, pad, BFLOAT16)
            data = get_kernel(BackwardData, x.shape, w.shape, stride, pad, BFLOAT16, x.dtype) if need_dx else None

        def exact(need_dx: bool) -> Gradients:
            return super(Bf16Ops, self).convolution_grad(
                to_float32(x), w, to_float32(dy), stride, pad, need_dx, need_db
            )

        return self._gradients(x, w, dy, weights, data, need_dx, need_db, exact)

    def _gradients(
        self, x: Array, w: Array, dy: Array, weights: Any, data: Any, need_dx: bool, need_db: bool,
        exact: Callable[[bool], Gradients],
    ) -> Gradients:  # fmt: skip
        """Return (dx, dw, db) by the kernels that there are, each alone; the others by ``exact``, in float32."""
        dy_rows = cast_contiguous(to_rows(dy), BFLOAT16) if weights or data else dy
        dx = data(dy_rows, contiguous(w)) if data else None
        if weights:
            dw = weights(cast_contiguous(to_rows(x), BFLOAT16), dy_rows)
            db = self._column_sums(dy_rows.reshape(-1, w.shape[0])) if need_db else None
        if not weights or (need_dx and not data):
            other, *others = exact(need_dx and not data)
            dx = dx if other is None else cast(other, x.dtype)
            dw, db = (dw, db) if weights else others
        return dx, dw, db

    def grouped_convolution(
        self, x: Array, w: Array, b: Array | None, stride: Sizes, pad: Sizes, dilation: Sizes, groups: int
    ) -> Array:
        spacing = stride, pad, dilation, groups
        if not _are_numbers(x, w):
            return super().grouped_convolution(to_float32(x), w, b, *spacing)
        arguments = stride, pad, b is not None, BFLOAT16
        kernel = _grouped(ConvolutionForward, x, w, dilation, groups, *arguments)
        if kernel is None:
            return cast(super().grouped_convolution(to_float32(x), w, b, *spacing), BFLOAT16)
        return kernel(cast_contiguous(to_rows(x), BFLOAT16), contiguous(w), b)

    def grouped_convolution_grad(
        self, x: Array, w: Array, dy: Array, stride: Sizes, pad: Sizes, dilation: Sizes, groups: int, need_dx: bool,
        need_db: bool,
    ) -> tuple[Array | None, Array, Array | None]:  # fmt: skip
        weights = data = None
        if _are_numbers(x, w, dy):
            make = DepthwiseBackwardData if w.shape[1] == 1 else BackwardData
            weights = _grouped(BackwardWeights, x, w, dilation, groups, stride, pad, BFLOAT16)
            data = _grouped(make, x, w, dilation, groups, stride, pad, BFLOAT16, x.dtype) if need_dx else None

        def exact(need_dx: bool) -> Gradients:
            return super(Bf16Ops, self).grouped_convolution_grad(
                to_float32(x), w, to_float32(dy), stride, pad, dilation, groups, need_dx, need_db
            )

        return self._gradients(x, w, dy, weights, data, need_dx, need_db, exact)

    def transposed_convolution(
        self, x: Array, w: Array, b: Array | None, stride: Sizes, pad: Sizes, size: Sizes
    ) -> Array:
        if not _are_numbers(x, w):
            return super().transposed_convolution(to_float32(x), w, b, stride, pad, size)
        shape = (x.shape[0], w.shape[1], *size)
        result = BFLOAT16 if b is None else FLOAT32
        kernel = get_kernel(BackwardData, shape, w.shape, stride, pad, BFLOAT16, result)
        if kernel is None:
            return cast(super().transposed_convolution(to_float32(x), w, b, stride, pad, size), BFLOAT16)
        y: Array = kernel(cast_contiguous(to_rows(x), BFLOAT16), contiguous(w))
        if b is not None:
            add_to_rows(y, b)
        return cast(y, BFLOAT16)

    def inner_product(self, x: Array, w: Array, b: Array | None, transpose: bool = False) -> Array:
        if not _are_numbers(x, w):
            return super().inner_product(to_float32(x), to_float32(w), b, transpose)
        x, w = _rows(x), self.as_factor(w)
        if not transpose and len(x) < FEW_ROWS:
            kernel = get_kernel(TransposedProduct, len(x), *w.shape, BFLOAT16)
            if kernel is not None:
                return kernel(x, w, b)
        w = w if transpose else w.T
        y = buffers.empty((len(x), w.shape[1]))
        forms = form_of(x), form_of(w), form_of(y)
        biased = get_kernel(Product, *forms, BFLOAT16, 1.0, False, True) if b is not None and accepts(b) else None
        if biased is not None:
            biased.multiply(x, w, contiguous(b), y)
            return y
        multiply(x, w, y)
        if b is not None:
            y += b
        return y

    def rounded_inner_product(self, x: Array, w: Array, b: Array | None, transpose: bool = False) -> Array:
        kernel = None
        if _are_numbers(x, w) and accepts(b) and (transpose or len(x) >= FEW_ROWS):
            x, w = _rows(x), self.as_factor(w)
            table, y = w if transpose else w.T, buffers.empty((len(x), w.shape[transpose]), dtype=BFLOAT16)
            forms = form_of(x), form_of(table), form_of(y)
            kernel = get_kernel(Product, *forms, BFLOAT16, 1.0, False, b is not None, BFLOAT16)
        if kernel is None:
            y = self.inner_product(x, w, b, transpose)
            return cast(y, BFLOAT16) if y.dtype == FLOAT32 else y
        kernel.multiply(x, table, *(() if b is None else (contiguous(b),)), y)
        return y

    def inner_product_grad(
        self, x: Array, w: Array, dy: Array, transpose: bool, need_dx: bool, need_db: bool, later: bool = False
    ) -> tuple[Array | None, Any, Array | None]:
        if not _are_numbers(x, w, dy):
            factors = to_float32(x), to_float32(w), to_float32(dy)
            dx, dw, db = super().inner_product_grad(*factors, transpose, need_dx, need_db)
            return dx if dx is None else cast(dx, x.dtype), dw, db
        x_rows, dy_rows = _rows(x), _rows(dy)
        left, right = (x_rows, dy_rows) if transpose else (dy_rows, x_rows)
        count = min(4 * w.size // PART_BYTES, len(w) // PART_ROWS)
        if count > 1 and left.size + right.size < w.size:  # else the bound of the gradient would take longer
            bounds = [len(w) * number // count for number in range(count + 1)]
            dw = FactoredGradient((left, right), w.shape, bounds, multiply)
            dw = dw if later else dw.compute()
        else:
            multiply(left.T, right, dw := buffers.empty(w.shape))
        dx = None
        if need_dx:
            multiply_rows = self.rounded_inner_product if x.dtype == BFLOAT16 else self.inner_product
            dx = multiply_rows(dy_rows, w, None, not transpose)
        return dx, dw, self._column_sums(dy_rows) if need_db else None

    def multiply_into(self, a: Array, b: Array, out: Array, add: bool = False) -> None:
        if accepts(a, b, out):
            multiply(cast_factor(a), cast_factor(b), out, add=add)
        else:
            super().multiply_into(a, b, out, add)

    def batched_product(self, a: Array, b: Array, out: Array, factor: float = 1.0, add: bool = False) -> None:
        if _are_numbers(a, out, b) and b.size and out.size * a.shape[3] >= FEW_USES * (a.size + b.size):
            multiply(cast_factor(a), cast_factor(b), out, factor, add)
        else:
            super().batched_product(to_float32(a), to_float32(b), out, factor, add)

    def _column_sums(self, x: Array) -> Array:
        joined = join_rows(x)
        sums = np.empty((1, joined.shape[1]), np.float32)
        multiply(np.ones((1, len(joined)), BFLOAT16), joined, sums)
        return sums.reshape(-1, x.shape[1]).sum(axis=0)


def _are_numbers(x: Array, w: Array, *gradients: Array) -> bool:
    """Whether kernels accept these arrays: all float32 or bfloat16, and x and w not empty."""
    return bool(x.size and w.size) and all(array.dtype in (FLOAT32, BFLOAT16) for array in (x, w, *gradients))


def _owner(x: Array) -> Any:
    """Return the array that the memory of x belongs to; it lives until the memory gets other numbers."""
    return x.base if type(x.base) is np.ndarray else x


def _rows(x: Array) -> Array:
    return cast_contiguous(contiguous(x), BFLOAT16)

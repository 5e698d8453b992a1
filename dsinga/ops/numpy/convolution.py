"""Inner products, convolution and pooling in plain numpy."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any, Self

import numpy as np

from dsinga.ops.layout import (
    contiguous,
    crop_rows,
    extents,
    output_sizes,
    pad_rows,
    padded_sizes,
    taps,
    to_image,
    to_rows,
)
from dsinga.ops.numpy.elementwise import NumpyElementwise
from dsinga.ops.types import Array, Sizes


class NumpyConvolution(NumpyElementwise):
    """Inner products and convolutions, by numpy's matrix product."""

    def with_fast_rounding(self) -> Self:
        """Return a backend with the fastest small products, in which a row's bits depend on the batch."""
        return self

    def with_equal_rows(self) -> Self:
        """Return a backend for predictions in which a row's bits do not depend on the others, if there is one."""
        return self

    # np.dot is called in less time than the operator @, and is quick where an operand has one column, too.

    def inner_product(self, x: Array, w: Array, b: Array | None, transpose: bool = False) -> Array:
        """Compute x Wᵀ + b: x (B, I), W (O, I), or (I, O) if ``transpose``, b (O,), to (B, O)."""
        y: Array = np.dot(x, w if transpose else w.T)
        if b is not None:
            y += b
        return y

    def rectified_inner_product(self, x: Array, w: Array, b: Array | None, transpose: bool = False) -> Array:
        """Compute ReLU of :meth:`inner_product` in one call."""
        return self.relu(self.inner_product(x, w, b, transpose))

    def rounded_inner_product(self, x: Array, w: Array, b: Array | None, transpose: bool = False) -> Array:
        """Compute :meth:`inner_product`, in bfloat16 if that is quicker and products round their factors so."""
        return self.inner_product(x, w, b, transpose)

    def inner_product_grad(
        self, x: Array, w: Array, dy: Array, transpose: bool, need_dx: bool, need_db: bool, later: bool = False
    ) -> tuple[Array | None, Any, Array | None]:
        """Return (dx (B, I), dw like w, db (O,)), the gradients of :meth:`inner_product`; None if not needed.

        With ``later`` dw may be a :class:`dsinga.ops.factored_gradient.FactoredGradient`.
        """
        dx = np.dot(dy, w.T if transpose else w) if need_dx else None
        dw = np.dot(x.T, dy) if transpose else np.dot(dy.T, x)
        return dx, dw, np.add.reduce(dy, 0) if need_db else None

    def convolution(self, x: Array, w: Array, b: Array | None, stride: Sizes, pad: Sizes) -> Array:
        """Cross-correlation: (B, C, H, W), w (F, C, kh, kw), b (F,) to (B, F, H', W'), H' = (H + 2p - k)//s + 1."""
        outputs = output_sizes(x.shape, w.shape[2:], stride, pad)
        y = _columns(x, w.shape[2:], stride, pad, outputs) @ _matrix(w)
        if b is not None:
            y += b
        return to_image(y.reshape(x.shape[0], *outputs, w.shape[0]))

    def rectified_convolution(self, x: Array, w: Array, b: Array | None, stride: Sizes, pad: Sizes) -> Array:
        """Compute :meth:`relu` of :meth:`convolution` in one call."""
        return self.relu(self.convolution(x, w, b, stride, pad))

    def convolution_grad(
        self, x: Array, w: Array, dy: Array, stride: Sizes, pad: Sizes, need_dx: bool, need_db: bool
    ) -> tuple[Array | None, Array, Array | None]:
        """Return (dx like x, dw like w, db (F,)), the gradients of :meth:`convolution`; None if not needed."""
        filters, channels, *kernel = w.shape
        outputs = dy.shape[2:]
        dy_rows = to_rows(dy).reshape(dy.shape[0] * prod(outputs), filters)
        dw = _columns(x, kernel, stride, pad, outputs).T @ dy_rows
        dw = contiguous(np.moveaxis(dw.reshape(*kernel, channels, filters), (-1, -2), (0, 1)))
        db = dy_rows.sum(axis=0) if need_db else None
        return self.transposed_convolution(dy, w, None, stride, pad, x.shape[2:]) if need_dx else None, dw, db

    def transposed_convolution(
        self, x: Array, w: Array, b: Array | None, stride: Sizes, pad: Sizes, size: Sizes
    ) -> Array:
        """Transposed convolution: (B, F, H', W'), w (F, C, kh, kw), b (C,) to (B, C, *size), plus b."""
        (batch, filters, *outputs), (_, channels, *kernel) = x.shape, w.shape
        rows = to_rows(x).reshape(batch * prod(outputs), filters)
        columns = (rows @ _matrix(w).T).reshape(batch, *outputs, prod(kernel), channels)
        padded = np.zeros((batch, *padded_sizes(size, pad), channels), columns.dtype)
        for position, tap in enumerate(taps(padded, kernel, stride, outputs)):
            tap += columns[..., position, :]
        y = contiguous(crop_rows(padded, pad))
        if b is not None:
            y += b
        return to_image(y)


def _columns(x: Array, kernel: Sequence[int], stride: Sizes, pad: Sizes, outputs: Sizes) -> Array:
    """Unfold the windows of x into rows (im2col): (B·H'·W', kh·kw·C), each in the order kh, kw, C."""
    views = taps(pad_rows(to_rows(x), pad), kernel, stride, outputs)
    columns = np.empty((x.shape[0], *outputs, len(views), x.shape[1]), x.dtype)
    for position, view in enumerate(views):
        columns[..., position, :] = view
    return columns.reshape(x.shape[0] * prod(outputs), len(views) * x.shape[1])


def _matrix(w: Array) -> Array:
    """Reshape filters (F, C, kh, kw) to the (kh·kw·C, F) matrix that multiplies im2col's rows."""
    return w.transpose(*range(2, w.ndim), 1, 0).reshape(w.size // w.shape[0], w.shape[0])


class NumpyPooling:
    """Max and mean pooling by numpy; with pads below kernels, every window meets the image."""

    def max_pool(self, x: Array, kernel: Sizes, stride: Sizes, pad: Sizes, train: bool) -> tuple[Array, Any]:
        """Max pooling: (B, C, H, W) to ((B, C, H', W'), workspace), H' by floor. Padding never wins."""
        outputs = output_sizes(x.shape, kernel, stride, pad)
        first, *others = taps(pad_rows(to_rows(x), pad, -np.inf), kernel, stride, outputs)
        best = first.copy()
        for tap in others:
            np.maximum(best, tap, out=best)
        return to_image(best), best if train else None

    def max_pool_grad(self, x: Array, workspace: Any, dy: Array, kernel: Sizes, stride: Sizes, pad: Sizes) -> Array:
        """Return dx, the gradient of :meth:`max_pool`: each dy goes to the first maximum of its window (row-major)."""
        padded, views = _gradient(x, dy, kernel, stride, pad)
        sources = taps(pad_rows(to_rows(x), pad, -np.inf), kernel, stride, dy.shape[2:])
        rows, best = to_rows(dy), workspace
        pending = np.ones(best.shape, bool)  # windows without a maximum so far: the first of equals gets the gradient
        for source, tap in zip(sources, views, strict=True):
            winner = (source == best) & pending
            pending ^= winner
            tap += rows * winner
        return to_image(contiguous(crop_rows(padded, pad)))

    def avg_pool(self, x: Array, kernel: Sizes, stride: Sizes, pad: Sizes) -> Array:
        """Mean pooling: (B, C, H, W) to (B, C, H', W'), window sum / (kh·kw), padding counted as zeros."""
        outputs = output_sizes(x.shape, kernel, stride, pad)
        total = np.zeros((x.shape[0], *outputs, x.shape[1]), x.dtype)
        for tap in taps(pad_rows(to_rows(x), pad), kernel, stride, outputs):
            total += tap
        total *= 1 / prod(kernel)
        return to_image(total)

    def avg_pool_grad(self, x: Array, dy: Array, kernel: Sizes, stride: Sizes, pad: Sizes) -> Array:
        """Return dx, the gradient of :meth:`avg_pool`, of the shape of x."""
        padded, views = _gradient(x, dy, kernel, stride, pad)
        share = to_rows(dy) * (1 / prod(kernel))
        for tap in views:
            tap += share
        return to_image(contiguous(crop_rows(padded, pad)))


def _gradient(x: Array, dy: Array, kernel: Sizes, stride: Sizes, pad: Sizes) -> tuple[Array, list[Array]]:
    """Allocate x's padded gradient, and return its view of each position in the window."""
    batch, channels, *sizes = x.shape
    padded = np.zeros((batch, *padded_sizes(sizes, pad), channels), dy.dtype)
    return padded, taps(padded, kernel, stride, dy.shape[2:])


class NumpyGroupedConvolution:
    """Convolutions with groups of channels, or with dilated windows."""

    def grouped_convolution(
        self, x: Array, w: Array, b: Array | None, stride: Sizes, pad: Sizes, dilation: Sizes, groups: int
    ) -> Array:
        """Cross-correlation by group: (B, C, H, W), w (F, C/groups, kh, kw), b (F,) to (B, F, H', W').

        H' = (H + 2·pad - dilation·(kh - 1) - 1)//stride + 1; PyTorch's conv2d.
        """
        outputs = output_sizes(x.shape, extents(w.shape[2:], dilation), stride, pad)
        y = _join(_group_columns(x, w.shape[2:], stride, pad, dilation, groups, outputs) @ _matrices(w, groups))
        if b is not None:
            y += b
        return to_image(y.reshape(x.shape[0], *outputs, w.shape[0]))

    def grouped_convolution_grad(
        self, x: Array, w: Array, dy: Array, stride: Sizes, pad: Sizes, dilation: Sizes, groups: int, need_dx: bool,
        need_db: bool,
    ) -> tuple[Array | None, Array, Array | None]:  # fmt: skip
        """Return (dx like x, dw like w, db (F,)), the gradients of :meth:`grouped_convolution`; None if not needed."""
        filters, channels, *kernel = w.shape
        outputs = dy.shape[2:]
        dy_rows = to_rows(dy).reshape(dy.shape[0] * prod(outputs), filters)
        by_group = _split(dy_rows, groups)
        columns = _group_columns(x, kernel, stride, pad, dilation, groups, outputs)
        dw = (columns.transpose(0, 2, 1) @ by_group).reshape(groups, *kernel, channels, filters // groups)
        dw = contiguous(np.moveaxis(dw, (-1, -2), (1, 2))).reshape(w.shape)
        db = dy_rows.sum(axis=0) if need_db else None
        if not need_dx:
            return None, dw, db
        dcolumns = by_group @ _matrices(w, groups).transpose(0, 2, 1)
        dcolumns = dcolumns.reshape(*by_group.shape[:2], prod(kernel), channels)
        padded = np.zeros((x.shape[0], *padded_sizes(x.shape[2:], pad), x.shape[1]), dcolumns.dtype)
        for position, tap in enumerate(taps(padded, kernel, stride, outputs, dilation)):
            tap += _join(dcolumns[:, :, position]).reshape(tap.shape)
        return to_image(contiguous(crop_rows(padded, pad))), dw, db


def _group_columns(
    x: Array, kernel: Sequence[int], stride: Sizes, pad: Sizes, dilation: Sizes, groups: int, outputs: Sizes
) -> Array:
    """Unfold the windows of each group of channels (im2col), (groups, B·H'·W', kh·kw·C/groups)."""
    views = taps(pad_rows(to_rows(x), pad), kernel, stride, outputs, dilation)
    channels = x.shape[1] // groups
    columns = np.empty((groups, x.shape[0] * prod(outputs), len(views), channels), x.dtype)
    for position, view in enumerate(views):
        columns[:, :, position] = _split(view.reshape(columns.shape[1], x.shape[1]), groups)
    return columns.reshape(*columns.shape[:2], len(views) * channels)


def _matrices(w: Array, groups: int) -> Array:
    """Reshape filters to (groups, kh·kw·C/groups, F/groups), which multiply im2col's rows."""
    filters = w.shape[0] // groups
    by_group = w.reshape(groups, filters, *w.shape[1:])
    return by_group.transpose(0, *range(3, by_group.ndim), 2, 1).reshape(groups, prod(w.shape[1:]), filters)


def _split(rows: Array, groups: int) -> Array:
    return rows.reshape(len(rows), groups, rows.shape[1] // groups).transpose(1, 0, 2)


def _join(by_group: Array) -> Array:
    groups, count, columns = by_group.shape
    return contiguous(by_group.transpose(1, 0, 2).reshape(count, groups * columns))

"""Grouped and dilated convolutions in plain numpy: one batched matrix product, of a batch of the groups.

Group g of the filters takes group g of the channels alone; neighbours in a window are ``dilation`` pixels apart.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import numpy as np

from dsinga.ops.layout import crop_rows, extents, output_sizes, pad_rows, padded_sizes, taps, to_image, to_rows
from dsinga.ops.types import Array, Sizes


class NumpyGroupedConvolution:
    """Convolutions with groups of channels, or with gaps between the pixels of a window."""

    def grouped_convolution(
        self, x: Array, w: Array, b: Array | None, stride: Sizes, pad: Sizes, dilation: Sizes, groups: int
    ) -> Array:
        """Cross-correlation by group: (B, C, H, W), w (F, C/groups, kh, kw), b (F,) -> (B, F, H', W').

        H' = (H + 2·pad - dilation·(kh - 1) - 1)//stride + 1; PyTorch's conv2d.
        """
        outputs = output_sizes(x.shape, extents(w.shape[2:], dilation), stride, pad)
        y = _join(_columns(x, w.shape[2:], stride, pad, dilation, groups, outputs) @ _matrices(w, groups))
        if b is not None:
            y += b
        return to_image(y.reshape(x.shape[0], *outputs, w.shape[0]))

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
        """Return (dx like x, dw like w, db (F,)); dx and db are None where not needed."""
        filters, channels, *kernel = w.shape
        outputs = dy.shape[2:]
        dy_rows = to_rows(dy).reshape(dy.shape[0] * prod(outputs), filters)
        by_group = _split(dy_rows, groups)
        columns = _columns(x, kernel, stride, pad, dilation, groups, outputs)
        dw = (columns.transpose(0, 2, 1) @ by_group).reshape(groups, *kernel, channels, filters // groups)
        dw = np.ascontiguousarray(np.moveaxis(dw, (-1, -2), (1, 2))).reshape(w.shape)
        db = dy_rows.sum(axis=0) if need_db else None
        if not need_dx:
            return None, dw, db
        dcolumns = by_group @ _matrices(w, groups).transpose(0, 2, 1)
        dcolumns = dcolumns.reshape(*by_group.shape[:2], prod(kernel), channels)
        padded = np.zeros((x.shape[0], *padded_sizes(x.shape[2:], pad), x.shape[1]), dcolumns.dtype)
        for position, tap in enumerate(taps(padded, kernel, stride, outputs, dilation)):
            tap += _join(dcolumns[:, :, position]).reshape(tap.shape)
        return to_image(np.ascontiguousarray(crop_rows(padded, pad))), dw, db


def _columns(
    x: Array, kernel: Sequence[int], stride: Sizes, pad: Sizes, dilation: Sizes, groups: int, outputs: Sizes
) -> Array:
    """Return im2col of each group of channels, (groups, B·H'·W', kh·kw·C/groups)."""
    views = taps(pad_rows(to_rows(x), pad), kernel, stride, outputs, dilation)
    channels = x.shape[1] // groups
    columns = np.empty((groups, x.shape[0] * prod(outputs), len(views), channels), x.dtype)
    for position, view in enumerate(views):
        columns[:, :, position] = _split(view.reshape(columns.shape[1], x.shape[1]), groups)
    return columns.reshape(*columns.shape[:2], len(views) * channels)


def _matrices(w: Array, groups: int) -> Array:
    """Return filters (F, C/groups, kh, kw) as (groups, kh·kw·C/groups, F/groups), which multiply the columns."""
    filters = w.shape[0] // groups
    by_group = w.reshape(groups, filters, *w.shape[1:])
    return by_group.transpose(0, *range(3, by_group.ndim), 2, 1).reshape(groups, prod(w.shape[1:]), filters)


def _split(rows: Array, groups: int) -> Array:
    """Return (n, C) as (groups, n, C/groups)."""
    return rows.reshape(len(rows), groups, rows.shape[1] // groups).transpose(1, 0, 2)


def _join(by_group: Array) -> Array:
    """Undo :func:`_split`."""
    groups, count, columns = by_group.shape
    return np.ascontiguousarray(by_group.transpose(1, 0, 2).reshape(count, groups * columns))

"""Gradients of 3 x 3 filters by a kernel of dsinga, for nets whose convolutions have few channels (filters.cu)."""

from __future__ import annotations

import numpy as np

from dsinga.ops.cupy.arrays import to_rows
from dsinga.ops.cupy.library import Source, cupy
from dsinga.ops.cupy.products import ChannelSums
from dsinga.ops.types import Array, Sizes

_filters = Source("filters")
_PAIRS = 16  # channels and outputs of a block, as in filters.cu
_SHARED = 48 * 1024  # bytes that a block has
_BLOCKS = 528  # four for each multiprocessor of a large GPU
_ROWS = 4  # of a band


def has_direct_gradients(x: tuple[int, ...], w: tuple[int, ...], stride: Sizes, pad: Sizes) -> bool:
    """Whether :func:`filter_gradients` computes the gradient of filters ``w`` for images of this shape."""
    is_3x3 = (*w[2:], *stride, *pad) == (3, 3, 1, 1, 1, 1)
    return is_3x3 and not (w[0] % _PAIRS or w[1] % _PAIRS) and _shared(1, x[3]) <= _SHARED


def filter_gradients(x: Array, dy: Array) -> Array:
    """Return the gradient (F, C, 3, 3) of filters for images x (B, C, H, W) and dy (B, F, H, W), float32."""
    (batch, channels, height, width), filters = x.shape, dy.shape[1]
    rows = next(rows for rows in (_ROWS, 2, 1) if _shared(rows, width) <= _SHARED)
    rows = min(rows, height)
    bands, tiles = batch * -(-height // rows), channels // _PAIRS * (filters // _PAIRS)
    stretch = -(-bands // max(1, min(bands, _BLOCKS // tiles)))
    blocks = -(-bands // stretch)
    partial, dw = (
        cupy.empty((blocks, filters * channels * 9), np.float32),
        cupy.empty((filters, channels, 3, 3), np.float32),
    )
    arguments = to_rows(x), to_rows(dy), partial, height, width, channels, filters, rows, bands, stretch
    _filters.grid("filter_gradients", x.dtype, (tiles, blocks), *arguments, shared=_shared(rows, width))
    sums = ChannelSums(*partial.shape)
    totals = sums.partial("sums_of", partial.dtype, partial)
    _filters.each("add_rows_of", dw.dtype, dw.size, totals, dw, totals.shape[1])
    return dw


def _shared(rows: int, width: int) -> int:
    """Return the bytes of shared memory for a band of x, with its border, and one of dy."""
    return 4 * _PAIRS * ((rows + 2) * (width + 2) + rows * width)

"""Images from channels-last to channels-first memory and back, by one launch of a kernel that reads and writes rows."""

from __future__ import annotations

from math import prod

from dsinga.ops.cupy.arrays import contiguous, empty_image, to_rows
from dsinga.ops.cupy.library import Source, cupy
from dsinga.ops.types import Array

_transposes = Source("transposes")
_TILE = 32  # rows and columns, as in transposes.cu


def transpose_matrices(x: Array, y: Array, count: int, rows: int, columns: int) -> None:
    """Write ``count`` matrices (rows, columns) of contiguous x to y, transposed."""
    across, down = -(-columns // _TILE), -(-rows // _TILE)
    if count and rows and columns:
        _transposes.grid("transpose", x.dtype, (count * across * down,), x, y, rows, columns, across, across * down)


def to_channels_first(x: Array) -> Array:
    """Return image x (B, C, H, W) as a C-contiguous array: x itself if it is one."""
    if x.flags.c_contiguous:
        return x
    rows, y = to_rows(x), cupy.empty(x.shape, x.dtype)
    transpose_matrices(rows, y, x.shape[0], prod(x.shape[2:]), x.shape[1])
    return y


def to_channels_last(x: Array) -> Array:
    """Return image x (B, C, H, W), contiguous in memory, as an array with channels-last strides."""
    y = empty_image(x.shape, x.dtype)
    transpose_matrices(contiguous(x), y, x.shape[0], x.shape[1], prod(x.shape[2:]))
    return y

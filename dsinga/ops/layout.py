"""Converts images between (B, C, H, W) and their channels-last memory (B, H, W, C) in the CPU backends."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product
from math import gcd
from typing import Any

import numpy as np

from dsinga.base import buffers
from dsinga.ops.types import Array, Sizes

# The order of axes that puts the channels last, or back to the second place, by the number of axes.
LAST = {4: (0, 2, 3, 1), 5: (0, 2, 3, 4, 1)}
SECOND = {4: (0, 3, 1, 2), 5: (0, 4, 1, 2, 3)}
BLOCK = 1 << 16  # numbers, whose temporary arrays stay in a core's cache
CACHE_LINE, ALIASED = 64, 1024  # bytes; lines this far apart, or a multiple, share few sets of a core's first cache


def contiguous(x: Array) -> Array:
    """Return x in C order, copied if necessary."""
    if x.flags.c_contiguous:
        return x
    is_aliased = type(x) is np.ndarray and x.size >= BLOCK and x.strides[-1] % ALIASED == 0 < min(x.strides)
    return _transposed(x) if is_aliased else x.copy()


def _transposed(x: Array) -> Array:
    """Copy x with numbers of a row so far apart that they share few cache sets: first to rows that do not."""
    order = sorted(range(x.ndim), key=lambda axis: -x.strides[axis])
    rows = x.transpose(order)
    *shape, width = rows.shape
    apart = buffers.empty((*shape, width + CACHE_LINE // x.itemsize), dtype=x.dtype)[..., :width]
    apart[...] = rows
    result = buffers.empty(x.shape, dtype=x.dtype)
    result[...] = apart.transpose([order.index(axis) for axis in range(x.ndim)])
    return result


def to_rows(x: Array) -> Array:
    """Return x (B, C, H, W) as C-contiguous (B, H, W, C): a view if channels-last, else a copy."""
    return contiguous(x.transpose(LAST[x.ndim]))


def to_image(rows: Array) -> Array:
    """Return the (B, C, H, W) view of a (B, H, W, C) array."""
    return rows.transpose(SECOND[rows.ndim])


def is_channels_last(x: Array) -> bool:
    """Whether x is an image or volume with gapless channels-last memory."""
    return x.ndim in LAST and bool(x.transpose(LAST[x.ndim]).flags.c_contiguous)


def by_channel(x: Array) -> Array:
    """Return x (B, C, ...) as (n, C), one row per pixel: a view if channels-last, else a copy."""
    last = x.transpose(0, *range(2, x.ndim), 1)  # np.moveaxis takes far longer
    return last.reshape(x.size // max(x.shape[1], 1), x.shape[1])


def point_blocks(shape: Sequence[int], whole: bool = False) -> Iterator[tuple[slice, slice]]:
    """Yield (rows, points) that cut (B, C, P) into blocks of about ``BLOCK`` numbers, which fit a core's cache."""
    rows, channels, points = shape
    width = max(1, points if whole else BLOCK // max(1, channels))
    height = max(1, BLOCK // max(1, channels * points))
    for row in range(0, rows, height):
        for point in range(0, points, width):
            yield slice(row, row + height), slice(point, point + width)


def einsum(subscripts: str, x: Array, y: Array, xp: Any = np, dtype: Any = None) -> Array:
    """Compute ``xp.einsum`` of two arrays, with 0 for sums over no rows, where numpy's result may be NaN."""
    if not x.size or not y.size:
        x, y = xp.zeros(x.shape, x.dtype), xp.zeros(y.shape, y.dtype)
    return xp.einsum(subscripts, x, y, dtype=dtype) if dtype else xp.einsum(subscripts, x, y)


def join_rows(x: Array) -> Array:
    """Reshape x (n, C) to (n/g, g·C), because sums are faster and more exact over fewer long rows."""
    rows, columns = x.shape
    group = gcd(rows, 16)
    return x.reshape(rows // group, group * columns)


def output_size(size: int, kernel: int, stride: int, pad: int) -> int:
    """Count the positions of a window along an axis: floor((size + 2·pad - kernel) / stride) + 1."""
    count = (size + 2 * pad - kernel) // stride + 1
    assert count > 0, f"a window of {kernel} does not fit {size} pixels padded by {pad}"
    return count


def output_sizes(shape: tuple[int, ...], kernel: tuple[int, ...], stride: Sizes, pad: Sizes) -> Sizes:
    """Return the output size (H', W') of a window over images (B, C, H, W)."""
    return tuple(map(output_size, shape[2:], kernel, stride, pad))


def extents(kernel: Sequence[int], dilation: Sizes) -> Sizes:
    """Return how many pixels a window covers along each axis, gaps of ``dilation`` included."""
    return tuple((size - 1) * gap + 1 for size, gap in zip(kernel, dilation, strict=True))


def pad_rows(rows: Array, pad: Sizes, fill: float = 0.0) -> Array:
    """Add ``pad`` rows and columns of ``fill`` on every side of images (B, H, W, C)."""
    if not any(pad):
        return rows
    batch, *sizes, channels = rows.shape
    padded = np.full((batch, *padded_sizes(sizes, pad), channels), fill, rows.dtype)
    padded[_interior(pad, sizes)] = rows
    return padded


def padded_sizes(sizes: Sequence[int], pad: Sizes) -> Sizes:
    """Return an image's sizes with ``pad`` rows and columns on every side."""
    return tuple(size + 2 * more for size, more in zip(sizes, pad, strict=True))


def crop_rows(padded: Array, pad: Sizes) -> Array:
    """Remove the padding that :func:`pad_rows` has added."""
    if not any(pad):
        return padded
    sizes = [size - 2 * more for size, more in zip(padded.shape[1:-1], pad, strict=True)]
    return padded[_interior(pad, sizes)]


def _interior(pad: Sizes, sizes: Sequence[int]) -> tuple[slice, ...]:
    return (slice(None), *(slice(more, more + size) for more, size in zip(pad, sizes, strict=True)))


def taps(
    padded: Array, kernel: Sequence[int], stride: Sizes, outputs: Sizes, dilation: Sizes | None = None
) -> list[Array]:
    """Return for each position in a kernel (row-major) a view (B, H', W', C): its pixel in every window."""
    gaps = dilation or (1,) * len(kernel)
    spans = [step * (count - 1) + 1 for step, count in zip(stride, outputs, strict=True)]
    return [
        padded[
            (
                slice(None),
                *(
                    slice(at * gap, at * gap + span, step)
                    for at, gap, span, step in zip(place, gaps, spans, stride, strict=True)
                ),
            )
        ]
        for place in product(*map(range, kernel))
    ]


WHOLE_KEYS = 256  # attention to no more keys is computed whole: as fast or faster, and the weights are small


def computes_in_blocks(queries: int, keys: int) -> bool:
    """Whether attention of this size is computed in blocks, by a backend that can."""
    return queries > 1 and keys > WHOLE_KEYS

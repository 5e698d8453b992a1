"""The layout of images in the CPU backends: logically (B, C, H, W), in memory (B, H, W, C).

CPU convolutions are fastest on channels-last memory; SINGA's params are for logical (B, C, H, W).
"""

from __future__ import annotations

from math import gcd

import numpy as np

from dsinga.ops.types import Array, Pair


def to_rows(x: Array) -> Array:
    """Return image x (B, C, H, W) as a C-contiguous (B, H, W, C) array: a view if x is channels-last, else a copy."""
    return np.ascontiguousarray(x.transpose(0, 2, 3, 1))


def to_image(rows: Array) -> Array:
    """Return the (B, C, H, W) view of a (B, H, W, C) array."""
    return rows.transpose(0, 3, 1, 2)


def by_channel(x: Array) -> Array:
    """Return x (B, C, ...) as (n, C), one row for each pixel: a view if x is channels-last, else a copy."""
    last = x.transpose(0, *range(2, x.ndim), 1)  # np.moveaxis takes far longer
    return last.reshape(x.size // max(x.shape[1], 1), x.shape[1])


def join_rows(x: Array) -> Array:
    """Return x (n, C) as (n/g, g·C), g rows joined: sums over n are faster, and more exact, on fewer long rows."""
    rows, columns = x.shape
    group = gcd(rows, 16)
    return x.reshape(rows // group, group * columns)


def output_size(size: int, kernel: int, stride: int, pad: int) -> int:
    """Return the number of windows along an axis: floor((size + 2·pad - kernel) / stride) + 1."""
    count = (size + 2 * pad - kernel) // stride + 1
    assert count > 0, f"a window of {kernel} does not fit {size} pixels padded by {pad}"
    return count


def output_sizes(shape: tuple[int, ...], kernel: tuple[int, ...], stride: Pair, pad: Pair) -> Pair:
    """Return (H', W') for an image shape (B, C, H, W)."""
    return (
        output_size(shape[2], kernel[0], stride[0], pad[0]),
        output_size(shape[3], kernel[1], stride[1], pad[1]),
    )


def pad_rows(rows: Array, pad: Pair, fill: float = 0.0) -> Array:
    """Return (B, H, W, C) ``rows`` with ``pad`` rows and columns of ``fill`` on every side."""
    if pad == (0, 0):
        return rows
    vertical, horizontal = pad
    batch, height, width, channels = rows.shape
    padded = np.full((batch, height + 2 * vertical, width + 2 * horizontal, channels), fill, rows.dtype)
    padded[:, vertical : vertical + height, horizontal : horizontal + width] = rows
    return padded


def crop_rows(padded: Array, pad: Pair) -> Array:
    """Undo :func:`pad_rows`."""
    if pad == (0, 0):
        return padded
    return padded[:, pad[0] : padded.shape[1] - pad[0], pad[1] : padded.shape[2] - pad[1]]


def taps(padded: Array, kernel: Pair, stride: Pair, outputs: Pair) -> list[Array]:
    """Return for each position in the kernel (row-major) a view (B, H', W', C): its pixel in every window."""
    height, width = stride[0] * (outputs[0] - 1) + 1, stride[1] * (outputs[1] - 1) + 1
    return [
        padded[:, i : i + height : stride[0], j : j + width : stride[1]]
        for i in range(kernel[0])
        for j in range(kernel[1])
    ]

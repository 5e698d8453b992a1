"""ChannelSums over the rows of a matrix and over the pixels of an image, channel by channel, in float64."""

from __future__ import annotations

from math import gcd

import numpy as np

from dsinga.ops.cupy.kernels import Source
from dsinga.ops.cupy.library import cupy
from dsinga.ops.types import Array

source = Source("channels")
_WIDTH = 32  # columns of a block
_BLOCKS = 528  # four for each multiprocessor of a large GPU
_LEAST = 64  # rows that are worth a block


class ChannelSums:
    """How (n, C) rows, without gaps, are parted for a sum: columns, rows and the stretch of rows that one block adds.

    Where C is small, several rows count as one, so that a block's columns are used.
    """

    def __init__(self, rows: int, channels: int):
        joined = gcd(rows, max(1, _WIDTH // channels))
        self.channels, self.columns, self.rows = channels, joined * channels, rows // joined
        across = -(-self.columns // _WIDTH)
        stretches = max(1, min(-(-self.rows // _LEAST), _BLOCKS // across))
        self.stretch = -(-self.rows // stretches)
        self.grid = across, -(-self.rows // self.stretch)

    def partial(self, kernel: str, dtype: np.dtype, *arguments: object, results: int = 1) -> list[Array]:
        """Run a kernel that adds up stretches: ``results`` arrays of partial sums."""
        sums = [cupy.empty((self.grid[1], self.columns), np.float64) for _ in range(results)]
        source.grid(kernel, dtype, self.grid, *arguments, *sums, self.rows, self.stretch, self.columns)
        return sums

    def total(self, partial: Array, factor: float = 1.0, rounded: np.dtype | None = None) -> Array:
        """Return (C,): the partial sums added up, times ``factor``, in float64 unless ``rounded`` to another dtype."""
        dtype, count = rounded or np.dtype(np.float64), partial.size // self.channels
        result = cupy.empty(self.channels, dtype)
        places = (None, result) if rounded else (result, None)
        source.rows("add_partial", dtype, self.channels, partial, *places, factor, count, self.channels)
        return result


def column_sums(x: Array, y: Array | None = None, rounded: np.dtype | None = None) -> Array:
    """Return the sums of x (n, C), or of x·y, over n: float64, or ``rounded``. Both lie without gaps."""
    if not x.size:
        return cupy.zeros(x.shape[1], rounded or np.float64)
    sums = ChannelSums(*x.shape)
    if y is None:
        (partial,) = sums.partial("sums_of", x.dtype, x)
    else:
        (partial,) = sums.partial("sums_of_products", x.dtype, x, y)
    return sums.total(partial, rounded=rounded)

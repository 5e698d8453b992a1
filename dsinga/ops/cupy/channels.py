"""Sums over the rows of a matrix, or the pixels of an image, for each channel, in float64."""

from __future__ import annotations

from math import gcd

import numpy as np

from dsinga.ops.cupy.kernels import Source
from dsinga.ops.cupy.library import cupy
from dsinga.ops.types import Array

source = Source("channels")
_WIDTH = 32  # columns of a block
_BLOCKS = 528  # four for each multiprocessor of a large GPU
_MIN_ROWS = 64  # of a block


class ChannelSums:
    """The division of a sum over contiguous rows (n, C) into blocks: columns, rows, and the rows that one block adds.

    If C is small, several rows are joined to one, so that all columns of a block are used.
    """

    def __init__(self, rows: int, channels: int):
        joined = gcd(rows, max(1, _WIDTH // channels))
        self.channels, self.columns, self.rows = channels, joined * channels, rows // joined
        across = -(-self.columns // _WIDTH)
        stretches = max(1, min(-(-self.rows // _MIN_ROWS), _BLOCKS // across))
        self.stretch = -(-self.rows // stretches)
        self.grid = across, -(-self.rows // self.stretch)

    def partial(self, kernel: str, dtype: np.dtype, *arguments: object, results: int = 1) -> list[Array]:
        """Run a kernel that adds the rows of each block; return ``results`` arrays of partial sums."""
        sums = [cupy.empty((self.grid[1], self.columns), np.float64) for _ in range(results)]
        source.grid(kernel, dtype, self.grid, *arguments, *sums, self.rows, self.stretch, self.columns)
        return sums

    def total(self, partial: Array, factor: float = 1.0, rounded: np.dtype | None = None) -> Array:
        """Return (C,): the total of partial sums times ``factor``, in float64 or in the dtype ``rounded``."""
        dtype, count = rounded or np.dtype(np.float64), partial.size // self.channels
        result = cupy.empty(self.channels, dtype)
        places = (None, result) if rounded else (result, None)
        source.rows("add_partial", dtype, self.channels, partial, *places, factor, count, self.channels)
        return result


def column_sums(x: Array, y: Array | None = None, rounded: np.dtype | None = None) -> Array:
    """Return the sums of contiguous x (n, C), or of x·y, over n, in float64 or in the dtype ``rounded``."""
    if not x.size:
        return cupy.zeros(x.shape[1], rounded or np.float64)
    sums = ChannelSums(*x.shape)
    if y is None:
        (partial,) = sums.partial("sums_of", x.dtype, x)
    else:
        (partial,) = sums.partial("sums_of_products", x.dtype, x, y)
    return sums.total(partial, rounded=rounded)

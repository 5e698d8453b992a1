"""One-hot vectors, embeddings, crops of images, random numbers, and numbers read by the host."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from dsinga.ops.cupy.arrays import to_rows
from dsinga.ops.cupy.elementwise import int64
from dsinga.ops.cupy.kernels import Source
from dsinga.ops.cupy.library import cupy
from dsinga.ops.interface import Ops
from dsinga.ops.layout import to_image
from dsinga.ops.types import Array, Pair

_lookup = Source("lookup")


class CupyLookup(Ops):
    """One-hot vectors, embeddings, crops, uniform numbers."""

    def one_hot(self, codes: Array, size: int) -> Array:
        codes = int64(codes)
        vectors = cupy.empty((*codes.shape, size), np.float32)
        _lookup.each("one_hot", vectors.dtype, vectors.size, codes, vectors, size)
        return vectors

    def embedding(self, table: Array, codes: Array) -> Array:
        table, codes = cupy.ascontiguousarray(table), int64(codes)
        vectors = cupy.empty((*codes.shape, table.shape[1]), table.dtype)
        _lookup.each("embedding", table.dtype, vectors.size, table, codes, vectors, table.shape[1])
        return vectors

    def embedding_grad(self, codes: Array, dy: Array) -> tuple[Array, Array]:
        """The host waits once, for the number of distinct rows, which is the size of the result."""
        flat, dy = int64(codes).reshape(-1), cupy.ascontiguousarray(dy).reshape(-1, dy.shape[-1])
        if not flat.size:
            return flat, dy
        order = cupy.argsort(flat)  # CuPy's sort is stable, so rows are added in their order in the batch
        ordered = flat[order]
        begins = ordered >= 0
        begins[1:] &= ordered[1:] != ordered[:-1]
        starts = cupy.flatnonzero(begins)
        values = cupy.empty((starts.size, dy.shape[1]), dy.dtype)
        sizes = starts.size, flat.size, dy.shape[1]
        _lookup.rows("segment_sums", dy.dtype, starts.size, dy, order, starts, values, *sizes)
        return ordered[starts], values

    def uniform(self, key: tuple[int, int], first: int, step: int, rows: int, columns: int) -> Array:
        numbers, blocks = cupy.empty((rows, columns), np.float32), -(-columns // 8)
        keys = (int(np.uint64(part).view(np.int64)) for part in key)
        _lookup.each("philox", numbers.dtype, rows * blocks, numbers, *keys, first, step, blocks, columns)
        return numbers

    def crop(
        self, images: Array, tops: Sequence[int], lefts: Sequence[int], mirrored: Sequence[bool], size: Pair, pad: int
    ) -> Array:
        rows = to_rows(images)
        batch, height, width, channels = rows.shape
        padded = cupy.zeros((batch, height + 2 * pad, width + 2 * pad, channels), images.dtype)
        padded[:, pad : pad + height, pad : pad + width] = rows
        across = np.arange(size[1])
        flipped = np.asarray(mirrored, bool)[:, None]
        columns = np.asarray(lefts, np.int64)[:, None] + np.where(flipped, across[::-1], across)
        down = np.asarray(tops, np.int64)[:, None] + np.arange(size[0])
        row, column = cupy.asarray(down)[:, :, None], cupy.asarray(columns)[:, None, :]
        return to_image(padded[cupy.arange(batch)[:, None, None], row, column])

    def read(self, numbers: Sequence[Any]) -> list[float]:
        """Arrays of the device are copied together, for which the host waits; Python numbers need no copy."""
        arrays = [number.astype(np.float64, copy=False) for number in numbers if isinstance(number, cupy.ndarray)]
        copies = iter(cupy.stack(arrays).get().tolist() if arrays else ())
        return [next(copies) if isinstance(number, cupy.ndarray) else float(number) for number in numbers]

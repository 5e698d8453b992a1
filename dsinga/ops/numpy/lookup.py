"""One-hot vectors, embedding lookups, random numbers and crops of images in plain numpy."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from dsinga.base import buffers
from dsinga.ops.recorded_array import RecordedArray, recorder
from dsinga.ops.types import Array, Pair, RecordedStep


class NumpyLookup:
    """One-hot vectors and embeddings in plain numpy."""

    def one_hot(self, codes: Array, size: int) -> Array:
        """One-hot vectors: integers (...) to (..., size) float32, all 0 for -1."""
        vectors = buffers.empty((*codes.shape, size))
        vectors[...] = 0
        flat = codes.reshape(-1)
        rows = np.flatnonzero(flat >= 0)
        vectors.reshape(-1, size)[rows, flat[rows]] = 1
        return vectors

    def embedding(self, table: Array, codes: Array) -> Array:
        """Look up the rows of a table (V, d) for integers (...): (..., d), zeros for -1."""
        vectors = buffers.empty((*codes.shape, table.shape[1]), dtype=table.dtype)
        np.take(table, codes, 0, vectors, "clip")
        vectors[codes < 0] = 0
        return vectors

    def embedding_grad(self, codes: Array, dy: Array) -> tuple[Array, Array]:
        """Return the table's rows with a gradient, (k,) ascending, and their gradients, (k, d)."""
        flat, dy = codes.reshape(-1), dy.reshape(-1, dy.shape[-1])
        order = np.argsort(flat, kind="stable")
        order = order[np.searchsorted(flat[order], 0) :]  # those of -1 have no row
        if not len(order):
            return np.zeros(0, np.int64), np.zeros((0, dy.shape[1]), dy.dtype)
        rows, starts = np.unique(flat[order], return_index=True)
        return rows.astype(np.int64), np.add.reduceat(dy[order], starts, axis=0)


def philox(key: Pair, first: int, step: int, rows: int, columns: int) -> np.ndarray:
    """Compute the random numbers of :meth:`dsinga.ops.Ops.uniform` with numpy's generator."""
    width = -(-columns // 8)  # one Philox counter gives four 64-bit words, eight float32
    seed = np.array(key, np.uint64)  # a list of such numbers becomes float64
    bits = np.random.Philox(key=seed, counter=[first * width, 0, step, 0])
    return np.random.Generator(bits).random((rows, width * 8), dtype=np.float32)[:, :columns]


class NumpyRandom:
    """Random numbers by numpy's Philox generator, and crops of images in a loop."""

    def uniform(self, key: Pair, first: int, step: int, rows: int, columns: int) -> Array:
        """Draw random numbers for rows ``first`` to ``first + rows`` at a step: (rows, columns) float32 in [0, 1).

        They have the bits of numpy's Philox4x64-10 in every backend. Each row uses w = ⌈columns/8⌉ counters; the first
        row starts at counter (first·w, 0, step, 0). In a recording, each later pass uses its own step.
        """
        recorded = recorder()
        if recorded is None or not isinstance(step, RecordedStep):
            return philox(key, first, step, rows, columns)
        return recorded.of_step(lambda step: philox(key, recorded.first_of(first, rows), step, rows, columns))

    def crop(
        self, images: Array, tops: Sequence[int], lefts: Sequence[int], mirrored: Sequence[bool], size: Pair, pad: int
    ) -> Array:
        """Crop images (B, C, H, W) of any dtype to (B, C, *size), at (top, left) of each image, mirrored or not.

        Tops and lefts count ``pad`` zeros on every side. ``tops``, ``lefts`` and ``mirrored`` have one entry an image.
        """
        recorded = recorder()
        if recorded is not None and isinstance(images, RecordedArray):
            return recorded.array_of(self.crop, images, tops, lefts, mirrored, size, pad)
        batch, channels, height, width = images.shape
        if pad:
            padded = np.zeros_like(images, shape=(batch, channels, height + 2 * pad, width + 2 * pad))
            padded[:, :, pad : pad + height, pad : pad + width] = images
            images = padded
        crops = np.empty_like(images, shape=(batch, channels, *size))  # in the layout of the images
        for row, (top, left, flip) in enumerate(zip(tops, lefts, mirrored, strict=True)):
            window = images[row, :, top : top + size[0], left : left + size[1]]
            crops[row] = window[..., ::-1] if flip else window
        return crops

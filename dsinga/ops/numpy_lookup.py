"""One-hot vectors and embedding lookups in plain numpy."""

from __future__ import annotations

import numpy as np

from dsinga.ops import buffers
from dsinga.ops.interface import Ops
from dsinga.ops.types import Array


class NumpyLookup(Ops):
    """One-hot vectors and embeddings in plain numpy."""

    def one_hot(self, codes: Array, size: int) -> Array:
        vectors = buffers.empty((*codes.shape, size))
        vectors[...] = 0
        flat = codes.reshape(-1)
        rows = np.flatnonzero(flat >= 0)
        vectors.reshape(-1, size)[rows, flat[rows]] = 1
        return vectors

    def embedding(self, table: Array, codes: Array) -> Array:
        vectors = buffers.empty((*codes.shape, table.shape[1]), dtype=table.dtype)
        np.take(table, codes, 0, vectors, "clip")
        vectors[codes < 0] = 0
        return vectors

    def embedding_grad(self, codes: Array, dy: Array) -> tuple[Array, Array]:
        flat, dy = codes.reshape(-1), dy.reshape(-1, dy.shape[-1])
        order = np.argsort(flat, kind="stable")
        order = order[np.searchsorted(flat[order], 0) :]  # those of -1 have no row
        if not len(order):
            return np.zeros(0, np.int64), np.zeros((0, dy.shape[1]), dy.dtype)
        rows, starts = np.unique(flat[order], return_index=True)
        return rows.astype(np.int64), np.add.reduceat(dy[order], starts, axis=0)

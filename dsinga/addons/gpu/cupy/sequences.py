"""Attention by cuBLAS's batched products, and linear-chain conditional random fields.

Attention is float32 in every precision.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from dsinga.addons.gpu.cupy.arrays import contiguous
from dsinga.addons.gpu.cupy.elementwise import int64
from dsinga.addons.gpu.cupy.library import Source, cupy
from dsinga.addons.gpu.cupy.products import Blas, column_sums
from dsinga.ops.interface import Ops
from dsinga.ops.types import Array

_rows = Source("rows")


class CupyAttention(Ops):
    """Attention; features are copied to make each head contiguous."""

    blas: Blas

    def rotate_pairs(self, x: Array, factors: Array) -> Array:
        return (contiguous(x).view(factors.dtype) * factors).view(x.dtype)

    def attention_weights(
        self, query: Array, keys: Array, heads: int, factor: float, visible: Array | None, score: Array | None
    ) -> tuple[Array, Any]:
        q, k = _by_head(query, heads), _by_head(keys, heads)
        hidden = None
        if score is None:
            scores = self.blas.multiply_all(q, k.transpose(0, 1, 3, 2))
            scores *= query.dtype.type(factor)
        else:
            hidden = self.tanh(q[:, :, :, None] + k[:, :, None])
            scores = (hidden * score.reshape(heads, 1, 1, -1)).sum(axis=4)
        scores = contiguous(scores)
        if visible is None:
            return self.softmax(scores.reshape(-1, scores.shape[3])).reshape(scores.shape), hidden
        weights, (_, _, queries, columns) = cupy.empty_like(scores), scores.shape
        rows = scores.size // max(columns, 1)
        arguments = scores, int64(self.asarray(visible)), weights, heads, queries, columns
        _rows.rows("visible_softmax", scores.dtype, rows, *arguments)
        return weights, hidden

    def attention_weights_grad(
        self, query: Array, keys: Array, weights: Array, workspace: Any, dweights: Array, factor: float,
        score: Array | None,
    ) -> tuple[Array, Array, Array | None]:  # fmt: skip
        (_, heads, _, columns), hidden = weights.shape, workspace
        q, k = _by_head(query, heads), _by_head(keys, heads)
        dscores = self.softmax_grad(weights.reshape(-1, columns), dweights.reshape(-1, columns)).reshape(weights.shape)
        if score is None:
            dscores *= query.dtype.type(factor)
            dq, dk = self.blas.multiply_all(dscores, k), self.blas.multiply_all(dscores.transpose(0, 1, 3, 2), q)
            return _joined(dq, query.shape), _joined(dk, keys.shape), None
        dscore = (dscores[..., None] * hidden).sum(axis=(0, 2, 3)).reshape(score.shape)
        dhidden = self.tanh_grad(hidden, dscores[..., None] * score.reshape(heads, 1, 1, -1))
        return _joined(dhidden.sum(axis=3), query.shape), _joined(dhidden.sum(axis=2), keys.shape), dscore

    def weighted_means(self, weights: Array, values: Array) -> Array:
        batch, heads, queries, _ = weights.shape
        return _joined(self.blas.multiply_all(weights, _by_head(values, heads)), (batch, queries, values.shape[2]))

    def weighted_means_grad(self, weights: Array, values: Array, dy: Array) -> tuple[Array, Array]:
        heads = weights.shape[1]
        v, d = _by_head(values, heads), _by_head(dy, heads)
        dvalues = self.blas.multiply_all(weights.transpose(0, 1, 3, 2), d)
        return contiguous(self.blas.multiply_all(d, v.transpose(0, 1, 3, 2))), _joined(dvalues, values.shape)


def _by_head(x: Array, heads: int) -> Array:
    """Return x (B, T, n) as contiguous (B, heads, T, n / heads)."""
    batch, steps, columns = x.shape
    return contiguous(x.reshape(batch, steps, heads, columns // heads).transpose(0, 2, 1, 3))


def _joined(x: Array, shape: tuple[int, ...]) -> Array:
    return contiguous(x.transpose(0, 2, 1, 3)).reshape(shape)


_crf = Source("crf")


class CupyCRF(Ops):
    """The forward algorithm in log space, its derivative by backward smoothing, and Viterbi's algorithm."""

    def crf(self, x: Array, tags: Array, transitions: Array, start: Array, train: bool) -> tuple[Array, Any]:
        x, transitions, start = (contiguous(array, x.dtype) for array in (x, transitions, start))
        batch = len(x)
        forward, log_sums, loss = cupy.empty_like(x), cupy.empty(batch, x.dtype), cupy.empty(batch, x.dtype)
        _launch("crf", x, int64(tags), transitions, start, forward, log_sums, loss)
        return loss, (forward, log_sums) if train else None

    def crf_grad(
        self, x: Array, tags: Array, transitions: Array, start: Array, workspace: Any
    ) -> tuple[Array, Array, Array]:
        x, transitions = (contiguous(array, x.dtype) for array in (x, transitions))
        (batch, _, count), (forward, log_sums) = x.shape, workspace
        dx, counts = cupy.empty_like(x), cupy.empty((batch, count * count), x.dtype)
        _launch("crf_grad", x, int64(tags), transitions, forward, log_sums, dx, counts)
        first = contiguous(dx[:, :1].reshape(batch, count))  # the starts have the gradients of first tags
        return dx, column_sums(counts, rounded=x.dtype).reshape(count, count), column_sums(first, rounded=x.dtype)

    def crf_decode(self, x: Array, lengths: Array, transitions: Array, start: Array) -> Array:
        x, transitions, start = (contiguous(array, x.dtype) for array in (x, transitions, start))
        best_before, tags = cupy.empty(x.shape, np.int32), cupy.empty(x.shape[:2], np.int64)
        _launch("crf_decode", x, int64(lengths), transitions, start, best_before, tags)
        return tags


def _launch(kernel: str, x: Array, *arguments: Array) -> None:
    batch, steps, count = x.shape
    _crf.rows(kernel, x.dtype, batch, x, *arguments, steps, count, shared=2 * count * x.itemsize)

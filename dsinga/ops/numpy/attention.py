"""Attention in numpy: products batched over heads and rows, softmax over visible keys."""

from __future__ import annotations

from typing import Any

import numpy as np

from dsinga.base import buffers
from dsinga.ops.layout import contiguous, einsum
from dsinga.ops.numpy.elementwise import NumpyElementwise
from dsinga.ops.recorded_array import host_array
from dsinga.ops.types import Array


class NumpyAttention(NumpyElementwise):
    """Attention from queries (B, Tq, n) to keys (B, Tk, n) and values (B, Tk, m), with ``heads`` parts of features."""

    def batched_product(self, a: Array, b: Array, out: Array, factor: float = 1.0, add: bool = False) -> None:
        """Compute factor·(a b) into ``out``, or add it, for a (B, h, i, j), b (B, h, j, k), of any strides."""
        product = np.matmul(a, b) if add else np.matmul(a, b, out=out)
        if factor != 1:
            product *= np.asarray(factor, out.dtype)
        if add:
            out += product

    def rotate_pairs(self, x: Array, factors: Array) -> Array:
        """Multiply pairs of neighbouring features of x (B, T, n), as complex numbers, by factors (T, n/2)."""
        y = buffers.empty(x.shape, dtype=x.dtype)
        np.multiply(contiguous(x).view(factors.dtype), factors, out=y.view(factors.dtype))
        return y

    def attention_weights(
        self, query: Array, keys: Array, heads: int, factor: float, visible: Array | None, score: Array | None
    ) -> tuple[Array, Any]:
        """Compute the softmax over keys of the scores, (B, heads, Tq, Tk); return it with a workspace.

        The score of query q and key k of a head is factor·Σ q·k, or, with ``score`` (n,), Σ score·tanh(q + k).
        ``visible`` (B, Tq), integers in host memory, is how many keys, from the first, a query sees; None means all.
        """
        q, k = by_head(query, heads), by_head(keys, heads)
        scores = buffers.empty((*q.shape[:3], k.shape[2]), dtype=query.dtype)
        hidden = None
        if score is None:
            self.batched_product(q, k.transpose(0, 1, 3, 2), scores, factor)
        else:
            hidden = self.tanh(contiguous(q[:, :, :, None] + k[:, :, None]))
            np.einsum("bhijd,hd->bhij", hidden, score.reshape(heads, -1), out=scores)
        return self._masked_softmax(scores, visible), hidden

    def _masked_softmax(self, scores: Array, visible: Array | None) -> Array:
        """Compute the softmax over visible keys, the last axis of ``scores``, which are overwritten."""
        shape = scores.shape
        hides = None
        if visible is not None and scores.size and np.min(visible) < shape[3]:
            hides = np.arange(shape[3]) >= host_array(visible)[:, None, :, None]
            np.copyto(scores, np.finfo(scores.dtype).min, where=hides)
        weights = self.softmax(scores.reshape(-1, shape[3])) if scores.size else scores
        weights = weights.reshape(shape)
        if hides is not None and host_array(visible).min() < 1:  # else the exponentials of the smallest number are 0
            np.copyto(weights, 0, where=hides)
        return weights

    def attention_weights_grad(
        self, query: Array, keys: Array, weights: Array, workspace: Any, dweights: Array, factor: float,
        score: Array | None,
    ) -> tuple[Array, Array, Array | None]:  # fmt: skip
        """Return (dquery, dkeys, dscore) for a gradient of the weights; dscore is None without ``score``."""
        heads = weights.shape[1]
        q, k = by_head(query, heads), by_head(keys, heads)
        columns = max(weights.shape[3], 1)
        dscores = self.softmax_grad(weights.reshape(-1, columns), dweights.reshape(-1, columns)).reshape(weights.shape)
        dq, dk = (buffers.empty(x.shape, dtype=weights.dtype) for x in (query, keys))
        if score is None:
            self.batched_product(dscores, k, by_head(dq, heads), factor)
            self.batched_product(dscores.transpose(0, 1, 3, 2), q, by_head(dk, heads), factor)
            return dq, dk, None
        hidden = workspace
        dscore = einsum("bhij,bhijd->hd", dscores, hidden).reshape(score.shape)
        dhidden = self.tanh_grad(hidden, dscores[..., None] * score.reshape(heads, 1, 1, -1))
        by_head(dq, heads)[...] = dhidden.sum(axis=3)
        by_head(dk, heads)[...] = dhidden.sum(axis=2)
        return dq, dk, dscore

    def weighted_means(self, weights: Array, values: Array) -> Array:
        """Compute Σ weight·value over the keys: (B, Tq, m) from weights (B, heads, Tq, Tk) and values (B, Tk, m)."""
        batch, heads, queries, _ = weights.shape
        y = buffers.empty((batch, queries, values.shape[2]), dtype=values.dtype)
        self.batched_product(weights, by_head(values, heads), by_head(y, heads))
        return y

    def weighted_means_grad(self, weights: Array, values: Array, dy: Array) -> tuple[Array, Array]:
        """Return (dweights, dvalues), the gradients of :meth:`weighted_means`."""
        heads = weights.shape[1]
        dweights, dvalues = (buffers.empty(x.shape, dtype=dy.dtype) for x in (weights, values))
        dy_by_head = by_head(dy, heads)
        self.batched_product(dy_by_head, by_head(values, heads).transpose(0, 1, 3, 2), dweights)
        self.batched_product(weights.transpose(0, 1, 3, 2), dy_by_head, by_head(dvalues, heads))
        return dweights, dvalues

    def attention(
        self, query: Array, keys: Array, values: Array, heads: int, factor: float, visible: Array | None, train: bool
    ) -> tuple[Array, Any]:
        """Compute attention: the means (B, Tq, m) of the values by :meth:`attention_weights`; return a workspace, too.

        Scores are factor·Σ q·k.
        """
        weights, _ = self.attention_weights(query, keys, heads, factor, visible, None)
        return self.weighted_means(weights, values), weights if train else None

    def attention_grad(
        self, query: Array, keys: Array, values: Array, y: Array, workspace: Any, dy: Array, heads: int, factor: float,
        visible: Array | None,
    ) -> tuple[Array, Array, Array]:  # fmt: skip
        """Return (dquery, dkeys, dvalues), the gradients of :meth:`attention`; ``y`` is its result."""
        dweights, dvalues = self.weighted_means_grad(workspace, values, dy)
        dquery, dkeys, _ = self.attention_weights_grad(query, keys, workspace, None, dweights, factor, None)
        return dquery, dkeys, dvalues


def by_head(x: Array, heads: int) -> Array:
    """View x (B, T, n) as (B, heads, T, n / heads)."""
    batch, steps, columns = x.shape
    return x.reshape(batch, steps, heads, columns // heads).transpose(0, 2, 1, 3)

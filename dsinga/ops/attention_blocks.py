"""Computes attention block by block, as FlashAttention does, without all weights in memory at once.

Dao et al., FlashAttention (2022): a query's softmax goes over blocks of keys with a running maximum and sum (Milakov
and Gimelshein, Online normalizer calculation for softmax, 2018). The backward pass recomputes weights from the sum's
logarithm.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple, Protocol

import numpy as np

from dsinga.base import buffers
from dsinga.ops.numpy.attention import by_head
from dsinga.ops.types import Array

QUERIES = KEYS = 256  # of a block
SCORES = 1 << 18  # of the blocks that are computed together, of several rows of the batch: a MiB stays in the caches


class BatchedProduct(Protocol):
    """A function that computes factor·(a b) into ``out``, or adds it, for a (B, h, i, j), b (B, h, j, k)."""

    def __call__(self, a: Array, b: Array, out: Array, factor: float = 1.0, add: bool = False) -> None: ...


class BlockSums(NamedTuple):
    """What the backward pass needs: for each query, log Σ exp(score) over its keys, (B, heads, 1, Tq); 0 for none."""

    logarithms: Array


class ScoreBlock(NamedTuple):
    """A block of rows, queries and keys with jointly computed scores; ``hidden`` marks unseen keys."""

    rows: slice
    queries: slice
    keys: slice
    hidden: Array | None


def query_blocks(batch: int, heads: int, steps: int) -> Iterator[tuple[slice, slice]]:
    """Yield blocks of rows and queries to compute together."""
    count = max(1, SCORES // (heads * QUERIES * KEYS))
    for row in range(0, batch, count):
        for start in range(0, steps, QUERIES):
            yield slice(row, min(row + count, batch)), slice(start, min(start + QUERIES, steps))


def key_blocks(rows: slice, queries: slice, keys: int, visible: Array | None) -> Iterator[ScoreBlock]:
    """Yield blocks of keys, without blocks that no query sees."""
    seen = None if visible is None else visible[rows, queries]
    least, most = (keys, keys) if seen is None else (int(seen.min()), int(seen.max()))
    for start in range(0, min(most, keys), KEYS):
        stop = min(start + KEYS, keys)
        hidden = None
        if seen is not None and stop > least:
            hidden = np.arange(start, stop)[:, None] >= seen[:, None, None, :]
        yield ScoreBlock(rows, queries, slice(start, stop), hidden)


class RunningMeans:
    """Accumulates a block of queries' softmax means over one block of keys after the other."""

    top: Array | None = None
    total: Array
    mean: Array

    def add(self, product: BatchedProduct, scores: Array, values: Array, has_hidden: bool) -> None:
        """Add a block of keys and values to the means; ``scores`` (rows, heads, keys, queries) are overwritten."""
        top = scores.max(axis=2, keepdims=True)
        if self.top is not None:
            np.maximum(top, self.top, out=top)
        if has_hidden:
            top[np.isneginf(top)] = 0  # of a query that has seen no key yet
        scores -= top
        np.exp(scores, out=scores)
        total = scores.sum(axis=2, keepdims=True)
        mean = buffers.empty((*scores.shape[:2], scores.shape[3], values.shape[3]), dtype=scores.dtype)
        product(scores.swapaxes(2, 3), values, mean)
        if self.top is not None:
            shrink = np.exp(self.top - top)
            total += shrink * self.total
            self.mean *= shrink.swapaxes(2, 3)
            mean += self.mean
        self.top, self.total, self.mean = top, total, mean

    def finish(self, out: Array) -> Array:
        """Write the means to ``out``, 0 without keys; return the logarithms of the sums."""
        assert self.top is not None
        seen = self.total > 0
        total = np.where(seen, self.total, 1)
        np.divide(self.mean, total.swapaxes(2, 3), out=out)  # 0 / 1 of a query without keys
        return np.where(seen, self.top + np.log(total), 0)


def attend_in_blocks(
    product: BatchedProduct, query: Array, keys: Array, values: Array, heads: int, factor: float, visible: Array | None,
) -> tuple[Array, BlockSums]:  # fmt: skip
    """Compute attention (B, Tq, m) in blocks; return it with the sums that :func:`derive_in_blocks` needs."""
    q, k, v = (by_head(x, heads) for x in (query, keys, values))
    batch, _, steps, _ = q.shape
    result = buffers.empty((batch, steps, values.shape[2]), dtype=query.dtype)
    y, logarithms = by_head(result, heads), np.zeros((batch, heads, 1, steps), query.dtype)
    for rows, queries in query_blocks(batch, heads, steps):
        means = RunningMeans()
        for block in key_blocks(rows, queries, k.shape[2], visible):
            scores = _scores(product, q, k, block, factor, query.dtype)
            means.add(product, scores, v[rows, :, block.keys], block.hidden is not None)
        if means.top is None:  # no query of the block sees a key
            y[rows, :, queries] = 0
        else:
            logarithms[rows, :, :, queries] = means.finish(y[rows, :, queries])
    return result, BlockSums(logarithms)


def derive_in_blocks(
    product: BatchedProduct, query: Array, keys: Array, values: Array, y: Array, sums: BlockSums, dy: Array, heads: int,
    factor: float, visible: Array | None,
) -> tuple[Array, Array, Array]:  # fmt: skip
    """Compute the gradients for queries, keys and values in blocks; ``y`` comes from :func:`attend_in_blocks`."""
    q, k, v, grad = (by_head(x, heads) for x in (query, keys, values, dy))
    dquery, dkeys, dvalues = (buffers.empty(x.shape, dtype=dy.dtype) for x in (query, keys, values))
    dq, dk, dv = (by_head(x, heads) for x in (dquery, dkeys, dvalues))
    for result in (dquery, dkeys, dvalues):
        result[...] = 0
    along = np.einsum("bhtd,bhtd->bht", grad, by_head(y, heads))[:, :, None]
    for rows, queries in query_blocks(len(query), heads, q.shape[2]):
        dy_block = grad[rows, :, queries]
        for block in key_blocks(rows, queries, k.shape[2], visible):
            weights = _scores(product, q, k, block, factor, dy.dtype)
            weights -= sums.logarithms[rows, :, :, queries]
            np.exp(weights, out=weights)
            product(weights, dy_block, dv[rows, :, block.keys], add=True)
            dscores = buffers.empty(weights.shape, dtype=weights.dtype)
            product(v[rows, :, block.keys], dy_block.swapaxes(2, 3), dscores)
            dscores -= along[rows, :, :, queries]
            dscores *= weights
            product(dscores.swapaxes(2, 3), k[rows, :, block.keys], dq[rows, :, queries], factor, add=True)
            product(dscores, q[rows, :, queries], dk[rows, :, block.keys], factor, add=True)
    return dquery, dkeys, dvalues


def _scores(product: BatchedProduct, q: Array, k: Array, block: ScoreBlock, factor: float, dtype: np.dtype) -> Array:
    """Compute the scores of a block, (rows, heads, keys, queries), -inf for unseen keys."""
    rows, queries, keys, hidden = block
    q, k = q[rows, :, queries], k[rows, :, keys]
    # Keys first, since reductions over keys are then several times as fast.
    scores = buffers.empty((*k.shape[:3], q.shape[2]), dtype=dtype)
    product(k, q.swapaxes(2, 3), scores, factor)
    if hidden is not None:
        np.copyto(scores, -np.inf, where=hidden)
    return scores

"""Attention: the part of the kernel interface that weighs the steps of one sequence for each step of another.

Features (B, T, n) have ``heads`` equal parts along their last axis. Each head has weights and a mean of its own.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

from dsinga.ops.types import Array


class AttentionOps(ABC):
    """Kernels of attention from queries (B, Tq, n) to keys (B, Tk, n) and values (B, Tk, m)."""

    @abstractmethod
    def attention_weights(
        self, query: Array, keys: Array, heads: int, factor: float, visible: Array | None, score: Array | None
    ) -> tuple[Array, Any]:
        """Return the softmax over keys of the scores, (B, heads, Tq, Tk), and a workspace.

        The score of a query q and a key k of one head is factor·Σ q·k, or, with the vector ``score`` (n,), Σ
        score·tanh(q + k). ``visible`` (B, Tq), integers in host memory, says how many keys, from the first one on, a
        query sees; all if None. The weights of the others are exactly 0, and so are all weights of a query that sees
        none.
        """

    @abstractmethod
    def attention_weights_grad(
        self,
        query: Array,
        keys: Array,
        weights: Array,
        workspace: Any,
        dweights: Array,
        factor: float,
        score: Array | None,
    ) -> tuple[Array, Array, Array | None]:
        """Return (dquery, dkeys, dscore), given the gradient for the weights; dscore is None without ``score``."""

    @abstractmethod
    def weighted_means(self, weights: Array, values: Array) -> Array:
        """Weights (B, heads, Tq, Tk), values (B, Tk, m) -> (B, Tq, m): Σ weight·value over the keys."""

    @abstractmethod
    def weighted_means_grad(self, weights: Array, values: Array, dy: Array) -> tuple[Array, Array]:
        """Return (dweights, dvalues)."""

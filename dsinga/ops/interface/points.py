"""Kernels of a class for each point of a field: softmax over the channels, and cross-entropy."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

from dsinga.ops.types import Array


class PointOps(ABC):
    """Softmax over the K channels of fields (B, K, *space), whose P points have labels (B, P) and weights (B, P)."""

    @abstractmethod
    def point_softmax(self, x: Array) -> Array:
        """Softmax over the channels of x (B, K, *space); the result is dense."""

    @abstractmethod
    def point_softmax_loss(self, x: Array, labels: Array, weights: Array | None = None) -> tuple[Array, Any, Any]:
        """(B, K, *space), labels integers in [0, K) -> (p, loss, hits) with p the softmax over the channels.

        ``loss`` is -Σ w·log max(p[label], FLT_MIN) over all points, summed in float64, and ``hits`` Σ w over those
        whose label has the highest p, the lowest class of several; a point with NaN is none. w is 1 without weights.
        Both are numbers, or 0-d arrays of the backend for ``read``.
        """

    @abstractmethod
    def point_softmax_loss_grad(self, p: Array, labels: Array, weights: Array | None, factor: float) -> Array:
        """Return w·(p - 1[label])·factor, for the softmax p (B, K, *space): the gradient of ``factor`` times the loss.

        ``p`` is dense, and so is the result.
        """

    @abstractmethod
    def highest_channel(self, x: Array) -> Array:
        """Return the first channel with the highest number of x (B, K, P), (B, P) integers; any where there is NaN."""

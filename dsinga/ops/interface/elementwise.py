"""Activations, sums, products, softmax and losses: the elementwise part of the kernel interface."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

from dsinga.ops.types import Array


class ElementwiseOps(ABC):
    """Kernels that treat each number, or each row of a matrix, by itself."""

    # -- elementwise -----------------------------------------------------------------------------------------

    @abstractmethod
    def relu(self, x: Array, slope: float = 0.0) -> Array:
        """max(x, 0) + slope·min(x, 0)."""

    @abstractmethod
    def relu_grad(self, y: Array, dy: Array, slope: float = 0.0) -> Array:
        """Return dy where y > 0, slope·dy elsewhere; ``slope`` >= 0, so the sign of y is that of x."""

    @abstractmethod
    def sigmoid(self, x: Array) -> Array:
        """1 / (1 + exp(-x)), without overflow."""

    @abstractmethod
    def sigmoid_grad(self, y: Array, dy: Array) -> Array:
        """dy·y·(1 - y)."""

    @abstractmethod
    def tanh(self, x: Array, outer: float = 1.0, inner: float = 1.0) -> Array:
        """outer·tanh(inner·x); SINGA's STanh has outer 1.7159047, inner 0.66666667."""

    @abstractmethod
    def tanh_grad(self, y: Array, dy: Array, outer: float = 1.0, inner: float = 1.0) -> Array:
        """dy·inner·(outer - y²/outer)."""

    @abstractmethod
    def gelu(self, x: Array) -> Array:
        """x·Φ(x), with Φ(x) = (1 + erf(x/√2))/2, the normal distribution."""

    @abstractmethod
    def gelu_grad(self, x: Array, dy: Array) -> Array:
        """dy·(Φ(x) + x·φ(x)), with φ(x) = exp(-x²/2)/√(2π)."""

    @abstractmethod
    def multiply(self, x: Array, y: Array) -> Array:
        """Elementwise product of equal shapes, in the layout of x."""

    @abstractmethod
    def add(self, x: Array, y: Array) -> Array:
        """Elementwise sum of equal shapes, in the layout of x."""

    # -- softmax ---------------------------------------------------------------------------------------------

    @abstractmethod
    def softmax(self, x: Array) -> Array:
        """Softmax over the last axis of (B, K)."""

    @abstractmethod
    def softmax_grad(self, y: Array, dy: Array) -> Array:
        """y·(dy - Σ dy·y)."""

    # -- losses ----------------------------------------------------------------------------------------------

    @abstractmethod
    def softmax_loss(self, x: Array, labels: Array, topk: int) -> tuple[Array, Any, Any]:
        """(B, K), labels (B,) integers in [0, K) -> (p (B, K), loss, hits) with p the softmax of each row of x.

        ``loss`` is -Σ log max(p[label], FLT_MIN), summed in float64, ``hits`` is :meth:`hits` of p. Both are numbers,
        or 0-d arrays of the backend for ``read``.
        """

    @abstractmethod
    def softmax_loss_grad(self, p: Array, labels: Array, factor: float, smoothing: float = 0.0) -> Array:
        """Return (p - (1 - smoothing)·1[label] - smoothing/K)·factor, for the softmax p (B, K).

        It is the gradient of ``factor`` times the loss for x. The target is 1 - ``smoothing`` at the label, and
        ``smoothing`` over all classes.
        """

    @abstractmethod
    def hits(self, scores: Array, labels: Array, topk: int) -> Any:
        """Return for how many rows of ``scores`` (B, K) the label is among the ``topk`` highest scores.

        Of equal scores the lower index is higher; NaN counts against the label. The result is a number, or a 0-d array
        for ``read``.
        """

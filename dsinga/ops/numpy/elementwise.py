"""Activations, softmax, dropout masks and softmax's loss in plain numpy; the first argument gives the layout."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from dsinga.ops.layout import contiguous
from dsinga.ops.types import Array


class NumpyElementwise:
    """Elementwise kernels: activations, sums and products, softmax, dropout masks."""

    def relu(self, x: Array, slope: float = 0.0) -> Array:
        """Rectifier: max(x, 0) + slope·min(x, 0)."""
        y = np.maximum(x, 0)
        if slope:
            y += slope * np.minimum(x, 0)
        return y

    def relu_grad(self, y: Array, dy: Array, slope: float = 0.0) -> Array:
        """Return the gradient of :meth:`relu`: dy where y > 0, slope·dy elsewhere (slope >= 0)."""
        gate = (y > 0).astype(y.dtype)
        if slope:
            np.copyto(gate, slope, where=y <= 0)
        return np.multiply(gate, dy, out=gate)

    def sigmoid(self, x: Array) -> Array:
        """Sigmoid: 1 / (1 + exp(-x)), without overflow."""
        # exp(-|x|) is at most 1, so neither branch overflows.
        small = np.exp(-np.abs(x))
        return np.where(x >= 0, 1, small) / (1 + small)

    def sigmoid_grad(self, y: Array, dy: Array) -> Array:
        """Return the gradient of :meth:`sigmoid`: dy·y·(1 - y)."""
        dx = y * (1 - y)
        dx *= dy
        return dx

    def tanh(self, x: Array, outer: float = 1.0, inner: float = 1.0) -> Array:
        """Scaled tanh: outer·tanh(inner·x); SINGA's STanh has outer 1.7159047, inner 0.66666667."""
        y = np.tanh(x * inner)
        y *= outer
        return y

    def tanh_grad(self, y: Array, dy: Array, outer: float = 1.0, inner: float = 1.0) -> Array:
        """Return the gradient of :meth:`tanh`: dy·inner·(outer - y²/outer)."""
        dx = y * y
        dx *= -inner / outer
        dx += inner * outer
        dx *= dy
        return dx

    def gelu(self, x: Array) -> Array:
        """GELU: x·Φ(x), with the normal distribution Φ(x) = (1 + erf(x/√2))/2."""
        y = _normal_distribution(x)
        y *= x
        return y

    def gelu_grad(self, x: Array, dy: Array) -> Array:
        """Return the gradient of :meth:`gelu`: dy·(Φ(x) + x·φ(x)), with φ(x) = exp(-x²/2)/√(2π)."""
        dx = np.exp(x * x * -0.5)
        dx *= x
        dx *= 1 / math.sqrt(2 * math.pi)
        dx += _normal_distribution(x)
        dx *= dy
        return dx

    def hard_swish(self, x: Array) -> Array:
        """Hard swish: x·clip(x + 3, 0, 6) / 6."""
        return x * np.minimum(np.maximum(x + 3, 0), 6) / 6

    def hard_swish_grad(self, x: Array, dy: Array) -> Array:
        """Return the gradient of :meth:`hard_swish`."""
        return dy * (np.minimum(np.maximum(x + 3, 0), 6) + x * (np.abs(x) < 3)) / 6

    def silu(self, x: Array) -> Array:
        """SiLU: x·σ(x), with σ(x) = 1 / (1 + exp(-x))."""
        y = _like(x, self.sigmoid(x))
        y *= x
        return y

    def silu_grad(self, x: Array, dy: Array) -> Array:
        """Return the gradient of :meth:`silu`: dy·σ(x)·(1 + x·(1 - σ(x)))."""
        sigmoid = self.sigmoid(x)
        dx = _like(x, 1 - sigmoid)
        dx *= x
        dx += 1
        dx *= sigmoid
        dx *= dy
        return dx

    def multiply(self, x: Array, y: Array) -> Array:
        """Elementwise product of equal shapes, in the layout of x."""
        return np.multiply(x, y, out=np.empty_like(x, dtype=np.result_type(x, y)))

    def add(self, x: Array, y: Array) -> Array:
        """Elementwise sum of equal shapes, in the layout of x."""
        return np.add(x, y, out=np.empty_like(x, dtype=np.result_type(x, y)))

    def softmax(self, x: Array) -> Array:
        """Softmax over the last axis of (B, K)."""
        y = np.exp(x - x.max(axis=-1, keepdims=True))
        y /= y.sum(axis=-1, keepdims=True)
        return y

    def softmax_grad(self, y: Array, dy: Array) -> Array:
        """Return the gradient of :meth:`softmax`: y·(dy - Σ dy·y)."""
        dx = dy - (dy * y).sum(axis=-1, keepdims=True)
        dx *= y
        return dx

    def bernoulli(self, p: Array, uniform: Array) -> Array:
        """Sample 1 with probability p, else 0, like p (B, n): 1 where the uniform is below p."""
        return (uniform < p).astype(p.dtype)

    def dropout_mask(self, uniform: Array, ratio: float) -> Array:
        """Convert uniform numbers (B, n) to dropout factors: 1/(1 - ratio) where the uniform is >= ratio, else 0."""
        return (uniform >= ratio) * np.float32(1 / (1 - ratio))


def _like(x: Array, values: Array) -> Array:
    copy = np.empty_like(x)
    copy[...] = values
    return copy


def _normal_distribution(x: Array) -> Array:
    """Compute the normal distribution (1 + erf(x/√2))/2 in the layout of x.

    In float32 by formula 7.1.26 of Abramowitz and Stegun (1964), with an error below 1.5e-7.
    """
    if x.dtype != np.float32:
        return np.asarray(_erf(x * math.sqrt(0.5)), x.dtype) * 0.5 + 0.5
    half = np.abs(x)
    half *= math.sqrt(0.5)
    t = half * 0.3275911
    t += 1
    np.reciprocal(t, out=t)
    tail = t * 1.061405429
    for coefficient in (-1.453152027, 1.421413741, -0.284496736, 0.254829592):
        tail += coefficient
        tail *= t
    half *= half
    np.negative(half, out=half)
    np.exp(half, out=half)
    tail *= half
    tail *= 0.5  # 1 - Φ(|x|)
    return np.where(x < 0, tail, 1 - tail)


_erf = np.frompyfunc(math.erf, 1, 1)


def places_of(labels: Array, classes: int) -> Array:
    """Return the flat index in (B, ``classes``) of each row's label, (B,)."""
    return labels + np.arange(0, len(labels) * classes, classes)


FLT_MIN = float(np.finfo(np.float32).tiny)


class NumpyLoss(NumpyElementwise):
    """Softmax with cross-entropy; a subclass may have a faster softmax."""

    def softmax_loss(self, x: Array, labels: Array, topk: int) -> tuple[Array, Any, Any]:
        """Softmax cross-entropy: x (B, K), labels (B,) integers in [0, K) to (p (B, K), loss, hits), p = softmax(x).

        ``loss`` is -Σ log max(p[label], FLT_MIN), summed in float64, ``hits`` is :meth:`hits` of p.
        """
        p = self.softmax(x)
        of_labels = p.reshape(-1).take(places_of(labels, p.shape[1]), mode="clip")
        loss = -np.log(np.maximum(of_labels, FLT_MIN)).sum(dtype=np.float64)
        return p, loss, self.hits(p, labels, topk)

    def softmax_loss_grad(self, p: Array, labels: Array, factor: float, smoothing: float = 0.0) -> Array:
        """Return ``factor`` times the loss's gradient for x: (p - (1 - smoothing)·1[label] - smoothing/K)·factor.

        ``p`` (B, K) is the softmax. The target is 1 - ``smoothing`` at the label, plus ``smoothing`` over all classes.
        """
        dx = contiguous(self.scale_and_shift(p, factor, -factor * smoothing / p.shape[1]))
        numbers, places = dx.reshape(-1), places_of(labels, p.shape[1])
        numbers[places] = numbers.take(places, mode="clip") - factor * (1 - smoothing)
        return dx

    def scale_and_shift(self, x: Array, factor: float, shift: float) -> Array:
        """Return x·factor + shift as a new array."""
        y = x * factor
        if shift:
            y += shift
        return y

    def hits(self, scores: Array, labels: Array, topk: int) -> Any:
        """Count the rows of ``scores`` (B, K) with the label among the ``topk`` highest scores.

        Of equal scores the lower index ranks higher; NaN counts against the label.
        """
        of_labels = scores.reshape(-1).take(places_of(labels, scores.shape[1]), mode="clip")[:, None]
        if topk == 1 < scores.shape[1]:  # the first of the highest; NaN is no hit
            return ((scores.argmax(axis=1) == labels) & ~np.isnan(of_labels[:, 0])).sum()
        later = np.arange(scores.shape[1]) > labels[:, None]
        beaten = ((scores < of_labels) | ((scores == of_labels) & later)).sum(axis=1)
        return (beaten >= scores.shape[1] - topk).sum()

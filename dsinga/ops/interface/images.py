"""Elementwise kernels, inner products, convolution, pooling and normalisation: the kernel interface of image nets."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

from dsinga.ops.types import Array, Sizes


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
    def silu(self, x: Array) -> Array:
        """x·σ(x), with σ(x) = 1 / (1 + exp(-x))."""

    @abstractmethod
    def silu_grad(self, x: Array, dy: Array) -> Array:
        """dy·σ(x)·(1 + x·(1 - σ(x)))."""

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


class ImageOps(ElementwiseOps):
    """Kernels of fully connected layers, of images (B, C, H, W), and of normalisation."""

    # -- inner product ---------------------------------------------------------------------------------------

    @abstractmethod
    def inner_product(self, x: Array, w: Array, b: Array | None, transpose: bool = False) -> Array:
        """(B, I), W (O, I), or (I, O) if ``transpose``, b (O,) -> (B, O): x Wᵀ + b."""

    @abstractmethod
    def inner_product_grad(
        self, x: Array, w: Array, dy: Array, transpose: bool, need_dx: bool, need_db: bool
    ) -> tuple[Array | None, Array, Array | None]:
        """Return (dx (B, I), dw like w, db (O,)); dx and db are None where not needed."""

    # -- convolution and pooling -----------------------------------------------------------------------------

    @abstractmethod
    def convolution(self, x: Array, w: Array, b: Array | None, stride: Sizes, pad: Sizes) -> Array:
        """Cross-correlation: (B, C, H, W), w (F, C, kh, kw), b (F,) -> (B, F, H', W'), H' = (H + 2p - k)//s + 1."""

    @abstractmethod
    def convolution_grad(
        self, x: Array, w: Array, dy: Array, stride: Sizes, pad: Sizes, need_dx: bool, need_db: bool
    ) -> tuple[Array | None, Array, Array | None]:
        """Return (dx like x, dw like w, db (F,)); dx and db are None where not needed."""

    @abstractmethod
    def transposed_convolution(
        self, x: Array, w: Array, b: Array | None, stride: Sizes, pad: Sizes, size: Sizes
    ) -> Array:
        """(B, F, H', W'), w (F, C, kh, kw), b (C,) -> (B, C, *size): the gradient of a convolution's images, plus b.

        The convolution of images of ``size`` gives (H', W'), by the formula of :meth:`convolution`.
        """

    @abstractmethod
    def max_pool(self, x: Array, kernel: Sizes, stride: Sizes, pad: Sizes, train: bool) -> tuple[Array, Any]:
        """(B, C, H, W) -> ((B, C, H', W'), workspace), H' by floor. Padding never wins. No workspace if not ``train``.

        A pad is smaller than its kernel, so that every window meets the image.
        """

    @abstractmethod
    def max_pool_grad(self, x: Array, workspace: Any, dy: Array, kernel: Sizes, stride: Sizes, pad: Sizes) -> Array:
        """Return dx: each dy is added to the first maximum of its window (row-major)."""

    @abstractmethod
    def avg_pool(self, x: Array, kernel: Sizes, stride: Sizes, pad: Sizes) -> Array:
        """(B, C, H, W) -> (B, C, H', W'): window sum / (kh·kw), padding counted as zeros (SINGA's kPooling)."""

    @abstractmethod
    def avg_pool_grad(self, x: Array, dy: Array, kernel: Sizes, stride: Sizes, pad: Sizes) -> Array:
        """Return dx, of the shape of x."""

    # -- normalisation ---------------------------------------------------------------------------------------

    @abstractmethod
    def lrn(self, x: Array, size: int, alpha: float, beta: float, k: float, train: bool) -> tuple[Array, Any]:
        """Across channels: y = x·norm^(-beta), norm = k + alpha/size · Σ x² over channels c ± size//2, clipped."""

    @abstractmethod
    def lrn_grad(self, x: Array, workspace: Any, dy: Array, size: int, alpha: float, beta: float, k: float) -> Array:
        """Return dx."""

    @abstractmethod
    def channel_sums(self, x: Array, y: Array | None = None) -> Array:
        """Sum of x, or of x·y, over all axes but axis 1: (B, C, ...) -> (C,), accumulated and returned in float64."""

    @abstractmethod
    def channel_moments(self, x: Array) -> tuple[Array, Array]:
        """Return (mean, variance), (C,) each in float64, of x (B, C, ...) over all axes but axis 1; 0 if x is empty.

        The variance is the biased one, computed about the mean, so that it is exact for numbers far from 0, too.
        """

    @abstractmethod
    def batch_norm_sums(self, x: Array, dy: Array, mean: Array, variance: Array, epsilon: float) -> tuple[Array, Array]:
        """Return (Σ dy, Σ dy·(x - mean)/√(variance + epsilon)), (C,) each, over all axes but axis 1, in float64.

        ``mean`` and ``variance`` are float64 (C,).
        """

    def rectified_batch_norm_sums(
        self, x: Array, feature: Array, dy: Array, mean: Array, variance: Array, epsilon: float
    ) -> tuple[Array, tuple[Array, Array] | None]:
        """Return ``relu_grad(feature, dy)``, and :meth:`batch_norm_sums` of it if one pass over x computes both."""
        return self.relu_grad(feature, dy), None

    @abstractmethod
    def batch_norm_grad(self, x: Array, dy: Array, factor: Array, slope: Array, shift: Array) -> Array:
        """Return factor·(dy + slope·x + shift) in the layout of x (B, C, ...); the constants are (C,) along axis 1."""

    @abstractmethod
    def batch_norm_slopes(
        self, scale: Array, mean: Array, variance: Array, sums: Sequence[Array], size: int, epsilon: float
    ) -> tuple[Array, Array, Array]:
        """Return (factor, slope, shift) for :meth:`batch_norm_grad`, given its ``sums`` over all ``size`` numbers.

        With inverse = 1/√(variance + epsilon): scale·inverse, -inverse·Σ(dy·x̂)/size, -Σdy/size - slope·mean.
        """

    @abstractmethod
    def batch_norm_affine(
        self, scale: Array, bias: Array, mean: Array, variance: Array, epsilon: float
    ) -> tuple[Array, Array]:
        """Return (factor, shift) for :meth:`channel_affine`: scale/√(variance + epsilon), bias - mean·factor."""

    @abstractmethod
    def moving_average(self, running: Array, new: Array, share: float | Array, factor: float = 1.0) -> Array:
        """(1 - share)·running + share·(factor·new), (C,) of the dtype of ``running``; ``new`` is float64.

        The share is a number, or what :meth:`step_number` returns.
        """

    def batch_norm_training(
        self, x: Array, params: Sequence[Array], share: float | Array, unbias: float, epsilon: float
    ) -> tuple[tuple[Array, Array], tuple[Array, Array], tuple[Array, Array]]:
        """Return :meth:`channel_moments` of x, the affine function by them, and the running moments after the step.

        ``params`` are scale, bias, running mean and running variance, which moves towards ``unbias`` times the
        variance. A whole batch is here; where workers share it, these functions are called one by one.
        """
        (scale, bias, *running), (mean, variance) = params, self.channel_moments(x)
        affine = self.batch_norm_affine(scale, bias, mean, variance, epsilon)
        moved = self.moving_average(running[0], mean, share), self.moving_average(running[1], variance, share, unbias)
        return (mean, variance), affine, moved

    def batch_norm_training_grad(
        self, x: Array, dy: Array, scale: Array, moments: tuple[Array, Array], size: int, epsilon: float
    ) -> tuple[Sequence[Array], tuple[Array, Array]]:
        """Return :meth:`batch_norm_slopes` and the gradients of scale and bias, for a whole batch."""
        sums = self.batch_norm_sums(x, dy, *moments, epsilon)
        slopes = self.batch_norm_slopes(scale, *moments, sums, size, epsilon)
        return slopes, (sums[1].astype(scale.dtype), sums[0].astype(scale.dtype))

    @abstractmethod
    def channel_affine(self, x: Array, scale: Array, shift: Array) -> Array:
        """x·scale + shift with scale and shift (C,) along axis 1."""

    def rectified_affine(self, x: Array, scale: Array, shift: Array, other: Array | None = None) -> Array:
        """max(x·scale + shift + other, 0): ``channel_affine``, ``add`` of an array of the shape of x, and ``relu``."""
        y = self.channel_affine(x, scale, shift)
        return self.relu(y if other is None else self.add(y, other))

    @abstractmethod
    def layer_norm(self, x: Array, scale: Array, shift: Array, epsilon: float, train: bool) -> tuple[Array, Any]:
        """(R, n), scale and shift (n,) -> ((R, n), workspace): scale·(x - mean)/√(var + epsilon) + shift, row by row.

        The variance is the biased one. No workspace if not ``train``.
        """

    @abstractmethod
    def layer_norm_grad(
        self, x: Array, workspace: Any, dy: Array, scale: Array, epsilon: float
    ) -> tuple[Array, Array, Array]:
        """Return (dx (R, n), dscale (n,), dshift (n,))."""

    @abstractmethod
    def rms_norm(self, x: Array, scale: Array, epsilon: float, train: bool) -> tuple[Array, Any]:
        """(R, n), scale (n,) -> ((R, n), workspace): scale·x/√(mean of x² + epsilon), row by row.

        No workspace if not ``train``.
        """

    @abstractmethod
    def rms_norm_grad(self, x: Array, workspace: Any, dy: Array, scale: Array) -> tuple[Array, Array]:
        """Return (dx, dscale)."""

"""Local response, group, layer and batch normalisation in plain numpy."""

from __future__ import annotations

import math
from collections.abc import Sequence
from math import gcd
from typing import Any

import numpy as np

from dsinga.base import buffers
from dsinga.ops.layout import by_channel, einsum, join_rows, to_image, to_rows
from dsinga.ops.numpy.elementwise import NumpyElementwise
from dsinga.ops.types import Array


class NumpyGroupNorm:
    """Kernels of group normalisation: sums (float64) and affine maps of (B, C, ...) by row and channel, (B, C)."""

    def row_moments(self, x: Array) -> tuple[Array, Array]:
        """Compute (mean, biased variance), (B, C) each in float64, of x (B, C, ...) over axes after the channels."""
        axes, size = tuple(range(2, x.ndim)), math.prod(x.shape[2:])
        mean = x.astype(float).sum(axis=axes) / size
        centred = x - along_points(mean, x)
        return mean, (centred * centred).sum(axis=axes) / size

    def row_affine(self, x: Array, scale: Array, shift: Array) -> Array:
        """Compute x·scale + shift in the dtype and layout of x, with float64 scale and shift (B, C)."""
        y = x * along_points(scale.astype(x.dtype), x)
        y += along_points(shift.astype(x.dtype), x)
        return y

    def row_sums(self, x: Array, dy: Array, mean: Array) -> tuple[Array, Array]:
        """Compute (Σ dy, Σ dy·(x - mean)), (B, C) each in float64, over the axes after the channels; mean is (B, C)."""
        axes, exact = tuple(range(2, x.ndim)), dy.astype(float)
        return exact.sum(axis=axes), (exact * (x - along_points(mean, x))).sum(axis=axes)

    def row_affine_grad(self, x: Array, dy: Array, factor: Array, slope: Array, shift: Array) -> Array:
        """Compute dy·factor + x·slope + shift in the dtype and layout of x; the constants are float64 (B, C)."""
        dx = self.row_affine(x, slope, shift)
        dx += dy * along_points(factor.astype(x.dtype), x)
        return dx


def along_points(constants: Array, x: Array) -> Array:
    """Reshape constants (B, C) to broadcast to x (B, C, ...)."""
    return constants.reshape(*x.shape[:2], *[1] * (x.ndim - 2))


BLOCK_ROWS = 32  # of a sum in float32; a sum of thousands of rows in one go rounds several times as much


class NumpyNormalisation(NumpyElementwise):
    """Kernels of local response, batch and layer normalisation."""

    def lrn(self, x: Array, size: int, alpha: float, beta: float, k: float, train: bool) -> tuple[Array, Any]:
        """Local response normalisation: x·norm^(-beta), norm = k + alpha/size · Σ x² over channels c ± size//2."""
        rows = to_rows(x)
        norm = _window_sums(rows * rows, size)
        norm *= alpha / size
        norm += k
        return to_image(rows * norm**-beta), norm if train else None

    def lrn_grad(self, x: Array, workspace: Any, dy: Array, size: int, alpha: float, beta: float, k: float) -> Array:
        """Return dx, the gradient of :meth:`lrn`."""
        rows, dy_rows, norm = to_rows(x), to_rows(dy), workspace
        direct = dy_rows * norm**-beta
        neighbours = _window_sums(direct * rows / norm, size)
        neighbours *= rows
        neighbours *= 2 * alpha * beta / size
        return to_image(direct - neighbours)

    def channel_sums(self, x: Array, y: Array | None = None) -> Array:
        """Sum x, or x·y, over all axes but axis 1: (B, C, ...) to (C,), in float64."""
        first, channels = join_rows(by_channel(x)), x.shape[1]
        if y is None:
            sums = first.sum(axis=0, dtype=np.float64)
        else:
            sums = einsum("nc,nc->c", first, join_rows(by_channel(y)), dtype=np.float64)
        return sums.reshape(-1, channels).sum(axis=0)

    def channel_moments(self, x: Array) -> tuple[Array, Array]:
        """Compute (mean, variance), (C,) each in float64, of x (B, C, ...) over all axes but axis 1; 0 if x is empty.

        The variance is biased.
        """
        rows = by_channel(x)
        count = max(len(rows), 1)
        mean = rows.sum(axis=0, dtype=np.float64) / count
        centred = rows - mean
        return mean, einsum("nc,nc->c", centred, centred) / count

    def batch_norm_sums(self, x: Array, dy: Array, mean: Array, variance: Array, epsilon: float) -> tuple[Array, Array]:
        """Compute (Σ dy, Σ dy·(x - mean)/√(variance + epsilon)), (C,) each, over all axes but axis 1, in float64."""
        dy_rows = by_channel(dy)
        along = einsum("nc,nc->c", dy_rows, by_channel(x) - mean) / np.sqrt(variance + epsilon)
        return dy_rows.sum(axis=0, dtype=np.float64), along

    def batch_norm_grad(self, x: Array, dy: Array, factor: Array, slope: Array, shift: Array) -> Array:
        """Compute factor·(dy + slope·x + shift) in the layout of x (B, C, ...); the constants are (C,) along axis 1."""
        dx = self.channel_affine(x, slope, shift)
        dx += dy
        dx *= _along_channels(factor, x)
        return dx

    def batch_norm_slopes(
        self, scale: Array, mean: Array, variance: Array, sums: Sequence[Array], size: int, epsilon: float
    ) -> tuple[Array, Array, Array]:
        """Compute (factor, slope, shift) for :meth:`batch_norm_grad`, given its ``sums`` over all ``size`` numbers.

        With inverse = 1/√(variance + epsilon): scale·inverse, -inverse·Σ(dy·x̂)/size, -Σdy/size - slope·mean.
        """
        inverse = (variance + epsilon) ** -0.5
        slope = -inverse * sums[1] / size
        return scale * inverse, slope, -sums[0] / size - slope * mean

    def batch_norm_affine(
        self, scale: Array, bias: Array, mean: Array, variance: Array, epsilon: float
    ) -> tuple[Array, Array]:
        """Compute (factor, shift) for :meth:`channel_affine`: scale/√(variance + epsilon), bias - mean·factor."""
        factor = scale * (variance + epsilon) ** -0.5
        return factor, bias - mean * factor

    def moving_average(self, running: Array, new: Array, share: float | Array, factor: float = 1.0) -> Array:
        """Move a running mean: (1 - share)·running + share·(factor·new), (C,) of the dtype of ``running``."""
        kept = np.multiply(1 - share, running, dtype=running.dtype)  # whether the share is a number or a float64 array
        return (kept + share * (new * factor)).astype(running.dtype)

    def channel_affine(self, x: Array, scale: Array, shift: Array) -> Array:
        """Compute x·scale + shift with scale and shift (C,) along axis 1."""
        y = x * _along_channels(scale, x)
        y += _along_channels(shift, x)
        return y

    def layer_norm(self, x: Array, scale: Array, shift: Array, epsilon: float, train: bool) -> tuple[Array, Any]:
        """Layer normalisation of rows (R, n): scale·(x - mean)/√(var + epsilon) + shift, and a workspace.

        Scale and shift are (n,), the variance is biased.
        """
        normal = x - x.mean(axis=1, keepdims=True)
        inverse = 1 / np.sqrt(np.einsum("ij,ij->i", normal, normal)[:, None] / x.shape[1] + x.dtype.type(epsilon))
        normal *= inverse
        y = normal * scale
        y += shift
        return y, (normal, inverse) if train else None

    def layer_norm_grad(
        self, x: Array, workspace: Any, dy: Array, scale: Array, epsilon: float
    ) -> tuple[Array, Array, Array]:
        """Return (dx (R, n), dscale (n,), dshift (n,)), the gradients of :meth:`layer_norm`."""
        normal, inverse = workspace
        dx = dy * scale
        along = np.einsum("ij,ij->i", dx, normal)[:, None] / x.shape[1]
        dx -= dx.mean(axis=1, keepdims=True)
        dx -= normal * along
        dx *= inverse
        return dx, einsum("ij,ij->j", dy, normal), dy.sum(axis=0)

    def rms_norm(self, x: Array, scale: Array, epsilon: float, train: bool) -> tuple[Array, Any]:
        """RMS normalisation of rows (R, n): scale·x/√(mean of x² + epsilon), and a workspace; scale is (n,)."""
        inverse = 1 / np.sqrt(np.einsum("ij,ij->i", x, x)[:, None] / x.shape[1] + x.dtype.type(epsilon))
        y = np.multiply(x, inverse, out=buffers.empty(x.shape, dtype=x.dtype))
        y *= scale
        return y, inverse if train else None

    def rms_norm_grad(self, x: Array, workspace: Any, dy: Array, scale: Array) -> tuple[Array, Array]:
        """Return (dx, dscale), the gradients of :meth:`rms_norm`."""
        inverse = workspace
        dx = np.multiply(dy, scale, out=buffers.empty(x.shape, dtype=x.dtype))
        along = np.einsum("ij,ij->i", dx, x)[:, None] * inverse**2 / x.shape[1]
        normal = np.multiply(x, along, out=buffers.empty(x.shape, dtype=x.dtype))
        dx -= normal
        dx *= inverse
        np.multiply(x, inverse, out=normal)
        return dx, _sums_of_products(dy, normal)

    def batch_norm_training(
        self, x: Array, params: Sequence[Array], share: float | Array, unbias: float, epsilon: float
    ) -> tuple[tuple[Array, Array], tuple[Array, Array], tuple[Array, Array]]:
        """Prepare batch normalisation in training: :meth:`channel_moments` of x, (factor, shift), new running moments.

        ``params`` are scale, bias, running mean and running variance, which moves towards ``unbias`` times the
        variance.
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

    def rectified_batch_norm_sums(
        self, x: Array, feature: Array, dy: Array, mean: Array, variance: Array, epsilon: float
    ) -> tuple[Array, tuple[Array, Array] | None]:
        """Return ``relu_grad(feature, dy)``, and its :meth:`batch_norm_sums` if one pass computes both."""
        return self.relu_grad(feature, dy), None

    def rectified_batch_norm_grad(
        self, x: Array, y: Array, dy: Array, scale: Array, moments: tuple[Array, Array], size: int, epsilon: float,
        needs: tuple[bool, bool],
    ) -> tuple[Array | None, Array | None, tuple[Array, Array]]:  # fmt: skip
        """Return the gradients of y = :meth:`rectified_affine` of x for a whole batch."""
        dy, sums = self.rectified_batch_norm_sums(x, y, dy, *moments, epsilon)
        if sums is None:
            slopes, for_params = self.batch_norm_training_grad(x, dy, scale, moments, size, epsilon)
        else:
            slopes = self.batch_norm_slopes(scale, *moments, sums, size, epsilon)
            for_params = sums[1].astype(scale.dtype), sums[0].astype(scale.dtype)
        return self.batch_norm_grad(x, dy, *slopes) if needs[0] else None, dy if needs[1] else None, for_params

    def rectified_affine(self, x: Array, scale: Array, shift: Array, other: Array | None = None) -> Array:
        """Compute max(x·scale + shift + other, 0), with scale and shift (C,) and ``other`` like x."""
        y = self.channel_affine(x, scale, shift)
        return self.relu(y if other is None else self.add(y, other))


def _sums_of_products(x: Array, y: Array) -> Array:
    """Sum x·y over rows of (n, C): up to BLOCK_ROWS rows in float32, then in float64."""
    shape = -1, gcd(len(x), BLOCK_ROWS), x.shape[1]
    return einsum("gij,gij->gj", x.reshape(shape), y.reshape(shape)).sum(axis=0, dtype=np.float64).astype(x.dtype)


def _along_channels(constants: Array, x: Array) -> Array:
    return constants.astype(x.dtype).reshape((-1,) + (1,) * (x.ndim - 2))


def _window_sums(rows: Array, size: int) -> Array:
    """Sum (B, H, W, C) over channels c ± size//2, clipped at both ends."""
    total = rows.copy()
    channels = rows.shape[-1]
    for offset in range(1, min(size // 2, channels - 1) + 1):
        total[..., offset:] += rows[..., : channels - offset]
        total[..., : channels - offset] += rows[..., offset:]
    return total

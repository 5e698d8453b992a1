"""Kernels of normalisation by row and channel, in the words of any array module."""

from __future__ import annotations

import math

from dsinga.ops.types import Array


class NumpyGroupNorm:
    """Sums and affine maps of (B, C, ...) with a constant for each row and channel, (B, C).

    Sums are float64. The arrays may be those of any backend.
    """

    def row_moments(self, x: Array) -> tuple[Array, Array]:
        """Return (mean, biased variance), (B, C) each in float64, of x (B, C, ...) over the axes after the channels."""
        axes, size = tuple(range(2, x.ndim)), math.prod(x.shape[2:])
        mean = x.astype(float).sum(axis=axes) / size
        centred = x - along_points(mean, x)
        return mean, (centred * centred).sum(axis=axes) / size

    def row_affine(self, x: Array, scale: Array, shift: Array) -> Array:
        """x·scale + shift in the dtype and layout of x, with float64 scale and shift (B, C)."""
        y = x * along_points(scale.astype(x.dtype), x)
        y += along_points(shift.astype(x.dtype), x)
        return y

    def row_sums(self, x: Array, dy: Array, mean: Array) -> tuple[Array, Array]:
        """Return (Σ dy, Σ dy·(x - mean)), (B, C) each in float64, over the axes after the channels; mean is (B, C)."""
        axes, exact = tuple(range(2, x.ndim)), dy.astype(float)
        return exact.sum(axis=axes), (exact * (x - along_points(mean, x))).sum(axis=axes)

    def row_affine_grad(self, x: Array, dy: Array, factor: Array, slope: Array, shift: Array) -> Array:
        """dy·factor + x·slope + shift in the dtype and layout of x; the constants are float64 (B, C)."""
        dx = self.row_affine(x, slope, shift)
        dx += dy * along_points(factor.astype(x.dtype), x)
        return dx


def along_points(constants: Array, x: Array) -> Array:
    """Return constants (B, C) in a shape that broadcasts against x (B, C, ...)."""
    return constants.reshape(*x.shape[:2], *[1] * (x.ndim - 2))

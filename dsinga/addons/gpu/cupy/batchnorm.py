"""Batch normalisation of bfloat16 features in two launches each way (batchnorm.cu), with the rectifier after it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from dsinga.addons.gpu.cupy.arrays import by_channel, cast, contiguous, empty_like, from_channel_rows
from dsinga.addons.gpu.cupy.library import Source, cupy
from dsinga.addons.gpu.cupy.normalisation import CupyNormalisation
from dsinga.addons.gpu.cupy.products import ChannelSums
from dsinga.ops.types import BFLOAT16, FLOAT32, Array

_batchnorm = Source("batchnorm")
_COUNTERS = 1 << 12  # of 32 columns each


class CupyBatchNorm(CupyNormalisation):
    """Batch normalisation; float32 features keep the kernels of :class:`CupyNormalisation`, and their bits."""

    _counters: Array | None = None

    def batch_norm_training(
        self, x: Array, params: Sequence[Array], share: float | Array, unbias: float, epsilon: float
    ) -> tuple[tuple[Array, Array], tuple[Array, Array], tuple[Array, Array]]:
        if not _is_bf16(x):
            return super().batch_norm_training(x, params, share, unbias, epsilon)
        rows = by_channel(x)
        sums, scale = ChannelSums(*rows.shape), contiguous(params[0])
        (mean, variance), results = _empty(2, sums.channels, np.float64), _empty(4, sums.channels, FLOAT32)
        shares = (share, 0.0) if isinstance(share, cupy.ndarray) else (None, float(share))
        params = (scale, *(contiguous(param, FLOAT32) for param in params[1:]))
        constants = 1 / len(rows), float(unbias), float(epsilon)
        self._sum("batch_norm_moments", sums, (rows, *params), (mean, variance, *results, *shares, *constants))
        factor, shift, *moved = results
        return (mean, variance), (factor, shift), (moved[0], moved[1])

    def batch_norm_training_grad(
        self, x: Array, dy: Array, scale: Array, moments: tuple[Array, Array], size: int, epsilon: float
    ) -> tuple[Sequence[Array], tuple[Array, Array]]:
        if not _is_bf16(x):
            return super().batch_norm_training_grad(x, dy, scale, moments, size, epsilon)
        return self._slopes(by_channel(x), None, by_channel(cast(dy, BFLOAT16)), scale, moments, size, epsilon)

    def rectified_batch_norm_grad(
        self, x: Array, y: Array, dy: Array, scale: Array, moments: tuple[Array, Array], size: int, epsilon: float,
        needs: tuple[bool, bool],
    ) -> tuple[Array | None, Array | None, tuple[Array, Array]]:  # fmt: skip
        if not _is_bf16(x):
            return super().rectified_batch_norm_grad(x, y, dy, scale, moments, size, epsilon, needs)
        rows = by_channel(x), by_channel(y), by_channel(cast(dy, BFLOAT16))
        slopes, for_params = self._slopes(*rows, scale, moments, size, epsilon)
        results = [empty_like(rows[0]) if need else None for need in needs]
        if any(needs):
            _batchnorm.each("rectified_batch_norm_grad", x.dtype, x.size, *rows, *slopes, *results, x.shape[1])
        dx, dother = (None if result is None else from_channel_rows(result, x.shape) for result in results)
        return dx, dother, for_params

    def _slopes(
        self, rows: Array, y: Array | None, dy: Array, scale: Array, moments: tuple[Array, Array], size: int,
        epsilon: float,
    ) -> tuple[Sequence[Array], tuple[Array, Array]]:  # fmt: skip
        """Return the constants of the gradient of x, given as ``rows``, and the gradients of scale and bias."""
        sums = ChannelSums(*rows.shape)
        dscale, dbias, *slopes = results = _empty(5, sums.channels, FLOAT32)
        arrays = rows, y, dy, contiguous(scale, FLOAT32), *moments
        self._sum("batch_norm_gradients", sums, arrays, (*results, float(size), float(epsilon)))
        return slopes, (dscale, dbias)

    def _sum(self, kernel: str, sums: ChannelSums, arrays: Sequence[Array | None], others: Sequence[object]) -> None:
        """Run a kernel whose last blocks add up the partial sums of all of them."""
        assert sums.grid[0] <= _COUNTERS, f"{sums.channels} channels are too many"
        if self._counters is None:
            self._counters = cupy.zeros(_COUNTERS, np.int32)
        partial = cupy.empty((2, sums.grid[1], sums.columns), np.float64)
        arguments = *arrays, partial, self.held(self._counters), *others
        sizes = sums.channels, sums.rows, sums.stretch, sums.columns
        _batchnorm.grid(kernel, BFLOAT16, sums.grid, *arguments, *sizes)


def _is_bf16(x: Array) -> bool:
    """Whether x has bfloat16 numbers."""
    return bool(x.dtype == BFLOAT16 and x.size)


def _empty(count: int, size: int, dtype: object) -> list[Array]:
    return [cupy.empty(size, dtype) for _ in range(count)]

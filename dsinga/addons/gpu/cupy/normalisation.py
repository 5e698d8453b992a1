"""Local response, layer and batch normalisation on a GPU."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from dsinga.addons.gpu.cupy.arrays import (
    by_channel,
    cast,
    contiguous,
    empty_image,
    empty_like,
    from_channel_rows,
    real,
    to_rows,
)
from dsinga.addons.gpu.cupy.library import Source, cupy
from dsinga.addons.gpu.cupy.products import ChannelSums, column_sums, source
from dsinga.addons.gpu.cupy.recording import CupyRecording
from dsinga.ops.types import BFLOAT16, FLOAT32, Array

_elementwise, _rows = Source("elementwise"), Source("rows")


class CupyNormalisation(CupyRecording):
    """Kernels that normalise across channels, each channel, or rows."""

    def lrn(self, x: Array, size: int, alpha: float, beta: float, k: float, train: bool) -> tuple[Array, Any]:
        rows, y = to_rows(x), empty_image(x.shape, x.dtype)
        norm = cupy.empty(rows.shape, real(x.dtype)) if train else None
        constants = size // 2, alpha / size, float(beta), float(k), x.shape[1]
        source.each("lrn", x.dtype, x.size, rows, y, norm, *constants)
        return y, norm

    def lrn_grad(self, x: Array, workspace: Any, dy: Array, size: int, alpha: float, beta: float, k: float) -> Array:
        rows, share, dx = to_rows(x), empty_like(workspace), empty_image(x.shape, x.dtype)
        gradients = to_rows(cast(dy, x.dtype))
        source.each("lrn_shares", x.dtype, x.size, rows, workspace, gradients, share, dx, float(beta))
        source.each("lrn_grad", x.dtype, x.size, rows, share, dx, size // 2, 2 * alpha * beta / size, x.shape[1])
        return dx

    def channel_sums(self, x: Array, y: Array | None = None) -> Array:
        return column_sums(by_channel(x), None if y is None else by_channel(cast(y, x.dtype)))

    def channel_moments(self, x: Array) -> tuple[Array, Array]:
        rows = by_channel(x)
        if not rows.size:
            return cupy.zeros(x.shape[1], np.float64), cupy.zeros(x.shape[1], np.float64)
        sums, share = ChannelSums(*rows.shape), 1 / len(rows)
        mean = sums.total(sums.partial("sums_of", x.dtype, rows), share)[0]
        squares = sums.partial("sums_of_squares", x.dtype, rows, mean, sums.channels)
        return mean, sums.total(squares, share)[0]

    def batch_norm_sums(self, x: Array, dy: Array, mean: Array, variance: Array, epsilon: float) -> tuple[Array, Array]:
        rows = by_channel(x)
        if not rows.size:
            return cupy.zeros(x.shape[1], np.float64), cupy.zeros(x.shape[1], np.float64)
        sums = ChannelSums(*rows.shape)
        statistics = cupy.asarray(mean, np.float64), cupy.asarray(variance, np.float64)
        arguments = rows, by_channel(cast(dy, x.dtype)), *statistics, float(epsilon), sums.channels
        partial = sums.partial("sums_of_gradients", x.dtype, *arguments, results=2)
        total, along = sums.total(partial)
        return total, along

    def batch_norm_slopes(
        self, scale: Array, mean: Array, variance: Array, sums: Sequence[Array], size: int, epsilon: float
    ) -> tuple[Array, Array, Array]:
        scale = contiguous(scale)
        results = tuple(empty_like(scale) for _ in range(3))
        arguments = scale, *_doubles(mean, variance, *sums), *results, float(size), float(epsilon)
        source.each("batch_norm_slopes", scale.dtype, scale.size, *arguments)
        return results

    def batch_norm_affine(
        self, scale: Array, bias: Array, mean: Array, variance: Array, epsilon: float
    ) -> tuple[Array, Array]:
        scale, bias = contiguous(scale), contiguous(bias, scale.dtype)
        factor, shift = empty_like(scale), empty_like(scale)
        arguments = scale, bias, *_doubles(mean, variance), factor, shift, float(epsilon)
        source.each("batch_norm_affine", scale.dtype, scale.size, *arguments)
        return factor, shift

    def moving_average(self, running: Array, new: Array, share: float | Array, factor: float = 1.0) -> Array:
        running = contiguous(running)
        moved = empty_like(running)
        shares = (share, 0.0) if isinstance(share, cupy.ndarray) else (None, float(share))
        arguments = running, *_doubles(new), moved, *shares, float(factor)
        source.each("moving_average", running.dtype, running.size, *arguments)
        return moved

    def batch_norm_training(
        self, x: Array, params: Sequence[Array], share: float | Array, unbias: float, epsilon: float
    ) -> tuple[tuple[Array, Array], tuple[Array, Array], tuple[Array, Array]]:
        rows = by_channel(x)
        if not rows.size:
            return super().batch_norm_training(x, params, share, unbias, epsilon)
        sums, inverse_count = ChannelSums(*rows.shape), 1 / len(rows)
        mean = sums.total(sums.partial("sums_of", x.dtype, rows), inverse_count)[0]
        partial = sums.partial("sums_of_squares", x.dtype, rows, mean, sums.channels)
        scale, *others = (contiguous(param, params[0].dtype) for param in params)
        variance, results = empty_like(mean), [empty_like(scale) for _ in range(4)]
        shares = (share, 0.0) if isinstance(share, cupy.ndarray) else (None, float(share))
        arguments = partial, mean, variance, scale, *others, *results, *shares
        constants = inverse_count, float(unbias), float(epsilon), *sums.counts()
        source.rows("batch_norm_training", scale.dtype, sums.channels, *arguments, *constants)
        factor, shift, *moved = results
        return (mean, variance), (factor, shift), (moved[0], moved[1])

    def batch_norm_training_grad(
        self, x: Array, dy: Array, scale: Array, moments: tuple[Array, Array], size: int, epsilon: float
    ) -> tuple[Sequence[Array], tuple[Array, Array]]:
        rows = by_channel(x)
        if not rows.size:
            return super().batch_norm_training_grad(x, dy, scale, moments, size, epsilon)
        sums, statistics, scale = ChannelSums(*rows.shape), _doubles(*moments), contiguous(scale)
        arguments = rows, by_channel(cast(dy, x.dtype)), *statistics, float(epsilon), sums.channels
        partial = sums.partial("sums_of_gradients", x.dtype, *arguments, results=2)
        results = [empty_like(scale) for _ in range(5)]
        constants = float(size), float(epsilon), *sums.counts()
        arrays = *partial, scale, *statistics, *results
        source.rows("batch_norm_training_grad", scale.dtype, sums.channels, *arrays, *constants)
        dscale, dbias, *slopes = results
        return slopes, (dscale, dbias)

    def channel_affine(self, x: Array, scale: Array, shift: Array) -> Array:
        return _by_rows("affine", (x,), (scale, shift))

    def rectified_affine(self, x: Array, scale: Array, shift: Array, other: Array | None = None) -> Array:
        return _by_rows("rectified_affine", (x, other), (scale, shift))

    def batch_norm_grad(self, x: Array, dy: Array, factor: Array, slope: Array, shift: Array) -> Array:
        return _by_rows("batch_norm_grad", (x, dy), (factor, slope, shift))

    def layer_norm(self, x: Array, scale: Array, shift: Array, epsilon: float, train: bool) -> tuple[Array, Any]:
        x = contiguous(x)
        y, scale, shift = empty_like(x), *(contiguous(vector, x.dtype) for vector in (scale, shift))
        normal, inverse = (empty_like(x), cupy.empty(len(x), x.dtype)) if train else (None, None)
        _rows.rows("layer_norm", x.dtype, len(x), x, scale, shift, y, normal, inverse, float(epsilon), x.shape[1])
        return y, (normal, inverse) if train else None

    def layer_norm_grad(
        self, x: Array, workspace: Any, dy: Array, scale: Array, epsilon: float
    ) -> tuple[Array, Array, Array]:
        normal, inverse = workspace
        dy = contiguous(dy)
        dx, scale = empty_like(dy), contiguous(scale, dy.dtype)
        _rows.rows("layer_norm_grad", dy.dtype, len(dy), normal, inverse, dy, scale, dx, dy.shape[1])
        return dx, column_sums(dy, normal, rounded=dy.dtype), column_sums(dy, rounded=dy.dtype)

    def rms_norm(self, x: Array, scale: Array, epsilon: float, train: bool) -> tuple[Array, Any]:
        x = contiguous(x)
        y, inverse = empty_like(x), cupy.empty(len(x), x.dtype) if train else None
        scale = contiguous(scale, x.dtype)
        _rows.rows("rms_norm", x.dtype, len(x), x, scale, y, inverse, float(epsilon), x.shape[1])
        return y, inverse

    def rms_norm_grad(self, x: Array, workspace: Any, dy: Array, scale: Array) -> tuple[Array, Array]:
        x, dy = contiguous(x), contiguous(dy)
        dx, normal, scale = empty_like(dy), empty_like(dy), contiguous(scale, dy.dtype)
        _rows.rows("rms_norm_grad", dy.dtype, len(dy), x, workspace, dy, scale, dx, normal, dy.shape[1])
        return dx, column_sums(dy, normal, rounded=dy.dtype)


def _doubles(*arrays: Array) -> list[Array]:
    return [contiguous(cupy.asarray(array), np.float64) for array in arrays]


def _by_rows(kernel: str, arrays: tuple[Array | None, ...], vectors: tuple[Array, ...]) -> Array:
    """Run a kernel on (B, C, ...) arrays and (C,) vectors along axis 1; the result is channels-last."""
    x: Array = arrays[0]
    rows = [None if array is None else by_channel(cast(array, x.dtype)) for array in arrays]
    result = cupy.empty((x.size // max(x.shape[1], 1), x.shape[1]), x.dtype)
    constants = (contiguous(cupy.asarray(vector), real(x.dtype)) for vector in vectors)
    _elementwise.each(kernel, x.dtype, x.size, *rows, *constants, result, x.shape[1])
    return from_channel_rows(result, x.shape)


_batchnorm = Source("batchnorm")
_COUNTERS = 1 << 12  # of 32 columns each


class CupyBatchNorm(CupyNormalisation):
    """Batch normalisation with faster kernels for bfloat16; float32 has the bits of :class:`CupyNormalisation`."""

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
        sums = ChannelSums(*rows.shape)
        dscale, dbias, *slopes = results = _empty(5, sums.channels, FLOAT32)
        arrays = rows, y, dy, contiguous(scale, FLOAT32), *moments
        self._sum("batch_norm_gradients", sums, arrays, (*results, float(size), float(epsilon)))
        return slopes, (dscale, dbias)

    def _sum(self, kernel: str, sums: ChannelSums, arrays: Sequence[Array | None], others: Sequence[object]) -> None:
        """Run a kernel in which the last blocks add up all partial sums."""
        assert sums.grid[0] <= _COUNTERS, f"{sums.channels} channels are too many"
        if self._counters is None:
            self._counters = cupy.zeros(_COUNTERS, np.int32)
        partial = cupy.empty((2, sums.grid[1], sums.columns), np.float64)
        arguments = *arrays, partial, self.held(self._counters), *others
        sizes = sums.channels, sums.rows, sums.stretch, sums.columns
        _batchnorm.grid(kernel, BFLOAT16, sums.grid, *arguments, *sizes)


def _is_bf16(x: Array) -> bool:
    return bool(x.dtype == BFLOAT16 and x.size)


def _empty(count: int, size: int, dtype: object) -> list[Array]:
    return [cupy.empty(size, dtype) for _ in range(count)]

"""kBM (and kCudnnBM): batch normalisation over the global batch."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, ClassVar, NamedTuple

import numpy as np

from dsinga.job import BMConf, LayerConf
from dsinga.layers.base import Array, Arrays, Connection, Gradients, Layer, Output, ParamSpec, Shape, times
from dsinga.layers.context import Context, RecordInfo
from dsinga.registry import register

EPSILON = 1e-5  # cuDNN's smallest, which SINGA uses


class Statistics(NamedTuple):
    """Mean and 1/√(variance + EPSILON) of each channel, (C,) float64, and how many numbers they are of."""

    mean: np.ndarray
    inverse: np.ndarray
    size: int


@register("layer", "kBM", "kCudnnBM")
class BatchNorm(Layer):
    """(B, C, ...) to the same: scale·(x - mean)/√(var + 1e-5) + bias for each channel.

    Ioffe and Szegedy, Batch Normalization (2015). In training, mean and (biased) variance are those of the *global*
    batch, summed in float64 through ``ctx.total``: cutting the batch changes no result beyond rounding. The same
    holds for the gradient. Otherwise the running mean and the running (unbiased) variance are used. These move by a
    share, ``momentum``, of the way to each batch's; while 1/(steps so far) is more than that, they are the mean of all
    batches, so that what they were filled with has no weight. SINGA 0.3 keeps the last batch's alone, which is a fault.

    Params, each (C,), in SINGA's order: scale, bias, running mean, running variance.
    """

    source_count: ClassVar[int | None] = 1
    connection = Connection.kOneToOne

    def __init__(self, conf: LayerConf, source_shapes: Sequence[Shape], info: RecordInfo | None = None):
        super().__init__(conf, source_shapes, info)
        self.shape = self.source_shapes[0]
        if len(self.shape) < 2:
            raise self.fail(f"takes (batch, channels, ...), but {self.source_name(0)} gives {times(self.shape)}")
        self.momentum = (conf.bm_conf or BMConf()).momentum
        channels = self.shape[1:2]
        self.params = (
            ParamSpec("scale", channels, initial=1.0),
            ParamSpec("bias", channels),
            ParamSpec("mean", channels, trainable=False),
            ParamSpec("variance", channels, trainable=False, initial=1.0),
        )

    def compute_feature(self, params: Arrays, sources: Arrays, ctx: Context) -> Output:
        x = sources[0]
        scale, bias, running_mean, running_variance = (ctx.ops.to_numpy(param) for param in params)
        if not ctx.training:
            inverse = 1 / np.sqrt(running_variance.astype(np.float64) + EPSILON)
            return Output(_affine(x, scale * inverse, bias - running_mean * scale * inverse, ctx))
        sums = _sums(x, x, ctx)
        size = ctx.rows.total * math.prod(x.shape[2:])
        mean, square = ctx.total(f"{self.name}.feature", sums) / size
        variance = np.maximum(square - mean * mean, 0)
        inverse = 1 / np.sqrt(variance + EPSILON)
        share = max(self.momentum, 1 / (ctx.step + 1))
        state = {
            "mean": _move(running_mean, mean, share, ctx),
            "variance": _move(running_variance, variance * (size / max(size - 1, 1)), share, ctx),
        }
        y = _affine(x, scale * inverse, bias - mean * scale * inverse, ctx)
        return Output(y, saved=Statistics(mean, inverse, size), state=state)

    def compute_gradient(
        self, params: Arrays, sources: Arrays, output: Output, grad: Any, needs: Sequence[bool], ctx: Context
    ) -> Gradients:
        x, (mean, inverse, size) = sources[0], output.saved
        scale = ctx.ops.to_numpy(params[0])
        sums = _sums(grad, x, ctx)
        dbias, dscale = sums[0], (sums[1] - mean * sums[0]) * inverse  # of these rows: the parts add up
        dx = None
        if needs[0]:
            # dx = scale·inverse·(dy - Σdy/n - x̂·Σ(dy·x̂)/n), sums over the global batch, as a·dy + b·x + c.
            whole = ctx.total(f"{self.name}.gradient", sums)
            a = scale * inverse
            b = -a * inverse * inverse * (whole[1] - mean * whole[0]) / size
            c = -a * whole[0] / size - b * mean
            dx = ctx.ops.add(_affine(grad, a, c, ctx), _affine(x, b, np.zeros_like(b), ctx))
        dtype = scale.dtype
        return (dx,), (ctx.ops.asarray(dscale.astype(dtype)), ctx.ops.asarray(dbias.astype(dtype)), None, None)


def _sums(x: Array, y: Array, ctx: Context) -> np.ndarray:
    """Return (2, C) float64: the sums of x and of x·y along each channel."""
    return np.stack([ctx.ops.to_numpy(ctx.ops.channel_sums(x)), ctx.ops.to_numpy(ctx.ops.channel_sums(x, y))])


def _affine(x: Array, scale: np.ndarray, shift: np.ndarray, ctx: Context) -> Array:
    return ctx.ops.channel_affine(x, ctx.ops.asarray(scale), ctx.ops.asarray(shift))


def _move(running: np.ndarray, new: np.ndarray, share: float, ctx: Context) -> Array:
    return ctx.ops.asarray(((1 - share) * running + share * new).astype(running.dtype))

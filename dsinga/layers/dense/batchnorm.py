"""Batch normalisation (kBM) over the global batch or a worker's rows, and group normalisation."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, ClassVar, NamedTuple

import numpy as np

from dsinga.base.registry import register
from dsinga.job import LayerConf
from dsinga.job.component import Settings, setting
from dsinga.job.limits import Count, Natural, Positive, Unit
from dsinga.layers.interface.context import Columns, Context, RecordInfo, single_worker
from dsinga.layers.interface.declarations import Bfloat16, Connection, Cut, Keeps, ParamSpec
from dsinga.layers.interface.layer import Array, Arrays, Gradients, Layer, Output, Shape, as_class, float_bytes
from dsinga.layers.interface.region import Reach
from dsinga.ops.types import NotCapturable


class BatchStatistics(NamedTuple):
    """Mean and biased variance of each channel, (C,) float64, over ``size`` numbers."""

    mean: Array
    variance: Array
    size: int = 1


@register("layer", kBM=218, kCudnnBM=255)
class BatchNorm(Layer):
    """Batch normalisation of (B, C, ...): scale·(x - mean)/√(var + epsilon) + bias for each channel.

    Ioffe and Szegedy, Batch Normalization (2015). In training, mean and biased variance cover the whole batch of all
    workers, in float64. With ``synchronized`` false they cover each worker's rows, as in PyTorch's
    DistributedDataParallel.

    Outside training, the layer uses running statistics: the running mean and the running unbiased variance. Each step
    moves them by the share ``momentum`` towards the batch, or by 1/(steps so far) if that is larger. So the initial
    values do not count, unless ``keep_initial``. Workers average their running statistics, weighted by their rows.

    With ``use_global_stats`` all phases use the running statistics, which do not change. A run that starts with learnt
    statistics sets ``earlier_steps``.

    Params, each (C,), in SINGA's order: scale, bias, running mean, running variance.
    """

    class Conf(Settings, name="BMConf"):
        """Settings of kBM."""

        momentum: Unit = setting(
            0.1, "the weight of the newest batch in the running statistics, as in PyTorch; with 0 they do not move"
        )
        use_global_stats: bool = setting(
            False, "whether training also uses the running statistics and keeps them, as in Caffe"
        )
        synchronized: bool = setting(
            True, "whether the statistics cover the batch of all workers, or the rows of each worker"
        )
        epsilon: Positive = setting(1e-5, "what is added to the variance; beyond SINGA")
        keep_initial: bool = setting(
            False, "whether the initial running statistics count in the first steps, as in PyTorch and Keras"
        )
        earlier_steps: Natural = setting(
            0, "how many batches the first running statistics of a run have seen; they keep their weight"
        )

    settings: Conf
    source_count: ClassVar[int | None] = 1
    cut = Cut(Connection.kOneToOne, by_space=True)
    bf16 = Bfloat16.kFeatures
    keeps = Keeps(feature=False)

    def __init__(self, conf: LayerConf, source_shapes: Sequence[Shape], info: RecordInfo | None = None):
        super().__init__(conf, source_shapes, info)
        self.expect_channels()
        self.momentum, self.use_global_stats = self.settings.momentum, self.settings.use_global_stats
        self.synchronized = self.settings.synchronized
        self.epsilon = self.settings.epsilon
        channels = self.shape[1:2]
        self.params = (
            ParamSpec("scale", channels, initial=1.0),
            ParamSpec("bias", channels),
            ParamSpec("mean", channels, trainable=False, static=self.use_global_stats),
            ParamSpec("variance", channels, trainable=False, initial=1.0, static=self.use_global_stats),
        )

    def reach(self) -> tuple[Reach, ...]:
        return self.same_points()

    def compute_feature(self, params: Arrays, sources: Arrays, ctx: Context) -> Output:
        x = sources[0]
        scale, bias, running_mean, running_variance = params
        if not ctx.training or self.use_global_stats:
            statistics = BatchStatistics(running_mean.astype(np.float64), running_variance.astype(np.float64))
            feature = self.normalise(sources, scale, bias, statistics, ctx)
            return Output(feature, saved=statistics if ctx.training else None)
        size = self.batch_size(x, ctx)
        share, unbias = self.share(ctx), size / max(size - 1, 1)
        if not self.is_shared(ctx):  # then nothing has to leave the device
            moments, affine, moved = ctx.ops.batch_norm_training(x, params, share, unbias, self.epsilon)
            state = {"mean": moved[0], "variance": moved[1]}
            return Output(self.apply(sources, affine, ctx), saved=BatchStatistics(*moments, size), state=state)
        statistics, move = self.batch_statistics(x, size, ctx), ctx.ops.moving_average
        state = {
            "mean": move(running_mean, statistics.mean, share),
            "variance": move(running_variance, statistics.variance, share, unbias),
        }
        return Output(self.normalise(sources, scale, bias, statistics, ctx), saved=statistics, state=state)

    def share(self, ctx: Context) -> float | Array:
        """Return the weight of this batch in the running statistics, the momentum's share."""
        if self.settings.keep_initial or not self.momentum:
            return self.momentum
        earlier = self.settings.earlier_steps + 1
        return ctx.step_number(lambda step: max(self.momentum, 1 / (step + earlier)))

    def normalise(self, sources: Arrays, scale: Array, bias: Array, statistics: BatchStatistics, ctx: Context) -> Array:
        """Normalise a batch with these statistics; a fused layer also adds and rectifies."""
        affine = ctx.ops.batch_norm_affine(scale, bias, statistics.mean, statistics.variance, self.epsilon)
        return self.apply(sources, affine, ctx)

    def apply(self, sources: Arrays, affine: tuple[Array, Array], ctx: Context) -> Array:
        """Multiply each channel by a factor and add a shift."""
        return ctx.ops.channel_affine(sources[0], *affine)

    def is_shared(self, ctx: Context) -> bool:
        """Whether workers add up their statistics, so that they cover the whole batch."""
        return ctx.all_reduce is not single_worker and (self.synchronized or self.region is not None)

    def batch_size(self, x: Array, ctx: Context) -> int:
        """Return over how many numbers of a channel the statistics go, given this worker's part ``x``."""
        if not self.is_shared(ctx):
            return x.size // x.shape[1]
        whole_row = math.prod(self.region.whole(self.shape)[2:]) if self.region else math.prod(x.shape[2:])
        return (ctx.pass_rows.stop - ctx.pass_rows.start) * whole_row

    def batch_statistics(self, x: Array, size: int, ctx: Context) -> BatchStatistics:
        """Return mean and variance of each channel over the global batch, ``size`` numbers of a channel."""
        if ctx.unread is not None:
            raise NotCapturable(
                f"layer {self.name!r} adds up statistics of workers in host memory, unless it has synchronized: false"
            )
        mean, variance = map(ctx.ops.to_numpy, ctx.ops.channel_moments(x))
        sums = x.size // max(x.shape[1], 1) * np.stack([mean, variance + mean * mean])
        mean, square = ctx.all_reduce(f"{self.name}.feature", sums) / size
        variance = np.maximum(square - mean * mean, 0)
        return BatchStatistics(ctx.ops.asarray(mean), ctx.ops.asarray(variance), size)

    def compute_gradient(
        self, params: Arrays, sources: Arrays, output: Output, grad: Any, needs: Sequence[bool], ctx: Context
    ) -> Gradients:
        return self.gradients(params, sources, output, grad, None, needs, ctx)

    def gradients(
        self,
        params: Arrays,
        sources: Arrays,
        output: Output,
        grad: Any,
        sums: tuple[Array, Array] | None,
        needs: Sequence[bool],
        ctx: Context,
    ) -> Gradients:
        """Return the gradients for sources, scale and bias; ``sums`` are Σ dy and Σ dy·x̂, or None to compute them."""
        x, statistics, scale = sources[0], output.saved, params[0]
        if sums is None and not self.is_shared(ctx) and not self.use_global_stats:
            moments = statistics.mean, statistics.variance
            slopes, (dscale, dbias) = ctx.ops.batch_norm_training_grad(
                x, grad, scale, moments, statistics.size, self.epsilon
            )
            return (ctx.ops.batch_norm_grad(x, grad, *slopes) if needs[0] else None,), (dscale, dbias, None, None)
        # The gradients of bias and scale over these rows; those of all workers add up.
        if sums is None:
            sums = ctx.ops.batch_norm_sums(x, grad, statistics.mean, statistics.variance, self.epsilon)
        dx = None
        if needs[0]:
            # dx = scale·inverse·(dy - Σdy/n - x̂·Σ(dy·x̂)/n), the sums over the global batch; 0 of them where the
            # statistics do not depend on x.
            everywhere = [0 * array for array in sums] if self.use_global_stats else self.global_sums(sums, ctx)
            slopes = ctx.ops.batch_norm_slopes(
                scale, statistics.mean, statistics.variance, everywhere, statistics.size, self.epsilon
            )
            dx = ctx.ops.batch_norm_grad(x, grad, *slopes)
        dbias, dscale = (array.astype(scale.dtype) for array in sums)
        return (dx,), (dscale, dbias, None, None)

    def global_sums(self, sums: tuple[Array, Array], ctx: Context) -> Sequence[Array]:
        """Add up this worker's sums and those from the other workers of the batch."""
        if not self.is_shared(ctx):
            return sums
        return ctx.sum_arrays(f"{self.name}.gradient", sums)


class RectifiedBatchNorm(BatchNorm):
    """Fused batch normalisation and rectifier, with an optional source added in between, to save passes over memory.

    Back-propagation replaces kBM, kReLU and, between them, kAdd by it (:mod:`dsinga.net.fusion`).
    """

    source_count = None
    bf16 = Bfloat16.kFeatures
    keeps = Keeps(sources=1)

    @classmethod
    def of(cls, layer: BatchNorm, added: int = 0) -> RectifiedBatchNorm:
        """Make the fused layer from a kBM ``layer`` and ``added`` more sources, 0 or 1."""
        return as_class(cls, layer, source_shapes=layer.source_shapes * (1 + added))

    def apply(self, sources: Arrays, affine: tuple[Array, Array], ctx: Context) -> Array:
        x, *addend = sources
        return ctx.ops.rectified_affine(x, *affine, *addend)

    def compute_gradient(
        self, params: Arrays, sources: Arrays, output: Output, grad: Any, needs: Sequence[bool], ctx: Context
    ) -> Gradients:
        x, statistics = sources[0], output.saved
        moments = statistics.mean, statistics.variance
        if not self.is_shared(ctx) and not self.use_global_stats:
            dx, dother, (dscale, dbias) = ctx.ops.rectified_batch_norm_grad(
                x, output.feature, grad, params[0], moments, statistics.size, self.epsilon, (needs[0], any(needs[1:]))
            )
            return (dx, *(dother for _ in needs[1:])), (dscale, dbias, None, None)
        dy, sums = ctx.ops.rectified_batch_norm_sums(x, output.feature, grad, *moments, self.epsilon)
        for_source, for_params = self.gradients(params, sources, output, dy, sums, needs, ctx)
        return (*for_source, *(dy if need else None for need in needs[1:])), for_params

    def backward_sizes(self, rows: int) -> list[int]:
        return [float_bytes(rows, self.shape)]  # the gradient where the feature is above 0


@register("layer", kGroupNorm=844)
class GroupNorm(Layer):
    """Group normalisation of (B, C, ...): scale·(x - mean)/√(var + epsilon) + bias for each channel.

    Wu and He, Group Normalization (2018). Mean and biased variance cover all points of the C/groups channels of a group
    in a row. One group is layer normalisation; C groups are instance normalisation. Params: scale and bias, (C,).
    """

    class Conf(Settings):
        """Settings of kGroupNorm."""

        groups: Count = setting(32, "into how many equal groups the channels are divided")
        epsilon: Positive = setting(1e-5, "what is added to the variance; beyond SINGA")

    settings: Conf
    source_count = 1
    cut = Cut(Connection.kOneToOne, by_space=True)
    keeps = Keeps(feature=False)

    def __init__(self, conf: LayerConf, source_shapes: Sequence[Shape], info: RecordInfo | None = None):
        super().__init__(conf, source_shapes, info)
        self.expect_channels()
        channels = self.shape[1]
        self.groups = self.expect_equal_groups("groups", channels=channels)
        self.cut = Cut(Connection.kOneToOne, groups=self.groups, by_space=True)
        self.params = (ParamSpec("scale", (channels,), initial=1.0), ParamSpec("bias", (channels,)))

    def cut_conf(self, columns: Columns) -> LayerConf:
        groups = self.groups * (columns.stop - columns.start) // columns.total
        return self.conf.replace(groupnorm_conf=self.settings.replace(groups=groups))

    def compute_feature(self, params: Arrays, sources: Arrays, ctx: Context) -> Output:
        scale, bias = params
        mean, variance = self._moments(sources[0], ctx)
        centre = self._means(mean)
        inverse = (self._means(variance + (mean - centre) ** 2) + self.settings.epsilon) ** -0.5
        factor = scale * inverse
        y = ctx.ops.row_affine(sources[0], factor, bias - centre * factor)
        return Output(y, saved=(centre, inverse) if ctx.training else None)

    def compute_gradient(
        self, params: Arrays, sources: Arrays, output: Output, grad: Any, needs: Sequence[bool], ctx: Context
    ) -> Gradients:
        (mean, inverse), x, scale = output.saved, sources[0], params[0]
        total, along = ctx.ops.row_sums(x, grad, mean)
        along = along * inverse
        dx = None
        if needs[0]:
            # scale·inverse·dy - inverse·(mean of scale·dy) - inverse·x̂·(mean of scale·dy·x̂), over a group
            points = self._points
            row_total, row_along = self._all_points("gradient", (total, along), ctx)
            slope = inverse * inverse * self._means(scale * row_along) / -points
            shift = inverse * self._means(scale * row_total) / -points - slope * mean
            dx = ctx.ops.row_affine_grad(x, grad, scale * inverse, slope, shift)
        dscale, dbias = (sums.sum(axis=0).astype(scale.dtype) for sums in (along, total))
        return (dx,), (dscale, dbias)

    @property
    def _points(self) -> int:
        """The number of points of a row, other workers' points included."""
        return math.prod((self.region.whole(self.shape) if self.region else self.shape)[2:])

    def _moments(self, x: Array, ctx: Context) -> tuple[Array, Array]:
        """Return mean and variance of each channel of each row, (B, C) float64, over all points."""
        mean, variance = ctx.ops.row_moments(x)
        if self.region is None:
            return mean, variance
        share = math.prod(x.shape[2:]) / self._points
        mean, square = self._all_points("feature", (share * mean, share * (variance + mean * mean)), ctx)
        return mean, ctx.ops.xp.maximum(square - mean * mean, 0)

    def _all_points(self, what: str, arrays: tuple[Array, Array], ctx: Context) -> Sequence[Array]:
        """Add up sums (B, C) of all workers that have other points of the same rows."""
        if self.region is None:
            return arrays
        return ctx.sum_arrays(f"{self.name}.{what}", arrays)

    def _means(self, values: Array) -> Array:
        """Replace each channel's value by the mean over its group of channels, (B, C)."""
        size = values.shape[1] // self.groups
        means = values.reshape(len(values), self.groups, size).sum(axis=2) / size
        return means.repeat(size, axis=1)

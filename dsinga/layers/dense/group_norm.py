"""kGroupNorm: normalisation of each row over groups of channels."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from dsinga.base.registry import register
from dsinga.job import LayerConf
from dsinga.job.component import Settings, setting
from dsinga.job.limits import Count, Positive
from dsinga.layers.interface.context import Columns, Context, RecordInfo
from dsinga.layers.interface.declarations import Connection, Cut, ParamSpec
from dsinga.layers.interface.layer import Array, Arrays, Gradients, Layer, Output, Shape, shape_text


@register("layer", kGroupNorm=844)
class GroupNorm(Layer):
    """Group normalisation of (B, C, ...): scale·(x - mean)/√(var + epsilon) + bias for each channel.

    Wu and He, Group Normalization (2018). Mean and biased variance are those of a row over all points of the C/groups
    channels of a group; sums are float64. One group is layer normalisation over all channels and points, C groups are
    instance normalisation. All phases compute the same, and rows do not depend on each other. Scale and bias are (C,).
    """

    class Conf(Settings):
        """Settings of kGroupNorm."""

        groups: Count = setting(32, "into how many equal groups the channels are divided")
        epsilon: Positive = setting(1e-5, "what is added to the variance; beyond SINGA")

    settings: Conf
    source_count = 1
    cut = Cut(Connection.kOneToOne, by_space=True)

    def __init__(self, conf: LayerConf, source_shapes: Sequence[Shape], info: RecordInfo | None = None):
        super().__init__(conf, source_shapes, info)
        if len(self.shape) < 2:
            raise self.fail(f"takes (batch, channels, ...), but {self.source_name(0)} gives {shape_text(self.shape)}")
        self.groups, channels = self.settings.groups, self.shape[1]
        if channels % self.groups:
            raise self.fail(
                f"cannot divide {channels} channels into {self.groups} equal groups; give a number that divides "
                f"{channels}",
                self.settings,
                "groups",
            )
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
        """The number of points of a row, those that other workers have included."""
        return math.prod((self.region.whole(self.shape) if self.region else self.shape)[2:])

    def _moments(self, x: Array, ctx: Context) -> tuple[Array, Array]:
        """Return mean and variance of each channel of each row, (B, C) float64, over all points of the row."""
        mean, variance = ctx.ops.row_moments(x)
        if self.region is None:
            return mean, variance
        share = math.prod(x.shape[2:]) / self._points
        mean, square = self._all_points("feature", (share * mean, share * (variance + mean * mean)), ctx)
        return mean, ctx.ops.xp.maximum(square - mean * mean, 0)

    def _all_points(self, what: str, arrays: tuple[Array, Array], ctx: Context) -> Sequence[Array]:
        """Return the sums over all regions of two arrays (B, C)."""
        if self.region is None:
            return arrays
        return ctx.sum_arrays(f"{self.name}.{what}", arrays)

    def _means(self, values: Array) -> Array:
        """Return (B, C) values with the mean of its group in place of each."""
        size = values.shape[1] // self.groups
        means = values.reshape(len(values), self.groups, size).sum(axis=2) / size
        return means.repeat(size, axis=1)

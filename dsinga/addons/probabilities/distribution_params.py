"""The layer kDistributionParams, which makes parameters of a distribution of any numbers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import numpy as np

from dsinga.addons.probabilities.distributions import DISTRIBUTIONS
from dsinga.base.registry import register
from dsinga.job import LayerConf
from dsinga.job.component import Settings, setting
from dsinga.job.enums import DistributionName
from dsinga.job.limits import Range
from dsinga.layers.interface.context import Context, RecordInfo
from dsinga.layers.interface.declarations import Cut, SourceKind
from dsinga.layers.interface.layer import Array, Arrays, Gradients, Layer, Output, Shape
from dsinga.layers.interface.region import Reach

LEAST = 1e-6  # of a parameter that is above 0


@register("layer", kDistributionParams=833)
class DistributionParams(Layer):
    """Parameters of a distribution: those that are above 0 are log(1 + exp(x)) + 1e-6, the others x.

    The source has K numbers for each number to predict next to each other along ``axis``: (B, n·K), fields
    (B, C·K, *space), or, with axis 2, sequences (B, T, n·K). A kDistributionLoss takes the feature.
    """

    class Conf(Settings):
        """Settings of kDistributionParams."""

        distribution: DistributionName = setting(DistributionName.normal, "the distribution")
        axis: Annotated[int, Range(1, 2)] = setting(1, "the axis of the parameters: 1, or 2 of sequences")

    settings: Conf
    source_kind = SourceKind.kAnyShape
    source_count = 1
    cut = Cut(gathered_because="has the parameters of a number in neighbouring features", by_space=True)

    def __init__(self, conf: LayerConf, source_shapes: Sequence[Shape], info: RecordInfo | None = None):
        super().__init__(conf, source_shapes, info)
        positive, axis = DISTRIBUTIONS[self.settings.distribution].positive, self.settings.axis
        size = self.shape[axis] if axis < len(self.shape) else 0
        if not size or size % len(positive):
            name, count = self.settings.distribution.name, len(positive)
            raise self.fail(
                f"makes {count} parameters of each number of a {name} distribution, but {self.source_name(0)} gives "
                f"{size} numbers along axis {axis}; give the layer below {count} outputs for each number to predict"
            )
        self.positive = np.array(positive * (size // len(positive)))

    def gathers_points_because(self) -> str:
        return "has its parameters along an axis of points" if self.settings.axis > 1 else ""

    def reach(self) -> tuple[Reach, ...] | None:
        return self.same_points() if self.settings.axis == 1 else None

    def _mask(self, x: Array, ctx: Context) -> Array:
        """Return which numbers become parameters above 0, to broadcast with x."""
        return ctx.ops.asarray(self.positive).reshape(-1, *[1] * (x.ndim - 1 - self.settings.axis))

    def compute_feature(self, params: Arrays, sources: Arrays, ctx: Context) -> Output:
        x, xp = sources[0], ctx.ops.xp
        above = xp.maximum(x, 0) + xp.log1p(xp.exp(-xp.abs(x))) + x.dtype.type(LEAST)
        return Output(xp.where(self._mask(x, ctx), above, x))

    def compute_gradient(
        self, params: Arrays, sources: Arrays, output: Output, grad: Array, needs: Sequence[bool], ctx: Context
    ) -> Gradients:
        if not needs[0]:
            return (None,), ()
        x = sources[0]
        return (ctx.ops.xp.where(self._mask(x, ctx), grad * ctx.ops.sigmoid(x), grad),), ()

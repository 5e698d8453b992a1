"""kUpsampling: enlarges images and volumes by whole factors, with repeated or linearly interpolated points."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from dsinga.base.registry import register
from dsinga.job import LayerConf, UpsamplingMethod
from dsinga.job.component import Settings, setting
from dsinga.job.limits import Pixels
from dsinga.layers.images.sliding import by_axis, embed, points_shape
from dsinga.layers.interface.context import Context, RecordInfo
from dsinga.layers.interface.declarations import Bfloat16, Connection, Cut
from dsinga.layers.interface.layer import FLOAT_BYTES, Array, Arrays, Gradients, Layer, Output, Shape
from dsinga.layers.interface.region import FILL, Reach, Region, along
from dsinga.ops import Ops


@register("layer", kUpsampling=842)
class Upsampling(Layer):
    """Images (B, C, H, W) or volumes (B, C, D, H, W) with ``factor`` times as many points along each axis.

    kNearest repeats each point; kLinear interpolates between the centres of neighbouring points, and repeats the edge
    beyond them (PyTorch's ``align_corners=False``, and Keras's).
    """

    class Conf(Settings):
        """Settings of kUpsampling."""

        factor: list[Pixels] = setting([2], "how many points become of one, for all axes after the channels or each")
        method: UpsamplingMethod = setting(UpsamplingMethod.kNearest, "whether points are repeated or interpolated")

    settings: Conf
    source_count = 1
    cut = Cut(Connection.kOneToOne, by_space=True)
    bf16 = Bfloat16.kFeatures
    cropped: tuple[slice, ...] | None = None  # the points of the result that a part of the layer computes

    def __init__(self, conf: LayerConf, source_shapes: Sequence[Shape], info: RecordInfo | None = None):
        super().__init__(conf, source_shapes, info)
        sizes, self.factors = points_shape(self), by_axis(self, "factor", 2)
        self.is_linear = self.settings.method is UpsamplingMethod.kLinear
        larger = (size * factor for size, factor in zip(sizes, self.factors, strict=True))
        self.shape = self.larger = (*self.source_shapes[0][:2], *larger)

    def reach(self) -> tuple[Reach, ...]:
        """Return which source points a point needs, for cuts by space: one, or for kLinear both neighbours."""
        if not self.is_linear:
            return tuple(Reach(1, factor) for factor in self.factors)
        return tuple(Reach(2, 2 * factor, factor - 1, factor + 1, "edge") for factor in self.factors)

    def compute_feature(self, params: Arrays, sources: Arrays, ctx: Context) -> Output:
        x = sources[0]
        if self.is_linear:
            y = ctx.ops.to_float32(x)
            for axis, factor in enumerate(self.factors):
                y = interpolate(y, axis + 2, factor, ctx.ops)
            return Output(self._crop(ctx.ops.cast_like(y, x)))
        y = ctx.ops.empty((len(x), *self.larger[1:]), x.dtype)
        for copy in self._copies():
            y[copy] = x
        return Output(self._crop(y))

    def _crop(self, y: Array) -> Array:
        return y if self.cropped is None else y[self.cropped]

    def compute_gradient(
        self, params: Arrays, sources: Arrays, output: Output, grad: Any, needs: Sequence[bool], ctx: Context
    ) -> Gradients:
        if not needs[0]:
            return (None,), ()
        dx = ctx.ops.to_float32(grad)
        if self.cropped is not None:
            dx = embed(dx, self.cropped, self.larger, ctx.ops)
        if self.is_linear:
            for axis in reversed(range(len(self.factors))):
                dx = interpolate_grad(dx, axis + 2, self.factors[axis], ctx.ops)
        else:
            copies, grad = self._copies(), dx
            dx = ctx.ops.empty(sources[0].shape, grad.dtype)
            dx[...] = grad[next(copies)]
            for copy in copies:
                dx += grad[copy]
        return (ctx.ops.cast_like(dx, sources[0]),), ()

    def source_points(self, axis: int, start: int, stop: int) -> np.ndarray:
        points = super().source_points(axis, start, stop)
        return points[points != FILL]  # at the edges of the field a part does what the whole layer does

    def region_part(self, region: Region, source_shapes: Sequence[Shape]) -> Layer:
        part = type(self)(self.conf, source_shapes)
        index = [slice(None)] * len(self.shape)
        for axis, (start, stop, _) in zip(region.axes, region.ranges, strict=True):
            lead = self.source_points(axis, start, stop)[0] * self.factors[axis - 2]
            index[axis] = slice(start - lead, stop - lead)
        part.shape = region.part(self.shape)
        part.cropped = None if part.shape == part.larger else tuple(index)
        return part

    def _copies(self) -> Iterator[tuple[slice, ...]]:
        """Yield, for each copy of the image in the larger image, its index."""
        for offsets in itertools.product(*map(range, self.factors)):
            steps = (slice(offset, None, factor) for offset, factor in zip(offsets, self.factors, strict=True))
            yield (slice(None), slice(None), *steps)

    def backward_sizes(self, rows: int) -> list[int]:
        """Return the bytes of the backward pass's scratch array, for memory estimates."""
        if not self.is_linear:
            return []
        return [FLOAT_BYTES * rows * math.prod(self.shape[1:]) // self.factors[-1]]


def interpolate(x: Array, axis: int, factor: int, ops: Ops) -> Array:
    """Enlarge an array ``factor`` times along an axis by linear interpolation between the centres of points."""
    y = ops.empty((*x.shape[:axis], x.shape[axis] * factor, *x.shape[axis + 1 :]), x.dtype)
    products: dict[float, list[Array]] = {}  # of x, by the share of the neighbour: two phases have the same
    for phase in range(factor):
        share, *pairs = neighbours_of(phase, factor)
        if share not in products:
            factors = 1 - share, share
            products[share] = [ops.xp.multiply(x, part, out=ops.empty(x.shape, x.dtype)) for part in factors]
        (own, others), target = products[share], y[along(axis, slice(phase, None, factor))]
        for points, neighbours in pairs:
            ops.xp.add(own[along(axis, points)], others[along(axis, neighbours)], out=target[along(axis, points)])
    return y


def interpolate_grad(dy: Array, axis: int, factor: int, ops: Ops) -> Array:
    """Return the gradient of :func:`interpolate` for x."""
    dx = ops.empty((*dy.shape[:axis], dy.shape[axis] // factor, *dy.shape[axis + 1 :]), dy.dtype)
    dx[...] = 0
    for phase in range(factor):
        share, *pairs = neighbours_of(phase, factor)
        part = dy[along(axis, slice(phase, None, factor))]
        dx += (1 - share) * part
        if share:
            part = share * part
            for points, neighbours in pairs:
                target = dx[along(axis, neighbours)]
                target += part[along(axis, points)]
    return dx


def neighbours_of(phase: int, factor: int) -> tuple[float, tuple[slice, slice], tuple[slice, slice]]:
    """Return the neighbour's weight in the ``phase``-th of ``factor`` points that replace one point, and two pairs.

    The first pair is the points with a neighbour on that side, and the neighbours. The second is the point at the edge,
    its own neighbour.
    """
    offset = (phase + 0.5) / factor - 0.5  # of the new point from the centre of the old one
    if offset < 0:
        return -offset, (slice(1, None), slice(0, -1)), (slice(0, 1), slice(0, 1))
    return offset, (slice(0, -1), slice(1, None)), (slice(-1, None), slice(-1, None))

"""kResize: scales images and volumes to any size, from the nearest points or by interpolation."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from typing import Any

import numpy as np

from dsinga.base.registry import register
from dsinga.job import LayerConf
from dsinga.job.component import Settings, setting
from dsinga.job.limits import Pixels, Positive
from dsinga.layers.images.sliding import by_axis, points_shape
from dsinga.layers.interface.context import Context, RecordInfo
from dsinga.layers.interface.declarations import Connection, Cut
from dsinga.layers.interface.layer import Arrays, Gradients, Layer, Output, Shape
from dsinga.layers.interface.region import Region
from dsinga.layers.interface.taps import Taps, combine, combine_grad, taps_of_region


class ResizeMethod(Enum):
    """How kResize computes points: the nearest point, or linear or cubic interpolation along each axis."""

    kNearest = 0
    kLinear = 1
    kCubic = 2


class Coordinates(Enum):
    """How point j of the result maps to a place among the H points of the source, by ONNX's names; s is the scale.

    - kHalfPixel: (j + 1/2)/s - 1/2.
    - kAsymmetric: j/s.
    - kAlignCorners: j·(H - 1)/(s·H - 1).
    - kPytorchHalfPixel: as kHalfPixel, but 0 if the result has one point.
    - kHalfPixelSymmetric: as kHalfPixel, about the centre of both.
    """

    kHalfPixel = 0
    kAsymmetric = 1
    kAlignCorners = 2
    kPytorchHalfPixel = 3
    kHalfPixelSymmetric = 4


class Rounding(Enum):
    """How to round to the nearest source point; the first two differ in the middle between two points."""

    kPreferFloor = 0
    kPreferCeil = 1
    kFloor = 2
    kCeil = 3


ROUND: Mapping[Rounding, Callable[[np.ndarray], np.ndarray]] = {
    Rounding.kPreferFloor: lambda places: np.ceil(places - 0.5),
    Rounding.kPreferCeil: lambda places: np.floor(places + 0.5),
    Rounding.kFloor: np.floor,
    Rounding.kCeil: np.ceil,
}


@register("layer", kResize=845)
class Resize(Layer):
    """Images (B, C, H, W) or volumes (B, C, D, H, W) of another ``size``, or ``scale`` times as large, rounded down.

    Points outside the source have the value of its edge. kCubic is by Keys, Cubic Convolution Interpolation (1981).
    With ``antialias`` a point of a smaller result is a weighted mean of all source points that it covers, as in Pillow.
    """

    class Conf(Settings):
        """Settings of kResize; sizes and scales are for all axes after the channels, or one for each."""

        size: list[Pixels] = setting([], "how many points the result has; by default the scale says it")
        scale: list[Positive] = setting([], "how many points become of one; by default the quotient of both sizes")
        method: ResizeMethod = setting(ResizeMethod.kLinear, "how a point is computed from the source points around it")
        coordinates: Coordinates = setting(
            Coordinates.kHalfPixel, "where the points of the result lie in the source, by ONNX's names"
        )
        rounding: Rounding = setting(Rounding.kPreferFloor, "which point kNearest takes")
        cubic_coeff: float = setting(-0.75, "the coefficient a of kCubic, -0.75 in PyTorch, -0.5 in Pillow and Keras")
        antialias: bool = setting(False, "whether a point of a smaller result is a mean of all points that it covers")
        exclude_outside: bool = setting(
            False, "whether points outside the source have no weight; by default they equal the edge"
        )

    settings: Conf
    source_count = 1
    cut = Cut(Connection.kOneToOne, by_space=True)

    def __init__(self, conf: LayerConf, source_shapes: Sequence[Shape], info: RecordInfo | None = None):
        super().__init__(conf, source_shapes, info)
        lengths, scales = points_shape(self), by_axis(self, "scale", 0.0)
        scaled = (math.floor(length * scale) for length, scale in zip(lengths, scales, strict=True))
        counts = by_axis(self, "size", 0) if self.settings.size else tuple(scaled)
        if min(counts) < 1:
            raise self.fail("leaves no point along an axis; give resize_conf a size, or a larger scale", field="scale")
        self.taps = tuple(map(self._taps, lengths, counts, scales))
        self.shape = (*self.source_shapes[0][:2], *counts)

    def _taps(self, length: int, count: int, scale: float) -> Taps:
        """Return the weights of source points along an axis, from ``length`` to ``count`` points."""
        settings, places = self.settings, self._places(length, count, scale)
        if settings.method is ResizeMethod.kNearest:
            points = np.clip(ROUND[settings.rounding](places), 0, length - 1).astype(np.int64)[:, None]
            return Taps(points, np.ones(points.shape), length)
        spread = max(1.0, 1 / scale if scale else length / count) if settings.antialias else 1.0
        reach = math.ceil(spread * (2 if settings.method is ResizeMethod.kCubic else 1))
        points = np.floor(places)[:, None] + np.arange(1 - reach, reach + 1)
        weights = self._weights(abs(points - places[:, None]) / spread)
        if settings.exclude_outside:
            weights = weights * ((points >= 0) & (points < length))
        if settings.exclude_outside or settings.antialias:
            sums = weights.sum(axis=1, keepdims=True)
            weights = weights / np.where(sums == 0, 1, sums)
        return Taps.of(np.clip(points, 0, length - 1).astype(np.int64), weights, length)

    def _places(self, length: int, count: int, scale: float) -> np.ndarray:
        """Return the place of each of ``count`` points of the result among ``length`` source points, as fractions."""
        numbers, mode, width = np.arange(count), self.settings.coordinates, scale * length or count

        def unscaled(places: np.ndarray) -> np.ndarray:
            return places / scale if scale else places * length / count

        if mode is Coordinates.kAlignCorners:
            return numbers * (length - 1) / (width - 1) if width != 1 else numbers * 0.0
        if mode is Coordinates.kAsymmetric:
            return unscaled(numbers)
        if mode is Coordinates.kPytorchHalfPixel and count == 1:
            return np.zeros(1)
        offset = length / 2 * (1 - count / width) if mode is Coordinates.kHalfPixelSymmetric else 0.0
        return unscaled(numbers + 0.5) + (offset - 0.5)

    def _weights(self, distance: np.ndarray) -> np.ndarray:
        """Return interpolation weights of source points by their distance from a place."""
        if self.settings.method is ResizeMethod.kLinear:
            return np.maximum(1 - distance, 0)
        a = self.settings.cubic_coeff
        near = ((a + 2) * distance - (a + 3)) * distance**2 + 1
        far = ((a * distance - 5 * a) * distance + 8 * a) * distance - 4 * a
        return np.where(distance <= 1, near, np.where(distance < 2, far, 0))

    def source_points(self, axis: int, start: int, stop: int) -> np.ndarray:
        return self.taps[axis - 2].needed(start, stop)

    def region_part(self, region: Region, source_shapes: Sequence[Shape]) -> Layer:
        part = self.copy_for_region(region, source_shapes)
        part.taps = taps_of_region(self.taps, region)
        return part

    def compute_feature(self, params: Arrays, sources: Arrays, ctx: Context) -> Output:
        return Output(combine(sources[0], self.taps, False, ctx.ops))

    def compute_gradient(
        self, params: Arrays, sources: Arrays, output: Output, grad: Any, needs: Sequence[bool], ctx: Context
    ) -> Gradients:
        return (combine_grad(sources[0], grad, self.taps, False, ctx.ops) if needs[0] else None,), ()

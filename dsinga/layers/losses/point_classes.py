"""Base of losses and metrics that compare class scores at each point of a field with labels by point."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from dsinga.job import LayerConf
from dsinga.layers.interface.checks import shape_text
from dsinga.layers.interface.context import Context, RecordInfo
from dsinga.layers.interface.declarations import Cut, Labels
from dsinga.layers.interface.layer import Array, Layer, Shape
from dsinga.layers.interface.region import Region
from dsinga.layers.losses.field_targets import place_of
from dsinga.layers.losses.pair_loss import WEIGHTS, check_weights, weights_of
from dsinga.layers.records.label import required_labels
from dsinga.ops.types import is_on_device

WEIGHTED = "whether the last channel of the labels has a weight for each point"


class PointLabels(NamedTuple):
    """The labels of P points: classes (B, P) int64, 0 if masked, and float32 weights (B, P).

    ``weights`` are 0 at masked points, None if each point counts once, and on devices NaN for invalid labels.
    """

    classes: Any
    weights: Any


class PointClasses(Layer):
    """Base of layers that compare scores (B, K, *space) with the class of each point.

    Labels are (B, *space) or (B, 1, *space), integers or whole numbers in float32. Points with -1 or NaN are masked.
    With ``weighted`` labels are (B, 2, *space): classes, then weights. Scores of one channel are for the classes 0 and
    1.
    """

    settings: Any
    source_count = 2
    labels = Labels(source=1, floats=True, per_point=True)
    cut = Cut(gathered_because="compares all classes of a point", by_space=True)

    @classmethod
    def label_example(cls, settings: Mapping[str, Any], shape: Shape, known: Shape | None = None) -> np.ndarray:
        if settings.get("weighted"):
            return np.zeros((1, 2, *shape[1:]), np.float32)
        return np.zeros((1, *shape[1:]), np.int64)

    def __init__(self, conf: LayerConf, source_shapes: Sequence[Shape], info: RecordInfo | None = None):
        super().__init__(conf, source_shapes, info)
        takes = "scores of classes for each point, (batch, classes, ...) with one to three axes of space"
        self.expect_axes((3, 4, 5), takes)
        self.channels, self.space = self.shape[1], self.shape[2:]
        self.count = max(2, self.channels)
        self.points = math.prod(self.space)
        if self.optional_sources:
            check_weights(self, WEIGHTS, self.whole_space)
        if len(self.source_shapes[1]) > 1:  # (B,) may stand for labels that are not known before the first batch
            self._check(self.source_shapes[1])

    @property
    def field_shape(self) -> Shape:
        return self.source_shapes[0]

    def takes_points(self, source: int) -> bool:
        return source == 0

    @property
    def whole_space(self) -> Shape:
        """The shape of the whole field, other workers' points included."""
        return self.space if self.region is None else self.region.whole((0, 0, *self.space))[2:]

    def region_part(self, region: Region, source_shapes: Sequence[Shape]) -> Layer:
        part = self.copy_for_region(region, source_shapes)
        part.space = part.field_shape[2:]
        part.points = math.prod(part.space)
        return part

    def _check(self, labels: Shape) -> None:
        """Raise UserError unless labels have a class, and optionally a weight, for each point."""
        channels, space = 1 + self.settings.weighted, self.whole_space
        for points in (space, self.space):  # a part may get the labels of its points alone
            if labels[1:] == (channels, *points) or (channels == 1 and labels[1:] == points):
                return
        assert self.labels.source is not None
        raise self.fail(
            f"takes a class for each of {shape_text(space)} points{', and its weight' * self.settings.weighted}, but "
            f"the labels of {self.source_name(self.labels.source)} are {shape_text(labels[1:])} a row; give labels "
            f"{shape_text(('batch', channels, *space))}",  # type: ignore[arg-type]
            field="srclayers",
        )

    def point_labels(self, labels: Any, ctx: Context) -> PointLabels:
        """Convert labels to a class and weight for each point."""
        labels = required_labels(self, labels)
        self._check(labels.shape)
        given = labels.reshape(len(labels), 1 + self.settings.weighted, *labels.shape[-len(self.space) :])
        if self.region is not None:
            given = self.region.take(given)
        given = given.reshape(len(labels), 1 + self.settings.weighted, self.points)
        codes = given[:, 0]
        if is_on_device(given):
            return self._marked(codes, given[:, 1] if self.settings.weighted else None, ctx)
        lowest, highest = (codes.min(), codes.max()) if codes.size else (0, 0)
        if np.isnan(lowest):
            codes = np.where(np.isnan(codes), -1, codes)
            lowest, highest = codes.min(), codes.max()
        if lowest < -1 or highest >= self.count or (codes.dtype.kind == "f" and (np.rint(codes) != codes).any()):
            self._refuse(codes, ctx)
        classes = codes.astype(np.int64, copy=False)
        if lowest < 0:
            classes = np.maximum(classes, 0)
        if self.settings.weighted:
            return PointLabels(classes, np.where(codes >= 0, given[:, 1], 0).astype(np.float32, copy=False))
        return PointLabels(classes, (codes >= 0).astype(np.float32) if lowest < 0 else None)

    def _marked(self, codes: Array, weights: Array | None, ctx: Context) -> PointLabels:
        """Return labels on the device from codes (B, P) and weights; the weight of an invalid label becomes NaN."""
        xp, zero = ctx.ops.xp, codes.dtype.type(0)
        masked = (codes == -1) | (codes != codes)
        known = xp.where(masked, zero, codes)
        wrong = (known < 0) | (known >= self.count) | (known != known.astype(np.int64))
        counted = xp.where(masked, np.float32(0), np.float32(1) if weights is None else weights.astype(np.float32))
        weights = xp.where(wrong, np.float32(math.nan), counted)
        return PointLabels(xp.where(wrong, zero, known).astype(np.int64), weights)

    def _refuse(self, codes: np.ndarray, ctx: Context) -> None:
        wrong = (codes < -1) | (codes >= self.count) | (codes != np.rint(codes))
        row, point = (int(index) for index in np.argwhere(wrong)[0])
        place = place_of(self, point, self.space)
        raise self.fail(
            f"label {codes[row, point]:g} in row {ctx.rows.start + row} of the batch at point {place} is none of "
            f"its {self.count} classes (0 to {self.count - 1}, or -1 and NaN for masked points); give the layer "
            "below as many channels as there are classes, or correct the labels"
        )

    def placed(self, labels: PointLabels, sources: Sequence[Any], ctx: Context) -> tuple[Array, Array | None]:
        """Return classes and point weights as backend arrays; sample weights multiply the point weights."""
        ops, given = ctx.ops, weights_of(sources, WEIGHTS, ctx.ops)
        weights = None if labels.weights is None else ops.asarray(labels.weights)
        if given is not None:
            by_point = given[:, None] if given.ndim == 1 else self._of_points(given)
            of_points = ops.xp.broadcast_to(by_point, labels.classes.shape)
            weights = of_points if weights is None else weights * of_points
        return ops.asarray(labels.classes), weights

    def _of_points(self, weights: Array) -> Array:
        """Cut weights (B, points) of the whole field down to this worker's points, (B, P)."""
        if self.region is None:
            return weights
        taken = self.region.take(weights.reshape(len(weights), 1, *self.whole_space))
        return taken.reshape(len(weights), self.points)

    def by_class(self, x: Array) -> Array:
        """Return (B, K, *space) as (B, K, points): a view of an array that is dense in memory."""
        return x.reshape(*x.shape[:2], self.points)

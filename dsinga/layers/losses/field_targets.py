"""Reads targets that are fields, with masked points, point weights and channel units, for losses and metrics.

A target is (B, C, *space), float32. With ``weighted`` it has one more channel, the last, with a weight for each point.

The loss of a field is Σ w·l·scale / B over rows, channels and points; with scale 1/(C·points) the mean over points.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from dsinga.layers.interface.checks import shape_text
from dsinga.layers.interface.context import Context
from dsinga.layers.interface.layer import Array, Layer, Shape, to_matrix
from dsinga.ops import Ops

MASKED = "whether points with NaN in the target are left out"
WEIGHTED = "whether the last channel of the target has a weight for each point"
STD = "what differences are divided by first: a number for each channel of the target, or one for all"


class FieldTargets:
    """Reads a target (B, C, *space) for a loss or metric: differences, masks and weights of its points.

    Args:
        layer: layer of the loss or metric; its first source gives predictions, (B, C, *space) or as many numbers.
        target: target's shape, with one more channel if ``weighted``.
        masked: whether NaN points are left out.
        weighted: whether the last channel has weights.
        std: number for each channel, or for all; none for differences in the target's units.
        count: how many numbers the prediction has for each number of the target.

    Raises:
        UserError: target and prediction have different points, or ``std`` has a wrong number of channels.
    """

    def __init__(
        self, layer: Layer, target: Shape, masked: bool, weighted: bool, std: Sequence[float] = (), count: int = 1
    ):
        self.layer, self.masked, self.weighted = layer, masked, weighted
        prediction = layer.source_shapes[0]
        given = target[1] if len(target) > 1 else 1
        self.channels, self.points = given - weighted, math.prod(target[2:])
        self.size = self.channels * self.points
        if prediction[0] != target[0] or math.prod(prediction[1:]) != self.size * count:
            of_weights = ", of which the last has weights" if weighted else ""
            numbers = "as many rows, channels and points"
            if count > 1:
                numbers = f"as many rows, and the prediction {count} numbers for each of the target"
            raise layer.fail(
                f"compares {layer.source_name(0)}, {shape_text(prediction)}, with {layer.source_name(1)}, "
                f"{shape_text(target)}{of_weights}; give both {numbers}",
                field="srclayers",
            )
        if std:
            text = f"the target has {self.channels} channels; give one for each, or one"
            layer.expect_numbers("std", (1, self.channels), text)
        self.std = np.broadcast_to(np.array(std, np.float64), (self.channels,)) if std else None

    def difference(self, prediction: Array, target: Array, ops: Ops) -> Array:
        """Return (prediction - target) / std as (B, C, points), 0 at masked points, as a new array."""
        values = self.values(target, ops)
        difference = self.fields(prediction, ops) - values
        if self.masked:
            difference[ops.xp.isnan(values)] = 0
        return self.divide(difference, ops)

    def fields(self, x: Array, ops: Ops) -> Array:
        """Return predictions or differences as (B, C, points), without a copy if possible."""
        return to_matrix(x, ops).reshape(x.shape[0], self.channels, self.points)

    def values(self, target: Array, ops: Ops) -> Array:
        """Return the target without its weights, (B, C, points)."""
        return self._channels(target, ops)[:, : self.channels]

    def weights(self, target: Array, ops: Ops) -> Array | None:
        """Return the point weights, (B, 1, points), or None."""
        return self._channels(target, ops)[:, self.channels :] if self.weighted else None

    def _channels(self, target: Array, ops: Ops) -> Array:
        return to_matrix(target, ops).reshape(target.shape[0], self.channels + self.weighted, self.points)

    def divide(self, fields: Array, ops: Ops) -> Array:
        """Divide (B, C, points) by each channel's deviation, in place, and return it."""
        if self.std is not None:
            fields /= ops.asarray(self.std.astype(fields.dtype))[:, None]
        return fields

    def check(self, target: Array, ctx: Context) -> None:
        """Raise UserError, with row, channel and point, for the first infinity of the target, or NaN unless masked."""
        self.check_values(ctx.ops.to_numpy(self.values(target, ctx.ops)), target.shape[2:], ctx)

    def check_values(self, values: np.ndarray, space: Shape, ctx: Context) -> None:
        """Check values (B, C, points) in host memory as :meth:`check`; the points have the shape ``space``."""
        wrong = np.isinf(values) if self.masked else ~np.isfinite(values)
        if not wrong.any():
            return
        row, channel, point = (int(index) for index in np.argwhere(wrong)[0])
        value = "NaN" if np.isnan(values[row, channel, point]) else "infinite"
        leave_out = "give the loss masked=True (in a job masked: true) to leave out points that are NaN, or "
        remedy = "" if self.masked else leave_out
        where = f" at point {place_of(self.layer, point, space)}" if space else ""
        raise self.layer.fail(
            f"the target by {self.layer.source_name(1)} is {value} in row {ctx.rows.start + row} of the batch, channel "
            f"{channel}{where}; {remedy}put a number in its place"
        )


def place_of(layer: Layer, point: int, space: Shape) -> tuple[int, ...]:
    """Return a point's place in the whole field, for errors of a worker that has a part of shape ``space``."""
    place = [int(index) for index in np.unravel_index(point, space)]
    if layer.region is not None:
        for axis, (start, *_) in zip(layer.region.axes, layer.region.ranges, strict=True):
            place[axis - 2] += start
    return tuple(place)


def field_targets(layer: Layer) -> FieldTargets | None:
    """Return the reader of a loss's target; None if its settings do not make the target a field."""
    settings: Any = layer.settings
    masked, weighted, std = (getattr(settings, name, None) for name in ("masked", "weighted", "std"))
    shapes = layer.source_shapes
    has_weights = len(shapes[1]) == 2 and shapes[1][1] > 1 and shapes[2:] == shapes[1:2]  # (B, n), which masks them
    if not (weighted or std) and (not masked or has_weights):
        return None
    return FieldTargets(layer, shapes[1], bool(masked), bool(weighted), std or ())

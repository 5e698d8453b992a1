"""One dimension of a window: where windows begin, what they read, and what lies beyond the ends of the data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from dsinga.base.errors import UserError
from dsinga.data.fields.definition import WindowDefinition

LONGITUDES = ("lon", "longitude")


@dataclass(frozen=True)
class Axis:
    """The windows along one dimension.

    Attributes:
        name: the dimension.
        length: points of the data.
        size: points of a window.
        stride: points from the begin of a window to that of the next one.
        before: points of context before a window.
        after: points of context after a window.
        lead: offset of the target in points.
        edge: what lies beyond the data, one of ``EDGES``.
        has_targets: whether targets are read.
        starts: the first point of each window, without its context, increasing.
        input_part: the points [start, stop) of a window and its context that are read; None for all.
        target_part: those of a target.
    """

    name: str
    length: int
    size: int
    stride: int
    before: int = 0
    after: int = 0
    lead: int = 0
    edge: str = "inside"
    has_targets: bool = True
    starts: np.ndarray = field(default_factory=lambda: np.zeros(1, np.int64))
    input_part: tuple[int, int] | None = None
    target_part: tuple[int, int] | None = None

    @property
    def input_size(self) -> int:
        """Points of a window, with its context, that inputs read."""
        start, stop = self.input_part or (0, self.before + self.size + self.after)
        return stop - start

    @property
    def target_size(self) -> int:
        """Points of a window that targets read."""
        start, stop = self.target_part or (0, self.size)
        return stop - start

    def offset(self, is_target: bool) -> int:
        """Return how far the first point that the targets, or the inputs, of a window read lies from its start."""
        part = self.target_part if is_target else self.input_part
        return (self.lead if is_target else -self.before) + (part[0] if part else 0)

    def input_range(self, first: int, last: int) -> tuple[int, int]:
        """Return the points [low, high) that the inputs of windows number ``first`` to ``last`` read."""
        offset = self.offset(is_target=False)
        return int(self.starts[first]) + offset, int(self.starts[last]) + offset + self.input_size

    def target_range(self, first: int, last: int) -> tuple[int, int]:
        """Return the points [low, high) that the targets of windows number ``first`` to ``last`` read."""
        offset = self.offset(is_target=True)
        return int(self.starts[first]) + offset, int(self.starts[last]) + offset + self.target_size

    def positions(self, low: int, high: int) -> tuple[np.ndarray, np.ndarray]:
        """Return the point of the data for each of ``low`` to ``high``, and whether it lies beyond the data.

        Points beyond are those that the edge takes in their place, as numpy.pad has them; for "zero" any.
        """
        points = np.arange(low, high)
        outside = (points < 0) | (points >= self.length)
        if self.edge == "periodic":
            return points % self.length, outside
        if self.edge == "reflect" and self.length > 1:
            period = 2 * (self.length - 1)
            points = points % period
            return np.where(points < self.length, points, period - points), outside
        return np.clip(points, 0, self.length - 1), outside

    def left_out(self) -> tuple[int, int]:
        """Return the points at the begin and at the end of the data that fill no window."""
        if self.edge == "periodic":
            return 0, 0
        before, after = (self.before, self.after) if self.edge == "inside" else (0, 0)
        low, high = int(self.starts[0]) - before, int(self.starts[-1]) + self.size + after
        if self.has_targets:
            low, high = min(low, self.target_range(0, 0)[0]), max(high, self.target_range(-1, -1)[1])
        return max(low, 0), max(self.length - high, 0)


def make_axis(name: str, length: int, definition: WindowDefinition, has_targets: bool, starts: Any = None) -> Axis:
    """Return the windows along a dimension of the data; ``starts`` takes the place of those at the stride.

    Raises UserError where not even one window fits.
    """
    size = definition.input_dims.get(name, -1)
    size = length if size == -1 else size
    before, after = definition.context.get(name, (0, 0))
    lead, edge = definition.lead.get(name, 0), definition.edge(name)
    stride = size - definition.input_overlap.get(name, 0)
    if stride < 1:
        raise UserError(
            f"input_overlap of {name!r} is {size - stride}, but a window has {size} points; give less, such as "
            f"{size - 1}"
        )
    if size > length:
        raise UserError(
            f"windows have {size} points of {name!r}, but the data {length}; give input_dims of at most that"
        )
    if has_targets and abs(lead) >= length:
        raise UserError(
            f"lead of {name!r} is {lead} points, which lies beyond the {length} points of the data; give a shorter one"
        )
    if edge == "periodic":
        first, stop = 0, length
    else:
        inside_before, inside_after = (before, after) if edge == "inside" else (0, 0)
        first = max(inside_before, -lead if has_targets else 0)
        stop = length - size - max(inside_after, lead if has_targets else 0) + 1
    if starts is None:
        starts = np.arange(first, stop, stride)
    starts = np.asarray(starts, np.int64)
    if not len(starts) or starts[0] < first or starts[-1] >= stop:
        parts = {"of its own": size, "of context": before + after if edge == "inside" else 0, "of lead": abs(lead)}
        points = " + ".join(f"{number} {what}" for what, number in parts.items() if number)
        remedy = "give fewer, or edges other than 'inside'" if parts["of context"] else "give fewer"
        raise UserError(
            f"no window fits along {name!r}: it takes {sum(parts.values())} points ({points}), and the data have "
            f"{length}; {remedy}"
        )
    return Axis(name, length, size, stride, before, after, lead, edge, has_targets, starts)


def left_out_sentences(axes: Mapping[str, Axis], labels: Mapping[str, Any]) -> list[str]:
    """Return a sentence for each dimension that has points which fill no window.

    ``labels`` has the coordinates of a dimension, where there are any.
    """
    sentences = []
    for name, axis in axes.items():
        for points, which, place in zip(axis.left_out(), ("first", "last"), (0, -1), strict=True):
            if points:
                ends = (0, points - 1) if place == 0 else (axis.length - points, axis.length - 1)
                words = " to ".join(dict.fromkeys(_label(labels.get(name), end) for end in ends))
                sentences.append(
                    f"the {which} {points} of {axis.length} points of {name!r} ({words}) fill no window: windows have "
                    f"{axis.input_size} points, a new one every {axis.stride}"
                )
    return sentences


def uneven_sentences(axes: Mapping[str, Axis], labels: Mapping[str, Any]) -> list[str]:
    """Return a sentence for each dimension of dates with gaps over which windows reach.

    Months are no gaps: the longest step must be one and a half times the shortest.
    """
    sentences = []
    for name, axis in axes.items():
        dates = labels[name].values if name in labels else np.empty(0)
        if dates.dtype.kind != "M" or axis.input_size == 1 and not axis.lead or len(dates) < 3:
            continue
        hours = np.diff(dates).astype("timedelta64[s]").astype(np.float64) / 3600
        if hours.max() > 1.5 * hours.min():
            place = int(np.argmax(hours))
            sentences.append(
                f"points of {name!r} lie {hours.min():g} to {hours.max():g} h apart (the longest after "
                f"{label_text(dates[place])}), and windows count points; where that matters, fill the gaps: "
                f"ds.resample or ds.reindex"
            )
    return sentences


def period_sentences(axes: Mapping[str, Axis], labels: Mapping[str, Any]) -> list[str]:
    """Return a sentence for each periodic dimension of longitudes in degrees that are not once round a circle."""
    sentences = []
    for name, axis in axes.items():
        is_longitude = name in labels and str(labels[name].attrs.get("units", "")).startswith("degree")
        if axis.edge != "periodic" or not (is_longitude or name in labels and name in LONGITUDES) or axis.length < 2:
            continue
        first, last = float(labels[name].values[0]), float(labels[name].values[-1])
        step = abs(last - first) / (axis.length - 1)
        if abs(step * axis.length - 360) > step / 2:
            sentences.append(
                f"{name!r} is periodic, but its {axis.length} points from {first:g} to {last:g} with "
                f"a step of {step:g} are not once round 360 degrees; leave out a point that is there twice, or give "
                "other edges to a part of a circle"
            )
    return sentences


def _label(labels: Any, index: int) -> str:
    return str(index) if labels is None else label_text(labels[index])


def label_text(value: Any) -> str:
    """Return a coordinate as messages have it: a date without the digits below its minutes, a number in short."""
    value = np.asarray(value)[()]
    if isinstance(value, np.datetime64):
        return str(value.astype("datetime64[s]")).removesuffix(":00").removesuffix("T00:00")
    return f"{value:g}" if isinstance(value, (float, np.floating)) else str(value)

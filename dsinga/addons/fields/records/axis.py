"""Computes where windows begin along one dimension, and which points each reads."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from dsinga.addons.fields.records.coordinates import crossing
from dsinga.addons.fields.records.definition import WindowDimConf
from dsinga.base.errors import UserError

GAP_REMEDY = "; fill the gaps (ds.resample or ds.reindex), or cut windows that count points (over_gaps=True)"


@dataclass(frozen=True)
class Axis:
    """Where windows lie along one dimension of the data.

    Attributes:
        length: points of the data.
        size: points of a window.
        stride: points between the starts of neighbouring windows.
        before, after: points of context around a window.
        lead: offset of the target in points.
        leads: how many targets a window has, each one offset after the previous one.
        edge: what lies beyond the data, one of ``EDGES``.
        starts: the first point of each window, without its context, increasing.
        gaps: the points before gaps of time, which no window crosses, increasing.
        all_starts: the first points of all windows, with windows across gaps; None if no window crosses a gap.
        input_part, target_part: the points [start, stop) that are read of a window and its context, or of a target;
            None for all.
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
    leads: int = 1
    gaps: np.ndarray = field(default_factory=lambda: np.empty(0, np.int64))
    all_starts: np.ndarray | None = None

    @property
    def input_size(self) -> int:
        """The number of points that the inputs of a window read, with context."""
        start, stop = self.input_part or (0, self.before + self.size + self.after)
        return stop - start

    @property
    def target_size(self) -> int:
        """The number of points that the targets of a window read."""
        start, stop = self.target_part or (0, self.size)
        return stop - start

    @property
    def ahead(self) -> int:
        """The number of points from the first lead to the last."""
        return (self.leads - 1) * self.lead

    def offset(self, is_target: bool, number: int = 0) -> int:
        """Return the distance from a window's start to the first point of its targets or inputs.

        ``number`` counts leads from 0.
        """
        part = self.target_part if is_target else self.input_part
        later = number * self.lead if self.leads > 1 else 0
        return (self.lead if is_target else -self.before) + later + (part[0] if part else 0)

    def input_range(self, first: int, last: int) -> tuple[int, int]:
        """Return the points [low, high) that the inputs of windows ``first`` to ``last`` read."""
        offset = self.offset(is_target=False)
        return int(self.starts[first]) + offset, int(self.starts[last]) + offset + self.input_size + self.ahead

    def target_range(self, first: int, last: int) -> tuple[int, int]:
        """Return the points [low, high) that the targets of windows ``first`` to ``last`` read."""
        offset = self.offset(is_target=True)
        return int(self.starts[first]) + offset, int(self.starts[last]) + offset + self.target_size + self.ahead

    def positions(self, low: int, high: int) -> tuple[np.ndarray, np.ndarray]:
        """Return the data's point for each of ``low`` to ``high``, and whether it lies beyond the data.

        Points beyond the data map to points inside, as numpy.pad does for the edge; for "zero" to any point.
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
        """Return how many points at the begin and end of the data fill no window."""
        if self.edge == "periodic":
            return 0, 0
        starts = self.starts if self.all_starts is None else self.all_starts
        before, after = (self.before, self.after) if self.edge == "inside" else (0, 0)
        low, high = int(starts[0]) - before, int(starts[-1]) + self.size + after
        if self.has_targets:
            ahead = self.offset(is_target=True)
            last = int(starts[-1]) + ahead + self.ahead + self.target_size
            low, high = min(low, int(starts[0]) + ahead), max(high, last)
        return max(low, 0), max(self.length - high, 0)

    def over_gaps(self, ahead: int | None = None) -> np.ndarray:
        """Return whether each window has a gap from the begin of its context to its targets' end.

        ``ahead`` replaces the offset of targets. Without targets and ``ahead``, only inputs count.
        """
        low, high = self.starts - self.before, self.starts + self.size + self.after
        if ahead is None and self.has_targets:
            ahead = self.lead + self.ahead
        if ahead is not None:
            low, high = np.minimum(low, self.starts + ahead), np.maximum(high, self.starts + ahead + self.size)
        return crossing(self.gaps, np.maximum(low, 0), np.minimum(high, self.length))

    def widest(self, count: int) -> tuple[int, int]:
        """Return the first and last window of the block of ``count`` that spans the most points."""
        if self.all_starts is None:
            return 0, count - 1
        firsts = np.arange(0, len(self.starts) - count + 1, count)
        first = int(firsts[np.argmax(self.starts[firsts + count - 1] - self.starts[firsts])])
        return first, first + count - 1

    def without_gaps(self, ahead: int | None = None) -> Axis:
        """Drop the windows that cross gaps; possibly none is left."""
        is_left_out = self.over_gaps(ahead)
        if not is_left_out.any():
            return self
        starts = self.starts if self.all_starts is None else self.all_starts
        return replace(self, starts=self.starts[~is_left_out], all_starts=starts)


def make_axis(
    conf: WindowDimConf,
    length: int,
    leads: int,
    has_targets: bool,
    starts: Any = None,
    gaps: np.ndarray | None = None,
) -> Axis:
    """Compute the windows along a dimension of the data that cross none of the ``gaps``.

    ``starts`` replaces the regular first points of windows; all of them are kept.
    """
    size = length if conf.size in (None, -1) else int(conf.size or 0)
    leads = leads if has_targets and conf.lead else 1
    _check_length(conf, size, length, leads, has_targets)
    stride, edge, last = size - conf.overlap, conf.edges, leads * conf.lead  # the offset of the last target
    if edge == "periodic":
        first, stop = 0, length
    else:
        before, after = (conf.before, conf.after) if edge == "inside" else (0, 0)
        first = max(before, -conf.lead if has_targets else 0)
        later = last - conf.lead if leads > 1 else 0  # the offset of the inputs of the last lead
        stop = length - size - max(after + later, last if has_targets else 0) + 1
    points = np.asarray(np.arange(first, stop, stride) if starts is None else starts, np.int64)
    if not len(points) or points[0] < first or points[-1] >= stop:
        raise _no_window(conf, size, length, last)
    axis = Axis(
        conf.name, length, size, stride, conf.before, conf.after, conf.lead, edge, has_targets, points, leads=leads,
        gaps=np.empty(0, np.int64) if gaps is None else gaps,
    )  # fmt: skip
    axis = axis if starts is not None else axis.without_gaps()
    if not len(axis.starts):
        raise UserError(f"all windows along {conf.name!r} ({len(points)}) reach over a gap of time{GAP_REMEDY}")
    return axis


def _check_length(conf: WindowDimConf, size: int, length: int, leads: int, has_targets: bool) -> None:
    name, lead = conf.name, conf.lead
    if not length:
        raise UserError(f"the Dataset has no point of {name!r}; look at what ds.sel(...) or ds.isel(...) selected")
    if conf.overlap >= size:
        raise UserError(
            f"input_overlap of {name!r} is {conf.overlap}, but a window has {size} points; give less, such as "
            f"{size - 1}"
        )
    if size > length:
        raise UserError(
            f"windows have {size} points of {name!r}, but the data {length}; give input_dims of at most that"
        )
    if leads > 1 and leads * lead + size > length:
        raise UserError(
            f"leads={leads} with a lead of {lead} takes targets up to {leads * lead + size - 1} points of {name!r} "
            f"after the first, but the data have {length} points; give fewer leads, or more data"
        )
    if has_targets and abs(lead) >= length:
        raise UserError(
            f"lead of {name!r} is {lead} points, which lies beyond the {length} points of the data; give a shorter one"
        )


def _no_window(conf: WindowDimConf, size: int, length: int, last: int) -> UserError:
    context = conf.before + conf.after if conf.edges == "inside" else 0
    parts = {"of its own": size, "of context": context, "of lead": abs(last)}
    points = " + ".join(f"{number} {what}" for what, number in parts.items() if number)
    remedy = "give fewer, or edges other than 'inside'" if context else "give fewer"
    return UserError(
        f"no window fits along {conf.name!r}: it takes {sum(parts.values())} points ({points}), and the data have "
        f"{length}; {remedy}"
    )

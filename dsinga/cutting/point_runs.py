"""Describes how a padded array copies source points along an axis, as slices that workers can exchange."""

from __future__ import annotations

from itertools import pairwise
from typing import NamedTuple

import numpy as np

from dsinga.layers.interface.region import FILL


class PointRun(NamedTuple):
    """Neighbouring points of an array along an axis, and the source's points that they copy.

    The ``length`` points that begin at ``place`` copy the points that begin at ``start``. These rise (``step`` 1), fall
    (-1), or are one point (0). With ``start`` FILL nothing is copied.
    """

    place: int
    length: int
    start: int
    step: int = 1

    @property
    def source(self) -> slice:
        """The copied points of the source, in rising order."""
        length = (self.length - 1) * abs(self.step)
        low = self.start - length if self.step < 0 else self.start
        return slice(low, low + length + 1)

    @property
    def target(self) -> slice:
        """The points that copy ``source``: in order, reversed, or all one point (``step`` 0)."""
        if self.step >= 0:
            return slice(self.place, self.place + self.length)
        return slice(self.place + self.length - 1, self.place - 1 if self.place else None, -1)

    def within(self, start: int, stop: int) -> PointRun | None:
        """Return the part of this run that copies points ``start`` to ``stop`` - 1 of the source, if any."""
        source = self.source
        low, high = max(source.start, start), min(source.stop, stop)
        if self.start == FILL or low >= high:
            return None
        if self.step == 0:
            return self
        first = low if self.step > 0 else high - 1
        return PointRun(self.place + abs(first - self.start), high - low, first, self.step)


def find_runs(points: np.ndarray) -> tuple[PointRun, ...]:
    """Group the points of a source that an array copies into runs, in order; FILL copies nothing."""
    runs: list[PointRun] = []
    rising = (np.diff(points) == 1) & (points[:-1] != FILL)
    bounds = [0, *(np.flatnonzero(~rising) + 1).tolist(), len(points)]
    for place, end in pairwise(bounds):
        count, point = end - place, int(points[place])
        last = runs[-1] if runs else None
        if count == 1 and last is not None and (last.start == FILL) == (point == FILL):
            step = point - (last.start + (last.length - 1) * last.step)
            if step in (0, -1) and (last.length == 1 or step == last.step):
                runs[-1] = last._replace(length=last.length + 1, step=step)
                continue
        runs.append(PointRun(place, count, point, 0 if point == FILL else 1))
    return tuple(runs)

"""Reach: which points of its sources a layer needs for a point of its feature, along one axis."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

FILL = -1  # in place of the number of a point: one outside the source


class Reach(NamedTuple):
    """The points of a source that a layer needs along one axis.

    Point j of the feature needs those from floor((j·step - before) / factor) to floor((j·step + after) / factor).
    ``factor`` is above 1 for layers that give more points than they take. ``padding`` says what the layer takes in
    place of points outside its source: "" if it takes none, "edge" for anything that follows from the points near that
    edge, such as zeros, and "periodic" for the points of the opposite edge.
    """

    step: int = 1
    factor: int = 1
    before: int = 0
    after: int = 0
    padding: str = ""

    def first(self, points: int) -> int:
        """Return the first point of the feature that needs no point of the source before ``points``."""
        return max(0, -(-(points * self.factor + self.before) // self.step))

    def last(self, points: int) -> int:
        """Return the last point of the feature that needs no point of the source after ``points``."""
        return (points * self.factor + self.factor - 1 - self.after) // self.step

    def points(self, start: int, stop: int, size: int) -> np.ndarray:
        """Return the points of a source of ``size`` that the points ``start`` to ``stop`` - 1 of the feature need.

        FILL stands for those outside the source, unless they are of its opposite edge.
        """
        first = (start * self.step - self.before) // self.factor
        last = ((stop - 1) * self.step + self.after) // self.factor
        points = np.arange(first, last + 1)
        return points % size if self.padding == "periodic" else np.where((points < 0) | (points >= size), FILL, points)

"""Cuts by space: which points of a field a worker computes, and which input points it needs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from dsinga.layers.interface.context import Columns
from dsinga.ops.types import PointRanges, Shape

FILL = -1  # in place of the number of a point: one outside the source


class Reach(NamedTuple):
    """Which source points each point of a layer's output needs along one axis, such as a convolution's window.

    Point j of the feature needs the points floor((j·step - before) / factor) to floor((j·step + after) / factor).
    ``factor`` is above 1 for layers that enlarge. ``padding`` is what replaces points outside the source: "" for
    nothing, "periodic" for the opposite edge, "edge" for what follows from points near that edge, such as zeros.
    """

    step: int = 1
    factor: int = 1
    before: int = 0
    after: int = 0
    padding: str = ""

    def first(self, points: int) -> int:
        """Return the first point of the feature that needs no source point before ``points``."""
        return max(0, -(-(points * self.factor + self.before) // self.step))

    def last(self, points: int) -> int:
        """Return the last output point that can be computed from source points up to ``points``."""
        return (points * self.factor + self.factor - 1 - self.after) // self.step

    def points(self, start: int, stop: int, size: int) -> np.ndarray:
        """Return the source points that points ``start`` to ``stop`` - 1 of the feature need, of ``size`` points."""
        first = (start * self.step - self.before) // self.factor
        last = ((stop - 1) * self.step + self.after) // self.factor
        points = np.arange(first, last + 1)
        return points % size if self.padding == "periodic" else np.where((points < 0) | (points >= size), FILL, points)


class Region(NamedTuple):
    """The points of a field that one worker computes: a range along each axis, starting with ``axis``.

    ``number`` is the region's position among the workers' regions.
    """

    axis: int
    ranges: tuple[Columns, ...]
    number: int = 0

    @property
    def is_first(self) -> bool:
        """Whether this worker counts what all workers with the same rows compute equally, such as running means."""
        return self.number == 0

    @property
    def share(self) -> float:
        """The share of the field's points in the region."""
        return math.prod((stop - start) / total for start, stop, total in self.ranges)

    @property
    def axes(self) -> range:
        """The axes that are divided among workers."""
        return range(self.axis, self.axis + len(self.ranges))

    def of(self, array: Any, missing: int = 0) -> Any:
        """Cut the region out of an array of the whole field, as a view; the array lacks ``missing`` leading axes."""
        index = tuple(slice(start, stop) for start, stop, _ in self.ranges)
        return array[(*(slice(None),) * (self.axis - missing), *index)]

    def take(self, array: Any, missing: int = 0) -> Any:
        """Cut the region out of an array, as a view, unless the array has only the region."""
        sizes = array.shape[self.axis - missing : self.axes.stop - missing]
        return array if sizes == tuple(stop - start for start, stop, _ in self.ranges) else self.of(array, missing)

    def points_of(self, shape: Shape) -> PointRanges:
        """Return the range of points along each axis of a row of a field of ``shape``."""
        ranges = [(0, size) for size in shape]
        for axis, (start, stop, _) in zip(self.axes, self.ranges, strict=True):
            ranges[axis] = (start, stop)
        return tuple(ranges[1:])

    def whole(self, shape: Shape) -> Shape:
        """Convert the region's shape to the whole field's."""
        return self._with_sizes(shape, [total for *_, total in self.ranges])

    def part(self, shape: Shape) -> Shape:
        """Convert a field's shape to the region's."""
        return self._with_sizes(shape, [stop - start for start, stop, _ in self.ranges])

    def _with_sizes(self, shape: Shape, sizes: Sequence[int]) -> Shape:
        return (*shape[: self.axis], *sizes, *shape[self.axis + len(sizes) :])

    def __str__(self) -> str:
        return "points " + " x ".join(f"{start}-{stop - 1}" for start, stop, _ in self.ranges)


def row_numbers(shape: Shape, region: Region) -> list[tuple[int, int]]:
    """Return which numbers of a flattened row lie in a region, as runs (start, stop)."""
    last = region.axis + len(region.ranges) - 2  # of the row's axes
    inner = math.prod(shape[last + 1 :])
    outer = np.arange(math.prod(shape[:last])).reshape(shape[:last])
    before = region._replace(ranges=region.ranges[:-1]).of(outer, missing=1).reshape(-1).tolist()
    start, stop, total = region.ranges[-1]
    return [((number * total + start) * inner, (number * total + stop) * inner) for number in before]


def along(axis: int, part: slice) -> tuple[slice, ...]:
    """Return an index that selects a slice along ``axis``."""
    return (*(slice(None),) * axis, part)

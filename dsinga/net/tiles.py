"""Tiles of a field along one axis: which parts of the input a net gets, so that all tiles together give the whole."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from dsinga.net.receptive_field import AxisField


class Tile(NamedTuple):
    """A part of a field along one axis.

    The net gets the ``size`` points of its input from ``start`` on, which is negative where a periodic axis begins
    before its first point, and of the points of its feature those from ``skip`` on are the points ``first`` to
    ``stop`` - 1 of the result.
    """

    start: int
    size: int
    skip: int
    first: int
    stop: int


@dataclass(frozen=True)
class AxisTiles:
    """Tiles of one size along an axis, each with ``core`` points of the result, but for the last one.

    Attributes:
        length: the points of the input, as the net would get them whole.
        outputs: the points of the net's feature.
        margins: points of the result before and after these, which no tile gives.
        size: the points of a tile with its context; a whole axis is one tile.
        core: the points of the result that a tile gives.
        offset: how many points a tile begins before the point of the input whose number is that of its first point.
        periodic: whether tiles continue at the opposite edge.
    """

    length: int
    outputs: int
    margins: tuple[int, int]
    size: int
    core: int
    offset: int = 0
    periodic: bool = False

    @property
    def points(self) -> int:
        """The points of the result."""
        return sum(self.margins) + self.outputs

    def __len__(self) -> int:
        return -(-self.points // self.core)

    def __iter__(self) -> Iterator[Tile]:
        return (self.tile(index) for index in range(len(self)))

    def tile(self, index: int) -> Tile:
        """Return a tile by its number. One that gives margins only has no points."""
        before, end = self.margins[0], self.margins[0] + self.outputs
        low, high = index * self.core, (index + 1) * self.core
        first, stop = min(max(low, before), end), max(min(high, end), before)
        start = low - self.offset
        if not self.periodic:  # at an edge of the field a tile begins or ends there, as the net's padding does
            start = max(0, min(start, self.length - self.size))
        return Tile(start, self.size, first - before - start, first, stop)

    @property
    def chunks(self) -> tuple[int, ...]:
        """The points of the result for each tile."""
        return tuple(min(self.core, self.points - index * self.core) for index in range(len(self)))


def whole_axis(length: int, outputs: int, margins: tuple[int, int] = (0, 0)) -> AxisTiles:
    """Return one tile that is the whole axis."""
    return AxisTiles(length, outputs, margins, length, outputs + sum(margins))


def cut_axis(field: AxisField, length: int, outputs: int, core: int, margins: tuple[int, int] = (0, 0)) -> AxisTiles:
    """Return tiles along an axis of ``length`` points, of which each gives ``core`` points of the result.

    ``field`` is the receptive field, of stride 1, and ``core`` a multiple of its alignment. The result has the
    ``outputs`` points of the feature between ``margins``. All tiles have one size, which leaves the remainder of the
    length divided by the alignment, and begin at multiples of the alignment: so every layer divides and pads a tile as
    it does the whole axis, and the same kernels compute each tile. An axis that is no longer than a tile is one tile,
    and so is a periodic axis whose length is no multiple of the alignment, or that has context.
    """
    step = field.alignment
    assert field.stride == 1, "the feature has a point for each point of the input"
    assert core % step == 0, "tiles begin at multiples of the alignment"
    offset = -(-(field.invalid_before + margins[0]) // step) * step
    least = offset - margins[0] + core + field.invalid_after + length - outputs
    size = least + (length - least) % step
    if size >= length or (field.periodic and (length % step or length != outputs)):
        return whole_axis(length, outputs, margins)
    return AxisTiles(length, outputs, margins, size, core, offset, field.periodic)

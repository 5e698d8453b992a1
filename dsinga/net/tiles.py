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
    ``stop`` - 1 of the whole feature.
    """

    start: int
    size: int
    skip: int
    first: int
    stop: int


@dataclass(frozen=True)
class AxisTiles:
    """Tiles of one size along an axis, each with ``core`` points of the feature, but for the last one.

    Attributes:
        length: the points of the input, as the net would get them whole.
        outputs: the points of the net's feature.
        size: the points of a tile with its context; a whole axis is one tile.
        core: the points of the feature that a tile gives.
        offset: how many points before those that it gives a tile begins.
        periodic: whether tiles continue at the opposite edge.
    """

    length: int
    outputs: int
    size: int
    core: int
    offset: int = 0
    periodic: bool = False

    def __len__(self) -> int:
        return -(-self.outputs // self.core)

    def __iter__(self) -> Iterator[Tile]:
        return (self.tile(index) for index in range(len(self)))

    def tile(self, index: int) -> Tile:
        """Return a tile by its number."""
        first = index * self.core
        start = first - self.offset
        if not self.periodic:  # at an edge of the field a tile begins or ends there, as the net's padding does
            start = max(0, min(start, self.length - self.size))
        return Tile(start, self.size, first - start, first, min(first + self.core, self.outputs))

    @property
    def chunks(self) -> tuple[int, ...]:
        """The points of the feature that each tile gives."""
        return tuple(tile.stop - tile.first for tile in self)


def whole_axis(length: int, outputs: int) -> AxisTiles:
    """Return one tile that is the whole axis."""
    return AxisTiles(length, outputs, length, outputs)


def cut_axis(field: AxisField, length: int, outputs: int, core: int) -> AxisTiles:
    """Return tiles along an axis of ``length`` points, of whose ``outputs`` points of a feature each gives ``core``.

    ``field`` is the receptive field, of stride 1, and ``core`` a multiple of its alignment. All tiles have one size,
    which leaves the remainder of the length divided by the alignment, and begin at multiples of the alignment: so
    every layer divides and pads a tile as it does the whole axis, and the same kernels compute each tile. An axis that
    is no longer than a tile is one tile, and so is a periodic axis whose length is no multiple of the alignment.
    """
    step = field.alignment
    assert field.stride == 1, "the feature has a point for each point of the input"
    assert core % step == 0, "tiles begin at multiples of the alignment"
    offset = -(-field.invalid_before // step) * step
    least = offset + core + field.invalid_after + length - outputs
    size = least + (length - least) % step
    if size >= length or (field.periodic and length % step):
        return whole_axis(length, outputs)
    return AxisTiles(length, outputs, size, core, offset, field.periodic)

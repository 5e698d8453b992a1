"""A series of points that takes bounded memory however many points come."""

from __future__ import annotations

from collections.abc import Iterator

# The largest number of points that a series keeps: more than a panel has pixels.
MAX_POINTS = 1000


class Series:
    """Points (x, y) in the order of their arrival, evenly thinned out where they are too many; the last one is kept."""

    def __init__(self, most: int = MAX_POINTS):
        self._most = most
        self._kept: list[tuple[float, float]] = []
        self._last: tuple[float, float] | None = None
        self._stride, self._count = 1, 0

    def add(self, x: float, y: float) -> None:
        """Add a point; drop every second one, of this and of later ones, where there are too many."""
        self._last = (x, y)
        if self._count % self._stride == 0:
            self._kept.append(self._last)
        self._count += 1
        if len(self._kept) > self._most:
            self._kept, self._stride = self._kept[::2], 2 * self._stride

    def __iter__(self) -> Iterator[tuple[float, float]]:
        yield from self._kept
        if self._last is not None and self._kept[-1] is not self._last:
            yield self._last

    def __len__(self) -> int:
        return len(self._kept) + (self._last is not None and self._kept[-1] is not self._last)

    @property
    def last(self) -> float | None:
        """The y of the last point, None of an empty series."""
        return None if self._last is None else self._last[1]

    def columns(self) -> tuple[list[float], list[float]]:
        """Return the x and the y of all points."""
        points = list(self)
        return [x for x, _ in points], [y for _, y in points]

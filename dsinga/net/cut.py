"""The ways to cut a layer for the workers of a group: by rows, by features, by space, or not at all."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import NamedTuple

from dsinga.layers.interface.context import Columns, Rows
from dsinga.layers.interface.region import Region

ROWS, FEATURES = 0, 1  # the dimensions on which a layer can be cut; from SPACE on they are those of points
SPACE = 2
WHOLE_LAYER = -1  # in place of a dimension: one worker computes the layer
COPIED = WHOLE_LAYER  # of a feature: each worker that has it has all of it, as the one of a whole layer


class LayerCut(NamedTuple):
    """The cut of one layer: a part for each worker along ``dim`` (0 rows, 1 features), or all of it at one worker.

    A layer cut by space has a ``grid``: the numbers of parts along the axes from ``dim`` (2 or more) on.
    ``dim`` is WHOLE_LAYER for a layer that the worker ``location`` computes alone. ``reason`` says why the cut is not
    the one that the job asks for; it is empty where it is.
    """

    dim: int
    location: int = 0
    reason: str = ""
    grid: tuple[int, ...] = ()


def cut_evenly(total: int, parts: int) -> list[Rows]:
    """Cut ``total`` rows into ``parts`` neighbouring ranges: the first ``total % parts`` are one row longer.

    The rule of ``numpy.array_split``: sizes differ by one at most, and parts beyond the rows are empty.
    """
    assert total >= 0, total
    assert parts >= 1, parts
    short, longer = divmod(total, parts)
    bounds = [part * short + min(part, longer) for part in range(parts + 1)]
    return [Rows(start, stop, total) for start, stop in zip(bounds, bounds[1:], strict=False)]


def cut_regions(shape: Sequence[int], dim: int, grid: Sequence[int]) -> list[Region]:
    """Cut the points of a feature of ``shape`` evenly, into as many parts as ``grid`` says along the axes from ``dim``.

    The regions are in the order of the workers: those of the last axis are neighbours.
    """
    ranges = [cut_evenly(shape[axis], parts) for axis, parts in enumerate(grid, dim)]
    columns = [[Columns(*range_) for range_ in along_axis] for along_axis in ranges]
    return [Region(dim, region, number) for number, region in enumerate(itertools.product(*columns))]

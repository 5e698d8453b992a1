"""Which parts of which chunks make up a region of an array."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from typing import NamedTuple


class AxisPart(NamedTuple):
    """Along one axis: the number of a chunk, and the same points counted in it, in the region and in the array."""

    number: int
    inside: slice
    place: slice
    points: slice


def axis_parts(region: slice, begins: Sequence[int]) -> list[AxisPart]:
    """Return the parts of chunks along an axis that a region, a slice with a start and a stop, consists of.

    Args:
        region: the points.
        begins: the first point of each chunk, which may be a range.
    """
    parts: list[AxisPart] = []
    if region.start == region.stop:
        return parts
    for number in range(bisect_right(begins, region.start) - 1, bisect_left(begins, region.stop)):
        begin, is_last = begins[number], number + 1 == len(begins)
        low, high = max(begin, region.start), region.stop if is_last else min(begins[number + 1], region.stop)
        inside, place = slice(low - begin, high - begin), slice(low - region.start, high - region.start)
        parts.append(AxisPart(number, inside, place, slice(low, high)))
    return parts

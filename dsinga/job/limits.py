"""Declares numbers with bounds in a job, and checks the bounds."""

from __future__ import annotations

import functools
import math
import typing
from collections.abc import Iterator
from typing import Annotated, Any, NamedTuple

from dsinga.job.field_types import item_type
from dsinga.job.message import Message, field_types

FLOAT32_MAX = 3.4028234663852886e38
MAX_MEMBERS = 100_000  # of a topology


class Range(NamedTuple):
    """A range of float32 numbers that a setting allows, from ``low`` to ``high``; an open end is excluded.

    NaN is in no range, infinity only in ``infinite`` ones.
    """

    low: float
    high: float = math.inf
    open_low: bool = False
    open_high: bool = False
    infinite: bool = False

    def __contains__(self, value: object) -> bool:
        assert isinstance(value, (int, float))
        if not abs(value) <= FLOAT32_MAX and not (self.infinite and abs(value) == math.inf):
            return False
        above = value > self.low if self.open_low else value >= self.low
        return above and (value < self.high if self.open_high else value <= self.high)

    def fault(self, value: float) -> str:
        """Say that a value is outside the range, for an error; "" if it is inside."""
        if abs(value) <= FLOAT32_MAX:
            return f"must be {self}, not {value}"
        return f"must be a number that float32 can hold{f', {self}' if math.isfinite(self.low) else ''}, not {value}"

    def __str__(self) -> str:
        if self.high == math.inf:
            return f"{'above' if self.open_low else 'at least'} {self.low}"
        return f"in {'(' if self.open_low else '['}{self.low}, {self.high}{')' if self.open_high else ']'}"


NUMBER = Range(-math.inf)  # any number

# The types of fields whose numbers are bounded.
Count = Annotated[int, Range(1)]  # of things, at least one
Natural = Annotated[int, Range(0)]  # a count or a frequency; 0 means none or never
NonNegative = Annotated[float, Range(0)]
Positive = Annotated[float, Range(0, open_low=True)]
Share = Annotated[float, Range(0, 1, open_high=True)]  # a fraction or a decay, less than 1
Fraction = Annotated[float, Range(0, 1, open_low=True)]  # more than 0
Limit = Annotated[float, Range(0, infinite=True)]  # 0 and infinity limit nothing
Unit = Annotated[float, Range(0, 1)]  # a fraction or a factor, at most 1
Bound = Annotated[float, Range(-math.inf, infinite=True)]  # any number; infinity bounds nothing
Axis = Annotated[int, Range(0, 3)]  # of a batch of images (N, C, H, W)
Members = Annotated[int, Range(1, MAX_MEMBERS)]  # of a topology
Blocks = Annotated[int, Range(0, MAX_MEMBERS)]  # of a batch; 0 for none
Steps = Annotated[int, Range(1, 100_000)]  # time steps for which layers are copied
Parts = Annotated[int, Range(1, 100_000)]  # that a layer hands out
Pixels = Annotated[int, Range(1, 32_767)]
Padding = Annotated[int, Range(0, 32_767)]
PartitionDim = Annotated[int, Range(-1, 4)]  # rows, features, points along an axis, or -1: not partitioned


def metadata(hint: Any) -> Iterator[Any]:
    """Yield the extra information in a field's annotation, as the range in ``list[Count] | None``."""
    yield from getattr(hint, "__metadata__", ())
    for part in [hint.__origin__] if typing.get_origin(hint) is Annotated else typing.get_args(hint):
        yield from metadata(part)


@functools.cache
def range_in(hint: Any) -> Range | None:
    """Return the range that a field's annotation declares, or None."""
    return next((item for item in metadata(hint) if isinstance(item, Range)), None)


@functools.cache
def number_range(hint: Any) -> Range | None:
    """Return the range of a numeric field, by default any number; None for another field."""
    return (range_in(hint) or NUMBER) if item_type(hint)[0] in (int, float) else None


def out_of_range(message: Message) -> Iterator[tuple[str, int, Any, Range]]:
    """Find the numbers of a message that are out of range: yield (field, item, value, range)."""
    types = field_types(type(message))
    for field, values in vars(message).items():
        if values is None or field not in types or (allowed := number_range(types[field])) is None:
            continue
        for item, value in enumerate(values if isinstance(values, list) else [values]):
            if value is not None and value not in allowed:
                yield field, item, value, allowed

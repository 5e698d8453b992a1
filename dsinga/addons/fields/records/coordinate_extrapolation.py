"""Rules by which coordinates go on beyond the data: equal steps, frequencies of dates, days or middles of months."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from datetime import timedelta
from itertools import pairwise
from typing import Any

import numpy as np

from dsinga.addons.fields.records.coordinates import (
    MIDDLE_DAYS,
    MIDDLES,
    gaps_of,
    is_date_index,
    months_in,
    shifted,
)
from dsinga.base.errors import UserError
from dsinga.data.array_kinds import is_number

DAYS_360 = "360_day"  # a calendar whose months have 30 days each


MOST_DATES = 1000  # of a coordinate, from which its frequency is told


@dataclass(frozen=True)
class StepRule:
    """How a coordinate goes on: by a difference, or by a frequency of dates.

    Attributes:
        step: the difference of neighbouring points; None where they lie by ``frequency``.
        frequency: as pandas has it, such as "MS", or months as :func:`step_text` has them.
    """

    step: Any = None
    frequency: str = ""

    def after(self, index: Any, steps: int) -> Any:
        """Return the coordinate that lies so many steps after the only one of an index, or before it where negative."""
        if self.step is not None:
            return index[0] + steps * self.step
        if months := months_in(self.frequency):
            return _in_months(index[0], steps * months, self.frequency.partition(" months")[2])
        return shifted(index, steps, self.frequency)[0]


def extrapolated(coordinate: Any, points: np.ndarray, step: str = "", gaps: Any = ()) -> Any:
    """Return the coordinate of a dimension at points (n,), maybe before or beyond the data, as an xarray Variable.

    Its steps are equal, or those of months, years and the like; ``step`` takes their place where there are too few
    points to tell. Points next to one of the ``gaps`` follow the steps on their side of it. Raises UserError where
    they follow no such rule; see :func:`goes_on`.
    """
    import xarray

    (dim,) = coordinate.dims
    length = coordinate.sizes[dim]
    values = np.array(coordinate.variable.isel({dim: points.clip(0, length - 1)}).values)
    for end, outside in ((0, np.flatnonzero(points < 0)), (length - 1, np.flatnonzero(points >= length))):
        if not len(outside):
            continue
        index = coordinate.to_index()
        rule = _rule(_run(index, gaps, end), step)
        if rule is None:
            raise UserError(f"the coordinate {coordinate.name!r} follows no rule by which it could go on")
        numbers, places = np.unique(points[outside], return_inverse=True)
        try:
            later = [rule.after(index[[end]], int(number) - end) for number in numbers]
        except (OverflowError, ValueError) as error:  # dates that the coordinate cannot have
            most = int(np.abs(numbers - end).max())
            raise UserError(f"the coordinate {coordinate.name!r} cannot go on for {most} points ({error})") from error
        for place, number in zip(outside, places, strict=True):
            values[place] = later[number]
    return xarray.Variable(coordinate.dims, values, coordinate.attrs)


def goes_on(coordinate: Any, step: str = "", gaps: Any = (), before: bool = False) -> bool:
    """Whether the steps of a coordinate follow a rule by which it goes on beyond its last point, or before its first.

    With ``gaps`` these are the steps after the last gap, or before the first.
    """
    index = coordinate.to_index()
    return _rule(_run(index, gaps, 0 if before else len(index) - 1), step) is not None


def step_text(coordinate: Any, is_time: bool = False) -> str:
    """Return the step of a coordinate: a number, of dates a frequency as pandas has it; "" for none or unequal ones.

    Of numbers it is the mean step. Dates in the middles of months have the step "1 months, in their middles", those of
    one day of months "1 months". Of a coordinate along time that has gaps it is the step of the longest part without.
    """
    index = coordinate.to_index()
    if len(index) < 2 or not (is_date_index(index) or index.dtype.kind in "iuf"):
        return ""
    if is_time and len(gaps := gaps_of(index)):
        ends = np.array([-1, *gaps, len(index) - 1])
        longest = int(np.argmax(np.diff(ends)))
        index = index[ends[longest] + 1 : ends[longest + 1] + 1]
    if is_date_index(index):
        return _frequency(index[:MOST_DATES])
    if len(index) < 2:
        return ""
    return f"{(float(index[-1]) - float(index[0])) / (len(index) - 1):.9g}"


def _run(index: Any, gaps: Any, end: int) -> Any:
    """Return the part of an index between its first or last point, ``end``, and the nearest gap."""
    if not len(gaps):
        return index
    return index[: gaps[0] + 1] if end == 0 else index[gaps[-1] + 1 :]


def _rule(index: Any, trained: str) -> StepRule | None:
    """Return the rule that an index follows, or that of training where it has too few points; None for no rule."""
    is_date = is_date_index(index)
    if not is_date and index.dtype.kind not in "iuf":
        return None
    if len(index) == 1 and not is_date and is_number(trained):
        return StepRule(index.dtype.type(float(trained)))
    steps = index[1:] - index[:-1] if len(index) > 1 else index[:0]  # of one date of cftime xarray takes no difference
    if len(steps) and (steps == steps[0]).all() and not (len(steps) == 1 and is_date and trained):
        return StepRule(steps[0])
    if is_date and (frequency := trained if len(index) < 3 and trained else _frequency(index)):
        return StepRule(frequency=frequency)
    return None


def _frequency(index: Any) -> str:
    """Return the frequency of dates, "" where they have none."""
    import xarray

    infer: Any = xarray.infer_freq
    if len(index) < 3:
        return ""
    if getattr(index, "calendar", "") == DAYS_360 and (months := _monthly(index)):
        return infer(index) if index[0].day == 1 else months  # 30 days, which are a month of other calendars
    return infer(index) or ("" if index.dtype.kind == "m" else _monthly(index))


def _monthly(index: Any) -> str:
    """Return the step of dates at one day and hour of months, or in their middles; "" for others."""
    numbers = np.array([12 * date.year + date.month for date in index])
    months = int(numbers[1] - numbers[0])
    if months < 1 or (np.diff(numbers) != months).any():
        return ""
    for place in (MIDDLES, "") if getattr(index, "calendar", "") == DAYS_360 else ("", MIDDLES, MIDDLE_DAYS):
        with contextlib.suppress(ValueError):  # of a day that not all months have
            if all(_in_months(date, months, place) == after for date, after in pairwise(index)):
                return f"{months} months{place}"
    return ""


def _in_months(date: Any, months: int, place: str) -> Any:
    """Return the date so many months after another: at the same day and hour, or in the middle of its month."""
    number = 12 * date.year + date.month - 1 + months
    if not place:
        return date.replace(year=number // 12, month=number % 12 + 1)
    first, after = (
        date.replace(year=each // 12, month=each % 12 + 1, day=1, hour=0, minute=0, second=0, microsecond=0)
        for each in (number, number + 1)
    )
    half = (after - first) / 2
    return first + (half if place == MIDDLES else timedelta(days=half.days))

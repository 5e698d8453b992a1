"""Coordinates of a Dataset: steps of dates and their gaps, points beyond the data, longitudes round the circle."""

from __future__ import annotations

import contextlib
import warnings
from dataclasses import dataclass
from datetime import timedelta
from itertools import pairwise
from typing import Any

import numpy as np

from dsinga.base.errors import UserError
from dsinga.data.array_kinds import is_number

# Where dates lie, after a step of months: in the middle of each, or at the begin of the day that has the middle.
MIDDLES, MIDDLE_DAYS = ", in their middles", ", at the days of their middles"
HOURS_OF_MONTH = 24 * 365.25 / 12
LONG = 1.5  # times the usual step, above which a step is a gap: months, quarters and years are none


def date_index(coordinate: Any) -> Any:
    """Return the index of a coordinate; one of datetime.date, or of texts that are all ISO 8601, as one of dates."""
    import pandas  # type: ignore[import-untyped]

    index = coordinate.to_index()
    if index.inferred_type not in ("string", "date"):
        return index
    try:
        return pandas.to_datetime(index, format="ISO8601")
    except (ValueError, TypeError, OverflowError):  # texts of another kind
        return index


def is_date_index(index: Any) -> bool:
    """Whether an index has dates, datetime64 or those of cftime, or times since one, timedelta64."""
    import xarray

    return isinstance(index, xarray.CFTimeIndex) or getattr(index.dtype, "kind", "") in ("M", "m")


def step_lengths(index: Any) -> np.ndarray:
    """Return the lengths (n - 1,) of the steps of an index: hours of dates, else the difference of numbers.

    An index of neither has no lengths, (0,).
    """
    if len(index) < 2 or not (is_date_index(index) or index.dtype.kind in "iuf"):
        return np.empty(0)
    if index.dtype.kind in "iuf":
        return np.abs(np.diff(index.values.astype(np.float64)))
    return _hours(np.diff(index.values))


def gaps_of(index: Any, trained: str = "") -> np.ndarray:
    """Return the points after which an index of dates or numbers has a gap, increasing.

    A gap is a step of more than one and a half times the usual one: that of training, else the lower median. Dates of a
    frequency that pandas knows, such as business days, have no gaps.

    Args:
        index: the index, in order.
        trained: the step in training, as :func:`dsinga.addons.fields.records.coordinates.step_text` has it.
    """
    steps = step_lengths(index)
    if not len(steps):
        return np.empty(0, np.int64)
    expected = _trained_lengths(index, trained) if trained else None
    usual = np.sort(steps)[(len(steps) - 1) // 2] if expected is None else expected
    gaps = np.flatnonzero(steps > LONG * usual)
    if len(gaps) and expected is None and has_frequency(index):
        return np.empty(0, np.int64)
    return gaps


def other_steps(index: Any, trained: str) -> tuple[float, float] | None:
    """Return the usual step of an index and that of training where one is over one and a half times the other."""
    steps = step_lengths(index)
    expected = _trained_lengths(index, trained) if trained and len(steps) else None
    if expected is None:
        return None
    usual, before = float(np.sort(steps)[(len(steps) - 1) // 2]), float(np.median(expected))
    return (usual, before) if usual > LONG * before or before > LONG * usual else None


def has_frequency(index: Any) -> bool:
    """Whether the steps of all dates of an index follow a frequency that pandas knows."""
    import xarray

    infer: Any = xarray.infer_freq
    return len(index) > 2 and is_date_index(index) and infer(index) is not None


def months_in(step: str) -> int:
    """Return the months of a step such as "1 months" or "1 months, in their middles", 0 for a step of another kind."""
    count, word, place = step.partition(" months")
    return int(count) if word and count.isdigit() and place in ("", MIDDLES, MIDDLE_DAYS) else 0


def _trained_lengths(index: Any, trained: str) -> Any:
    """Return how long each step of an index would be by the step of training; None where that is not of its kind."""
    if not is_date_index(index):
        return abs(float(trained)) if is_number(trained) else None
    if months := months_in(trained):
        return months * HOURS_OF_MONTH
    try:
        once, twice = (shifted(index[:-1], steps, trained) for steps in (1, 2))
    except (ValueError, TypeError, OverflowError):  # a step of numbers, or of another calendar
        return None
    return np.maximum(_hours(once.values - index[:-1].values), _hours(twice.values - once.values))


def shifted(index: Any, steps: int, frequency: str) -> Any:
    """Return an index of dates moved by steps of a frequency that pandas knows."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # pandas: a frequency without a fast addition
        return index.shift(steps, frequency)


def _hours(steps: np.ndarray) -> np.ndarray:
    if steps.dtype.kind == "m":
        return steps / np.timedelta64(1, "h")
    return np.array([step.total_seconds() / 3600 for step in steps])  # of cftime


def crossing(gaps: np.ndarray, low: np.ndarray, high: np.ndarray) -> np.ndarray:
    """Return which of the ranges [low, high) of points, (n,) each, reach over a gap."""
    return np.searchsorted(gaps, low) != np.searchsorted(gaps, high - 1)


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


def continued(coordinate: Any, points: np.ndarray, step: str = "", gaps: Any = ()) -> Any:
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


LONGITUDES = ("lon", "longitude")
CIRCLE = 360.0  # degrees
SAME_POINT = 1e-3  # of a step, by which longitudes of one point may differ


def is_longitude(coordinate: Any) -> bool:
    """Whether an xarray coordinate has longitudes in degrees, as its name, standard name or units say."""
    units = str(coordinate.attrs.get("units", ""))
    is_named = str(coordinate.name) in LONGITUDES or coordinate.attrs.get("standard_name") == "longitude"
    return (is_named or "east" in units) and units[:6] in ("", "degree") and coordinate.dtype.kind in "iuf"


def is_circle(coordinate: Any) -> bool:
    """Whether a coordinate (n,) has longitudes at equal steps once round the circle."""
    if not is_longitude(coordinate) or coordinate.ndim != 1 or coordinate.size < 2:
        return False
    steps = np.diff(coordinate.values.astype(np.float64))
    size = abs(steps.mean())
    return bool(np.abs(steps - steps[0]).max() < 0.01 * size and abs(size * coordinate.size - CIRCLE) < size / 2)


def first_point(coordinate: Any, begin: float) -> int | None:
    """Return the point of a circle at which the longitude is ``begin``, whatever multiple of 360; None for none."""
    values = coordinate.values.astype(np.float64)
    distance = np.abs((values - begin + CIRCLE / 2) % CIRCLE - CIRCLE / 2)
    place = int(np.argmin(distance))
    return place if distance[place] <= SAME_POINT * abs(values[1] - values[0]) else None


def rotated(dataset: Any, dim: str, first: int) -> Any:
    """Return a Dataset whose points along a dimension begin at point ``first``, and go on with those before it.

    Variables in files stay there.
    """
    chunked = {
        name: variable.roll({dim: -first})  # a selection of points would make more chunks
        for name, variable in dataset.variables.items()
        if dim in variable.dims and variable.chunks is not None
    }
    places = np.roll(np.arange(dataset.sizes[dim]), -first)
    turned = dataset.drop_vars(list(chunked)).isel({dim: places}).assign(chunked)
    return turned.set_coords([name for name in chunked if name in dataset.coords])


def with_begin(dataset: Any, dim: str, begin: float) -> Any:
    """Return a Dataset whose longitudes begin at ``begin``, if they are a circle that has it; else the Dataset itself.

    The coordinates are increasing from there on: of -180 to 180 become 0 to 360.
    """
    coordinate = dataset[dim]
    if not is_circle(coordinate) or abs(float(coordinate[0]) - begin) <= SAME_POINT:
        return dataset
    first = first_point(coordinate, begin)
    if first is None:
        return dataset
    turned = rotated(dataset, dim, first)
    values = turned[dim].values.astype(np.float64)
    step = float(coordinate[1]) - float(coordinate[0])
    values += CIRCLE * np.round((begin + step * np.arange(len(values)) - values) / CIRCLE)
    return turned.assign_coords({dim: (dim, values.astype(coordinate.dtype), coordinate.attrs)})


def as_before(dataset: Any, before: Any) -> Any:
    """Return a Dataset whose longitudes are those of the coordinate ``before`` again, in its order and numbers."""
    dim = str(before.name)
    places = np.array([first_point(before, float(value)) or 0 for value in dataset[dim].values])
    first = int(np.argmin(places))
    return rotated(dataset, dim, first).assign_coords({dim: before.isel({dim: np.roll(places, -first)}).variable})


def places_of(dataset: Any, array: Any, dim: str) -> np.ndarray | None:
    """Return which points of an xarray object are those of a Dataset along a dimension; None where it lacks one.

    They may lie in another order, and longitudes may differ by 360. Without coordinates both have the same points.
    """
    here, known = dataset.indexes.get(dim), array.indexes.get(dim)
    if here is None or known is None:
        return np.arange(array.sizes[dim]) if array.sizes[dim] == dataset.sizes[dim] else None
    if not (here.dtype.kind in "iuf" and known.dtype.kind in "iuf"):
        places = known.get_indexer(here) if known.is_unique else np.full(len(here), -1)
        return places if (places >= 0).all() else None
    points, line = here.values.astype(np.float64), known.values.astype(np.float64)
    least, is_circular = SAME_POINT * np.abs(np.diff(line[:2])).sum(), is_longitude(dataset[dim])
    if is_circular:
        points, line = points % CIRCLE, line % CIRCLE
    order = np.argsort(line, kind="stable")
    line = line[order]
    if is_circular:  # the last point once more before the first one, and this after it
        line = np.concatenate([line[-1:] - CIRCLE, line, line[:1] + CIRCLE])
        order = np.concatenate([order[-1:], order, order[:1]])
    after = np.minimum(np.searchsorted(line, points), len(line) - 1)
    before = np.maximum(after - 1, 0)
    nearest = np.where(np.abs(line[after] - points) <= np.abs(line[before] - points), after, before)
    return order[nearest] if (np.abs(line[nearest] - points) <= least).all() else None

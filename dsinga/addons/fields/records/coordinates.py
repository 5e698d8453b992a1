"""Inspects coordinates: which dimensions are time, and the steps, frequencies and gaps of dates."""

from __future__ import annotations

import contextlib
import warnings
from datetime import timedelta
from itertools import pairwise
from typing import Any

import numpy as np

from dsinga.addons.fields.records.definition import WindowDimConf
from dsinga.base.errors import UserError
from dsinga.data.array_kinds import has_labels, is_number, label_text

# Where dates lie, after a step of months: in the middle of each, or at the begin of the day that has the middle.
MIDDLES, MIDDLE_DAYS = ", in their middles", ", at the days of their middles"
HOURS_OF_MONTH = 24 * 365.25 / 12
LONG = 1.5  # times the usual step, above which a step is a gap: months, quarters and years are none


def date_index(coordinate: Any) -> Any:
    """Return the index of a coordinate; datetime.date and ISO 8601 texts become dates."""
    import pandas  # type: ignore[import-untyped]

    index = coordinate.to_index()
    if index.inferred_type not in ("string", "date"):
        return index
    try:
        return pandas.to_datetime(index, format="ISO8601")
    except (ValueError, TypeError, OverflowError):  # texts of another kind
        return index


def is_date_index(index: Any) -> bool:
    """Whether an index has dates, datetime64 or cftime, or timedelta64."""
    import xarray

    return isinstance(index, xarray.CFTimeIndex) or getattr(index.dtype, "kind", "") in ("M", "m")


def step_lengths(index: Any) -> np.ndarray:
    """Measure the steps between points of an index, (n - 1,): hours of dates, else differences.

    Other indexes have no lengths, (0,).
    """
    if len(index) < 2 or not (is_date_index(index) or index.dtype.kind in "iuf"):
        return np.empty(0)
    if index.dtype.kind in "iuf":
        return np.abs(np.diff(index.values.astype(np.float64)))
    return _hours(np.diff(index.values))


def gaps_of(index: Any, trained: str = "") -> np.ndarray:
    """Return the points after which an index of dates or numbers has a gap, increasing.

    A gap is a step above 1.5 times the usual step, which is the step of training or else the lower median. Dates with a
    pandas frequency, such as business days, have no gaps.

    ``trained`` is the step in training, from :func:`step_text`.
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
    """Compare the usual steps of an index and of training; return both if one is above 1.5 times the other."""
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
    """Return the months of a step such as "1 months" or "1 months, in their middles"; 0 otherwise."""
    count, word, place = step.partition(" months")
    return int(count) if word and count.isdigit() and place in ("", MIDDLES, MIDDLE_DAYS) else 0


def _trained_lengths(index: Any, trained: str) -> Any:
    """Return the lengths of steps if spaced as in training; None if one has dates and the other numbers."""
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
    """Return an index of dates shifted by steps of a pandas frequency."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # pandas: a frequency without a fast addition
        return index.shift(steps, frequency)


def _hours(steps: np.ndarray) -> np.ndarray:
    if steps.dtype.kind == "m":
        return steps / np.timedelta64(1, "h")
    return np.array([step.total_seconds() / 3600 for step in steps])  # of cftime


def crossing(gaps: np.ndarray, low: np.ndarray, high: np.ndarray) -> np.ndarray:
    """Return whether each range of points [low, high), given as two arrays (n,), crosses a gap."""
    return np.searchsorted(gaps, low) != np.searchsorted(gaps, high - 1)


def check_increasing(dataset: Any, conf: WindowDimConf) -> None:
    """Raise UserError unless coordinates increase along a dimension; numbers may decrease.

    Texts along time that are no dates need no order, but must be unique.
    """
    dim, along_time = conf.name, is_time(dataset, conf)
    if dim not in dataset.indexes or dataset.sizes[dim] < 2:
        return
    index = date_index(dataset[dim]) if along_time else dataset.indexes[dim]
    is_date, values = is_date_index(index), dataset[dim].values
    if not is_date and index.dtype.kind not in "iuf":
        if along_time and not index.is_unique:
            place = int(np.argmax(index.duplicated()))
            raise UserError(
                f"the coordinates of {dim!r} have {label_text(values[place])} twice, again at index {place}; leave out "
                f"what is there twice, ds.drop_duplicates({dim!r})"
            )
        return
    if index.is_monotonic_increasing and index.is_unique:
        return
    if not is_date and index.is_monotonic_decreasing and index.is_unique:
        return
    steps = index.values[1:] > index.values[:-1]
    place = int(np.argmin(steps)) if is_date or steps.mean() >= 0.5 else int(np.argmax(steps))
    raise UserError(
        f"the coordinates of {dim!r} do not increase: {label_text(values[place + 1])} (index {place + 1}) follows "
        f"{label_text(values[place])}; sort them, ds.sortby({dim!r}), and leave out what is there twice, "
        f"ds.drop_duplicates({dim!r})"
    )


def is_time(dataset: Any, conf: WindowDimConf) -> bool:
    """Whether a dimension is time: it has dates, a lead, or the name "time"."""
    if conf.name == "time" or conf.lead:
        return True
    return conf.name in dataset.coords and is_date(dataset[conf.name])


def time_gaps(dataset: Any, conf: WindowDimConf, over_gaps: bool) -> np.ndarray | None:
    """Return the points before gaps along time; None if windows may cross gaps.

    Windows that have all points may always cross gaps.
    """
    is_whole, dim = conf.size in (None, -1), conf.name
    if is_whole or over_gaps or dim not in dataset.indexes or dataset.indexes[dim].nlevels > 1:
        return None
    return gaps_of(date_index(dataset[dim]), conf.step)


def check_steps(dataset: Any, conf: WindowDimConf, over_gaps: bool) -> None:
    """Raise UserError if windows span time steps that are longer or shorter than in training."""
    dim, reaches = conf.name, conf.lead or conf.before or conf.after or (conf.size or 0) > 1
    if over_gaps or not reaches or not has_labels(dataset, dim) or not is_time(dataset, conf):
        return
    index = date_index(dataset[dim])
    if steps := other_steps(index, conf.step):
        unit = " h" if is_date_index(index) else ""
        raise UserError(
            f"the usual step of {dim!r} is {steps[0]:g}{unit}, in training it was {steps[1]:g}{unit} ({conf.step}), so "
            "that inputs and targets would lie at other times than those that the net knows; give data of that step "
            "(ds.resample or ds.isel), or train from windows that count points (over_gaps=True)"
        )


OF_TIME = ("day of year", "hour of day")


def is_date(array: Any) -> bool:
    """Whether a coordinate has dates: datetime64 or cftime."""
    return kind_of(array) == "date"


def kind_of(array: Any) -> str:
    """Return the kind of a coordinate: "date", "number" or "other"."""
    if array.dtype.kind == "M":
        return "date"
    if array.dtype.kind == "O" and array.size and hasattr(array.values.flat[0], "dayofyr"):
        return "date"
    return "number" if array.dtype.kind in "buif" else "other"


def turns_of(dates: np.ndarray, quantity: str) -> np.ndarray:
    """Return the share of the year, or day, that has passed at each date, float64."""
    if dates.dtype.kind == "O":  # of cftime
        passed = np.vectorize(_cftime_turn, otypes=[np.float64])
        return passed(dates, quantity)
    unit = "Y" if quantity == "day of year" else "D"
    begins = dates.astype(f"datetime64[{unit}]")
    ends = begins + np.array(1, f"timedelta64[{unit}]")
    first, end, date = (moments.astype("datetime64[s]").astype(np.float64) for moments in (begins, ends, dates))
    return (date - first) / (end - first)


def _cftime_turn(date: Any, quantity: str) -> float:
    hours = date.hour + date.minute / 60 + date.second / 3600
    if quantity == "hour of day":
        return hours / 24
    days = (
        date.replace(year=date.year + 1, month=1, day=1, hour=0, minute=0, second=0, microsecond=0)
        - date.replace(month=1, day=1, hour=0, minute=0, second=0, microsecond=0)
    ).days
    return (date.dayofyr - 1 + hours / 24) / days


DAYS_360 = "360_day"  # a calendar whose months have 30 days each


MOST_DATES = 1000  # of a coordinate, from which its frequency is told


def step_text(coordinate: Any, is_time: bool = False) -> str:
    """Describe a coordinate's step as text: a number or pandas frequency; "" for none or unequal steps.

    For numbers it is the mean step. Dates in the middles of months have the step "1 months, in their middles"; dates at
    one day of each month have "1 months".
    """
    index = coordinate.to_index()
    if len(index) < 2 or not (is_date_index(index) or index.dtype.kind in "iuf"):
        return ""
    if is_time and len(gaps := gaps_of(index)):
        ends = np.array([-1, *gaps, len(index) - 1])
        longest = int(np.argmax(np.diff(ends)))
        index = index[ends[longest] + 1 : ends[longest + 1] + 1]
    if is_date_index(index):
        return frequency_of(index[:MOST_DATES])
    if len(index) < 2:
        return ""
    return f"{(float(index[-1]) - float(index[0])) / (len(index) - 1):.9g}"


def frequency_of(index: Any) -> str:
    """Return the pandas frequency of dates; "" if they have none."""
    import xarray

    infer: Any = xarray.infer_freq
    if len(index) < 3:
        return ""
    if getattr(index, "calendar", "") == DAYS_360 and (months := _monthly(index)):
        return infer(index) if index[0].day == 1 else months  # 30 days, which are a month of other calendars
    return infer(index) or ("" if index.dtype.kind == "m" else _monthly(index))


def _monthly(index: Any) -> str:
    """Return the step of dates at one day and hour of months, or in the middles; "" for others."""
    numbers = np.array([12 * date.year + date.month for date in index])
    months = int(numbers[1] - numbers[0])
    if months < 1 or (np.diff(numbers) != months).any():
        return ""
    for place in (MIDDLES, "") if getattr(index, "calendar", "") == DAYS_360 else ("", MIDDLES, MIDDLE_DAYS):
        with contextlib.suppress(ValueError):  # of a day that not all months have
            if all(in_months(date, months, place) == after for date, after in pairwise(index)):
                return f"{months} months{place}"
    return ""


def in_months(date: Any, months: int, place: str) -> Any:
    """Return the date ``months`` later: at the same day and hour, or in mid-month."""
    number = 12 * date.year + date.month - 1 + months
    if not place:
        return date.replace(year=number // 12, month=number % 12 + 1)
    first, after = (
        date.replace(year=each // 12, month=each % 12 + 1, day=1, hour=0, minute=0, second=0, microsecond=0)
        for each in (number, number + 1)
    )
    half = (after - first) / 2
    return first + (half if place == MIDDLES else timedelta(days=half.days))

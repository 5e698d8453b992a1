"""Gaps of time: steps between dates, or numbers along time, that are longer than the usual one."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np

from dsinga.data.array_order import is_number

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
        trained: the step in training, as :func:`dsinga.addons.fields.records.continued.step_text` has it.
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

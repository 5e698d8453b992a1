"""Coordinates of a Dataset: which dimensions are time, steps of dates and their gaps, longitudes round the circle."""

from __future__ import annotations

import warnings
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


def backwards(dataset: Any, dims: Any) -> Any:
    """Return a Dataset whose points along some dimensions are in the opposite order."""
    return dataset.isel({dim: slice(None, None, -1) for dim in dims}) if dims else dataset


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


def check_increasing(dataset: Any, conf: WindowDimConf) -> None:
    """Raise UserError unless the coordinates of a dimension increase; numbers may as well decrease, as latitudes do.

    Texts along time that are no dates have no order, but none is there twice.
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
    """Whether a dimension is one of time: its coordinate is dates, a target lies ahead along it, or it is so called."""
    if conf.name == "time" or conf.lead:
        return True
    return conf.name in dataset.coords and is_date(dataset[conf.name])


def time_gaps(dataset: Any, conf: WindowDimConf, over_gaps: bool) -> np.ndarray | None:
    """Return the points of a dimension of time after which there is a gap; None where windows may reach over gaps.

    They may where they have all points.
    """
    is_whole, dim = conf.size in (None, -1), conf.name
    if is_whole or over_gaps or dim not in dataset.indexes or dataset.indexes[dim].nlevels > 1:
        return None
    return gaps_of(date_index(dataset[dim]), conf.step)


def check_steps(dataset: Any, conf: WindowDimConf, over_gaps: bool) -> None:
    """Raise UserError where windows reach over steps of time that are longer or shorter than those of training."""
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
    """Whether a coordinate is dates: datetime64, or those of cftime."""
    return kind_of(array) == "date"


def kind_of(array: Any) -> str:
    """Return what a coordinate has: "date", "number" or "other"."""
    if array.dtype.kind == "M":
        return "date"
    if array.dtype.kind == "O" and array.size and hasattr(array.values.flat[0], "dayofyr"):
        return "date"
    return "number" if array.dtype.kind in "buif" else "other"


def turns_of(dates: np.ndarray, quantity: str) -> np.ndarray:
    """Return the share of the year, or of the day, that has passed at each date, float64."""
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

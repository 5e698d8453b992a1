"""Parts of a Dataset between coordinates of a dimension: what ``within`` and ``split`` of windows take."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from dsinga.addons.fields.records.coordinates import CIRCLE, LONG, date_index, is_date_index, is_longitude
from dsinga.addons.fields.records.definition import WindowDefinition
from dsinga.base.arguments import check_whole
from dsinga.base.errors import UserError
from dsinga.data.array_order import is_number, label_text
from dsinga.data.sources.xarray_objects import missing_name


def select(dataset: Any, within: Mapping[str, tuple[Any, Any]]) -> Any:
    """Return the part of a Dataset between the first and last coordinates of ``within``, as ``ds.sel`` has it.

    Coordinates that decrease, as latitudes do, take both ends in either order. Longitudes in degrees go on round the
    circle: from 350 to 10, or from -10 to 10 of data from 0 to 359, whose coordinates then begin at -10.
    """
    for dim, ends in within.items():
        part = _between(dataset, dim, *ends)
        if not part.sizes[dim]:
            raise UserError(f"no point of {dim!r} lies within {ends[0]} to {ends[1]}; it has {_span(dataset, dim)}")
        dataset = part
    return dataset


def _between(dataset: Any, dim: str, first: Any, last: Any) -> Any:
    """Return the part of a Dataset between two coordinates of a dimension; None is an open end."""
    if dim not in dataset.indexes or dataset[dim].dtype.kind not in "iuf":
        return dataset.isel({dim: _places(dataset, dim, first, last)})
    first, last = (None if end is None else _number(dataset, dim, end) for end in (first, last))
    if first is not None and last is not None:
        if is_longitude(dataset[dim]) and dataset.indexes[dim].is_monotonic_increasing:
            return _round_the_circle(dataset, dim, first, last)
        is_falling = dataset.indexes[dim].is_monotonic_decreasing and dataset.sizes[dim] > 1
        first, last = sorted((first, last), reverse=is_falling)
    return dataset.isel({dim: _places(dataset, dim, first, last)})


def _round_the_circle(dataset: Any, dim: str, first: float, last: float) -> Any:
    """Return the part of a Dataset from one longitude eastwards to another, with coordinates that go on from it."""
    values = dataset[dim].values.astype(np.float64)
    width = last - first if last >= first else (last - first) % CIRCLE
    turns = np.floor((values - first) / CIRCLE + 1e-9)
    labels = values - CIRCLE * turns
    labels, places = np.unique(labels, return_index=True)  # a point that is there twice, at 0 and 360, once
    chosen = labels <= first + width + 1e-9
    labels, places = labels[chosen], places[chosen]
    inside = (values >= first) & (values <= max(last, first + width))
    if len(np.unique(values[inside] % CIRCLE)) == len(labels):  # as they are
        return dataset.isel({dim: _places(dataset, dim, first, max(last, first + width))})
    steps = np.diff(labels)
    if len(steps) and steps.max() > LONG * np.median(steps):
        at = int(np.argmax(steps))
        raise UserError(
            f"within of {dim!r} is {first:g} to {last:g}, but the data have no point between {labels[at]:g} and "
            f"{labels[at + 1]:g}; they have {_span(dataset, dim)}"
        )
    part = dataset.isel({dim: places})
    return part.assign_coords({dim: (dim, labels.astype(dataset[dim].dtype), dataset[dim].attrs)})


def _places(dataset: Any, dim: str, first: Any, last: Any) -> slice:
    """Return the points of a dimension from one coordinate to another. Raises UserError for one that cannot be."""
    if dim not in dataset.indexes:
        numbers = [end if end is None else int(_number(dataset, dim, end)) for end in (first, last)]
        return slice(numbers[0], None if numbers[1] is None else numbers[1] + 1)
    index = date_index(dataset[dim])
    if index.dtype.kind in "iuf":
        labels: list[Any] = [end if end is None else _number(dataset, dim, end) for end in (first, last)]
    else:
        labels = [_label(end, index) for end in (first, last)]
    if index.dtype.kind == "M" and len(index) and not 1677 < index[0].year <= index[-1].year < 2262:
        labels = _as_dates(labels)
    for label in labels:
        try:
            if index.dtype.kind == "m" and is_number(str(label)):
                raise ValueError("a time has a unit")
            index.slice_indexer(label, None)
        except (TypeError, ValueError, KeyError, OverflowError, AttributeError) as error:  # the last of NaT
            kind = (
                "time, such as '5 h'," if index.dtype.kind == "m" else "date" if is_date_index(index) else "coordinate"
            )
            calendar = f" of the calendar {index.calendar}" if hasattr(index, "calendar") else ""
            raise UserError(
                f"{str(label)!r} is no {kind}{calendar} along {dim!r}, which has {_span(dataset, dim)}"
            ) from error
    places: slice = index.slice_indexer(*labels)
    return places


def _as_dates(labels: Sequence[str | None]) -> list[Any]:
    """Return the ends of dates that are texts of ISO 8601, such as a day or a year, as the first and last microsecond.

    pandas makes the last one in nanoseconds, which there are for the years 1678 to 2261 alone.
    """
    dates: list[Any] = list(labels)
    for place, label in enumerate(labels):
        with contextlib.suppress(ValueError):  # of a text of another form
            if label is not None and (len(label) <= 4 or "-" in label):
                date = np.datetime64(label)
                step = np.array(1, date.dtype.str.replace("M8", "m8"))[()]
                dates[place] = date if place == 0 else date + step - np.timedelta64(1, "us")
    return dates


def _label(end: Any, index: Any) -> str | None:
    """Return an end as an index of dates, times or texts takes it."""
    if end is None:
        return None
    if isinstance(end, int):
        return f"{end:04d}"  # a year
    text = str(end.astype("datetime64[us]") if isinstance(end, np.datetime64) else end)
    return text.removesuffix(".000000") if hasattr(index, "calendar") else text  # xarray knows no such fraction


def _number(dataset: Any, dim: str, end: Any) -> float:
    """Return an end of a dimension whose coordinates are numbers; raise UserError for another one."""
    try:
        number = float(end)
    except (TypeError, ValueError):
        number = np.nan
    if np.isnan(number):
        raise UserError(f"{end!r} is no number, but {dim!r} has those from {_span(dataset, dim)}")
    return number


def split_ends(
    dataset: Any, definition: WindowDefinition, cuts: Mapping[str, Any], gap: int
) -> list[dict[str, tuple[Any, Any]]]:
    """Return what is ``within`` each part of a Dataset that is cut at coordinates of one dimension."""
    if len(cuts) != 1:
        raise UserError("split takes one dimension and its coordinates, such as split(time='2018-01-01')")
    ((dim, labels),) = cuts.items()
    if dim not in dataset.dims:
        raise missing_name("dimension", dim, [str(name) for name in dataset.dims], "Dataset")
    if definition.edge(dim) == "periodic":
        raise UserError(f"{dim!r} is periodic, so that every cut has two sides; split along another dimension")
    check_whole("gap", gap, 0)
    is_list = isinstance(labels, (Sequence, np.ndarray)) and not isinstance(labels, (str, bytes))
    labels = list(labels) if is_list and np.ndim(labels) else [labels]
    length = dataset.sizes[dim]
    values = dataset[dim].values if dim in dataset.coords else np.arange(length)
    if not labels:
        raise UserError(f"split along {dim!r} needs coordinates; the data have {_span(dataset, dim)}")
    begins = [_first_from(dataset, dim, label) for label in labels]
    if begins != sorted(set(begins)) or begins[0] < 1 or begins[-1] >= length:
        raise UserError(
            f"split along {dim!r} at {', '.join(map(str, labels))} leaves a part without a point; the data have "
            f"{_span(dataset, dim)}; give increasing coordinates between these"
        )
    ends = []
    for begin, stop in zip([0, *begins], [*begins, length + gap], strict=True):
        if stop - gap <= begin:
            raise UserError(f"gap={gap} leaves no point of {dim!r} before the cut at {label_text(values[stop])}")
        ends.append({dim: (_plain(values[begin]), _plain(values[stop - gap - 1]))})
    return ends


def _first_from(dataset: Any, dim: str, label: Any) -> int:
    """Return the index of the first point whose coordinate is ``label`` or beyond it."""
    if label is None:
        raise UserError(f"split along {dim!r} needs a coordinate; the data have {_span(dataset, dim)}")
    return _places(dataset, dim, label, None).indices(dataset.sizes[dim])[0]


def _plain(value: Any) -> Any:
    """Return a coordinate as a number or, of a date, as text."""
    value = np.asarray(value)[()]
    if isinstance(value, (np.integer, np.floating)) and not isinstance(value, np.timedelta64):
        return value.item()
    return str(value.isoformat() if hasattr(value, "isoformat") else value)


def _span(dataset: Any, dim: str) -> str:
    if dim not in dataset.coords:
        return f"0 to {dataset.sizes[dim] - 1}"
    values = dataset[dim].values
    return f"{label_text(values[0])} to {label_text(values[-1])}"

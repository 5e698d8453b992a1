"""Reorders a Dataset like the training data, and cuts it between coordinates."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from dsinga.addons.fields.records.coordinates import (
    LONG,
    check_steps,
    date_index,
    is_date_index,
    is_time,
    months_in,
    step_text,
)
from dsinga.addons.fields.records.dataset import open_dataset, plain_units, used_variables
from dsinga.addons.fields.records.definition import WindowDefinition
from dsinga.addons.fields.records.layout import Layout, make_layout
from dsinga.addons.fields.records.longitudes import (
    CIRCLE,
    as_before,
    backwards,
    is_circle,
    is_longitude,
    with_begin,
)
from dsinga.base.arguments import check_whole
from dsinga.base.errors import UserError
from dsinga.data.array_kinds import (
    MOST_POINTS,
    chosen,
    has_labels,
    is_data_array,
    is_number,
    label_text,
    point_text,
    point_texts,
)
from dsinga.data.sources.xarray_objects import missing_name

SAME_STEP = 0.01  # relative difference of steps that are the same
logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Alignment:
    """How a Dataset was reordered like the training data.

    Attributes:
        flipped: the dimensions that are read backwards.
        rotated: the original coordinates of longitudes that now begin elsewhere.
    """

    flipped: tuple[str, ...] = ()
    rotated: Mapping[str, Any] = field(default_factory=dict)

    def undone(self, dataset: Any) -> Any:
        """Undo the reordering in a prediction."""
        for coordinate in self.rotated.values():
            dataset = as_before(dataset, coordinate)
        return backwards(dataset, self.flipped)


def describe_layout(dataset: Any, definition: WindowDefinition, layout: Layout) -> WindowDefinition:
    """Record a Dataset's layout in a definition: order of dimensions and channels, directions, steps, units."""
    names = [*definition.inputs, *definition.targets, *definition.static]
    names = [name for name in dict.fromkeys(names) if name in dataset.data_vars]
    points, steps, begins = {}, {}, {}
    for dim, axis in layout.axes.items():
        if not has_labels(dataset, dim):
            continue
        along_time = is_time(dataset, definition.along(dim))
        if is_circle(dataset[dim]):
            begins[dim] = point_text(dataset[dim].values[0])
        if dim in layout.space or along_time:
            if step := step_text(dataset[dim], along_time):
                steps[dim] = step
        elif axis.size == axis.length <= MOST_POINTS:
            points[dim] = point_texts(dataset, dim)
    variables = [
        {"name": name, "dims": map(str, dataset[name].dims), "units": str(dataset[name].attrs.get("units") or "")}
        for name in names
    ]
    return definition.replace(points=points, steps=steps, begins=begins, variable=variables)


def with_trained_layout(source: Any, definition: WindowDefinition) -> WindowDefinition:
    """Record the layout of a Dataset, or of one at a path, in a definition."""
    dataset, _ = open_dataset(source, definition)
    dataset = used_variables(dataset, definition)
    layout = make_layout(dataset, definition, has_targets=False)
    return describe_layout(dataset, definition, layout)


def align(dataset: Any, definition: WindowDefinition) -> tuple[Any, Alignment]:
    """Reorder a Dataset like the training data; also return an account of the changes.

    Points that are channels, such as levels, are chosen by their coordinates. Longitudes around the circle begin where
    they began in training, counted from -180 or from 0. The log warns of other steps and units.
    """
    if not definition.is_trained:
        return dataset, Alignment()
    for conf in definition.dim:
        if conf.points:
            dataset = chosen(dataset, conf.name, conf.points)
    flipped = []
    for conf in definition.dim:
        dim, trained = conf.name, conf.step
        if not trained or not has_labels(dataset, dim):
            continue
        check_steps(dataset, conf, definition.over_gaps)
        along_time = is_time(dataset, conf)
        step = step_text(dataset[dim], along_time)
        if not step or step == trained or months_in(step) and months_in(step) == months_in(trained):
            continue
        if is_number(step) and is_number(trained):
            if float(step) * float(trained) < 0:
                flipped.append(dim)
            if abs(abs(float(step)) - abs(float(trained))) <= SAME_STEP * abs(float(trained)):
                continue
        logger.warning("%r has the step %s, in training it had %s; windows count points", dim, step, trained)
    for variable in definition.variable:
        name, trained = variable.name, variable.units
        units = str(dataset[name].attrs.get("units", "")) if trained and name in dataset.data_vars else ""
        if units and plain_units(units) != plain_units(trained):
            logger.warning(
                "%r has the units %s, in training it had %s; see whether to convert it", name, units, trained
            )
    dataset = backwards(dataset, flipped)
    turned: dict[str, Any] = {}
    for dim, begin in [(conf.name, conf.begin) for conf in definition.dim]:
        if begin and has_labels(dataset, dim):
            before, dataset = dataset, with_begin(dataset, dim, float(begin))
            turned |= {} if dataset is before else {dim: before[dim]}
    return dataset, Alignment(tuple(flipped), turned)


def select(dataset: Any, definition: WindowDefinition) -> Any:
    """Select the part of a Dataset between a definition's coordinates, as ``ds.sel`` does.

    Decreasing coordinates, such as latitudes, accept both ends in either order. Longitudes in degrees wrap around the
    circle, for example from 350 to 10.
    """
    for dim, *ends in [(conf.name, conf.first, conf.last) for conf in definition.dim]:
        if ends == [None, None]:
            continue
        part = _between(dataset, dim, *ends)
        if not part.sizes[dim]:
            raise UserError(f"no point of {dim!r} lies within {ends[0]} to {ends[1]}; it has {_span(dataset, dim)}")
        dataset = part
    return dataset


def _between(dataset: Any, dim: str, first: Any, last: Any) -> Any:
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
    """Select the longitudes eastwards between two ends, continuing from the first."""
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
        except (TypeError, ValueError, KeyError, OverflowError, AttributeError):  # the last of NaT
            kind = (
                "time, such as '5 h'," if index.dtype.kind == "m" else "date" if is_date_index(index) else "coordinate"
            )
            calendar = f" of the calendar {index.calendar}" if hasattr(index, "calendar") else ""
            raise UserError(
                f"{str(label)!r} is no {kind}{calendar} along {dim!r}, which has {_span(dataset, dim)}"
            ) from None
    places: slice = index.slice_indexer(*labels)
    return places


def _as_dates(labels: Sequence[str | None]) -> list[Any]:
    """Convert ISO 8601 ends, such as a day or a year, to first and last microsecond."""
    dates: list[Any] = list(labels)
    for place, label in enumerate(labels):
        with contextlib.suppress(ValueError):  # of a text of another form
            if label is not None and (len(label) <= 4 or "-" in label):
                date = np.datetime64(label)
                step = np.array(1, date.dtype.str.replace("M8", "m8"))[()]
                dates[place] = date if place == 0 else date + step - np.timedelta64(1, "us")
    return dates


def _label(end: Any, index: Any) -> str | None:
    if end is None:
        return None
    text = str(end.astype("datetime64[us]") if isinstance(end, np.datetime64) else end)
    if is_date_index(index) and text.isdigit():
        return text.zfill(4)  # a year
    return text.removesuffix(".000000") if hasattr(index, "calendar") else text  # xarray knows no such fraction


def _number(dataset: Any, dim: str, end: Any) -> float:
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
    """Return the ``within`` setting of each part of a Dataset cut along one dimension."""
    if len(cuts) != 1:
        share = _share_text("time", gap)
        raise UserError(f"split takes one dimension and its coordinates, such as split(time='2018-01-01'){share}")
    ((dim, labels),) = cuts.items()
    if dim not in dataset.dims:
        raise missing_name("dimension", dim, [str(name) for name in dataset.dims], "Dataset")
    if definition.along(str(dim)).edges == "periodic":
        raise UserError(f"{dim!r} is periodic, so that every cut has two sides; split along another dimension")
    check_whole("gap", gap, 0)
    labels = labels.values[()] if is_data_array(labels) else labels
    is_list = isinstance(labels, Sequence) and not isinstance(labels, (str, bytes))
    labels = list(labels) if is_list or isinstance(labels, np.ndarray) and labels.ndim else [labels]
    length = dataset.sizes[dim]
    values = dataset[dim].values if dim in dataset.coords else np.arange(length)
    if not labels:
        raise UserError(f"split along {dim!r} needs coordinates; the data have {_span(dataset, dim)}")
    labels = [label.values[()] if is_data_array(label) else label for label in labels]
    shares = "".join(_share_text(dim, label) for label in labels[:1])
    try:
        begins = [_first_from(dataset, dim, label) for label in labels]
    except UserError as error:
        raise UserError(f"{error}{shares}") from None
    if begins != sorted(set(begins)) or begins[0] < 1 or begins[-1] >= length:
        raise UserError(
            f"split along {dim!r} at {', '.join(map(str, labels))} leaves a part without a point; the data have "
            f"{_span(dataset, dim)}; give increasing coordinates between these{shares}"
        )
    ends = []
    for begin, stop in zip([0, *begins], [*begins, length + gap], strict=True):
        if stop - gap <= begin:
            raise UserError(f"gap={gap} leaves no point of {dim!r} before the cut at {label_text(values[stop])}")
        ends.append({dim: (_text(values[begin]), _text(values[stop - gap - 1]))})
    return ends


def _share_text(dim: str, label: Any) -> str:
    """Return advice on splitting at a share of the data, if the label is one, else ""."""
    if not isinstance(label, (float, np.floating)) or not 0 < label < 1:
        return ""
    return f"; for a share of the points write split({dim}=ds[{dim!r}].values[int({label} * ds.sizes[{dim!r}])])"


def _first_from(dataset: Any, dim: str, label: Any) -> int:
    if label is None:
        raise UserError(f"split along {dim!r} needs a coordinate; the data have {_span(dataset, dim)}")
    return _places(dataset, dim, label, None).indices(dataset.sizes[dim])[0]


def _text(value: Any) -> str:
    value = np.asarray(value)[()]
    if isinstance(value, (np.integer, np.floating)) and not isinstance(value, np.timedelta64):
        return str(value.item())
    return str(value.isoformat() if hasattr(value, "isoformat") else value)


def _span(dataset: Any, dim: str) -> str:
    if dim not in dataset.coords:
        return f"0 to {dataset.sizes[dim] - 1}"
    values = dataset[dim].values
    return f"{label_text(values[0])} to {label_text(values[-1])}"

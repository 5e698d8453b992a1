"""Groups label values by variable, lead, date, region or point, for errors of each group: ``evaluate(by=...)``."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from dsinga.addons.fields.records.axis import Axis
from dsinga.addons.fields.records.coordinates import date_index, is_date_index, is_time
from dsinga.addons.fields.records.field_windows import FieldWindows
from dsinga.addons.fields.records.layout import ChannelGroup
from dsinga.addons.fields.records.longitudes import CIRCLE, is_longitude, places_of
from dsinga.base.arguments import value_text
from dsinga.base.errors import UserError
from dsinga.base.registry import listed, nearest
from dsinga.data.array_kinds import is_data_array

NONE = -1  # the group of a number that is in none


class LabelPoints:
    """Finds where each label value (n, C, *space) lies along the dimensions of a Dataset."""

    def __init__(self, windows: FieldWindows):
        if not windows.has_labels:
            raise UserError("the windows have no targets with which predictions could be compared; name them: targets=")
        self.windows, self.layout = windows, windows.layout
        parts = self.layout.targets
        self.names = list(dict.fromkeys(part.name for part in parts))
        numbers = [self.names.index(part.name) for part in parts]
        self.variables = np.repeat(numbers, [part.channels for part in parts])
        self._offsets: dict[str, np.ndarray] = {}  # of each channel in the window, by dimension of channels
        for dim in self.layout.axes:
            columns = [_offsets(part, self.layout.axes[dim]) for part in parts]
            self._offsets[dim] = np.concatenate(columns) if columns else np.empty(0, np.int64)

    @property
    def channels(self) -> int:
        """The number of channels of a label, without weights."""
        return len(self.variables)

    @property
    def dims(self) -> list[str]:
        """The dimensions that all targets have."""
        return [dim for dim in self.layout.axes if all(dim in part.dims for part in self.layout.targets)]

    def check_dim(self, dim: str, what: str) -> None:
        """Raise UserError for a dimension that not all targets have."""
        if dim not in self.dims:
            raise UserError(
                f"{what} needs the dimension {dim!r}, which not all targets have; they have {listed(self.dims)}"
            )

    def points(self, dim: str, rows: Any) -> np.ndarray:
        """Return the point along a dimension of each label value, broadcastable to (n, C, *space)."""
        axis = self.layout.axes[dim]
        starts = self.windows.positions(rows)[dim] + axis.offset(is_target=True)
        starts = starts[:1] if len(starts) and (starts == starts[0]).all() else starts
        space = self.layout.space
        if dim in space:
            sides = [-1 if each == dim else 1 for each in space]
            points = starts.reshape(-1, 1, *(1,) * len(space)) + np.arange(axis.target_size).reshape(1, 1, *sides)
        else:
            points = (starts[:, None] + self._offsets[dim]).reshape(len(starts), -1, *(1,) * len(space))
        return points % axis.length if axis.edge == "periodic" else points

    def used_points(self, dim: str) -> np.ndarray:
        """Return the points along a dimension that labels have, increasing."""
        rows = np.arange(len(self.windows))
        starts = np.unique(self.windows.positions(rows)[dim], return_index=True)[1]
        return np.unique(self.points(dim, rows[np.sort(starts)]))

    def time(self, what: str) -> str:
        """Return the targets' dimension of time."""
        dataset, definition = self.windows.dataset, self.windows.definition
        times = [dim for dim in self.dims if is_time(dataset, definition.along(dim))]
        if not times:
            raise UserError(f"{what} needs targets that lie along time; these have {listed(self.dims)}")
        return max(times, key=lambda dim: self.layout.axes[dim].lead > 0)  # the first with a lead, else the first

    def leads(self, dim: str) -> np.ndarray:
        """Return the lead of each channel, (C,): how many points of time after the last input."""
        axis = self.layout.axes[dim]
        ahead = axis.offset(is_target=True) - (axis.size - 1)
        return ahead + (self._offsets[dim] if dim not in self.layout.space else np.zeros(self.channels, np.int64))


def _offsets(part: ChannelGroup, axis: Axis) -> np.ndarray:
    """Return each channel's distance along a dimension from the first point of the first lead."""
    dims = part.dims[: len(part.channel_sizes)]
    if axis.name not in dims:
        return np.zeros(math.prod(part.channel_sizes), np.int64)
    later = axis.offset(is_target=True, number=part.number) - axis.offset(is_target=True)
    return later + np.indices(part.channel_sizes)[dims.index(axis.name)].reshape(-1)


SEASONS = ("DJF", "MAM", "JJA", "SON")
OF_DATES = ("season", "month", "year", "dayofyear", "hour")  # as the accessor ``dt`` of xarray has them


@dataclass(frozen=True)
class Grouping:
    """Assigns each label value to a group, such as its month or region.

    Attributes:
        labels: the coordinate of each group: an array (groups,) or an xarray Variable; None without one.
        groups: returns, for rows, arrays of group numbers that broadcast to (n, C, *space); ``NONE`` is no group.
        points: the points of the data that are the groups, if the dimension is one of the data.
    """

    dim: str
    labels: Any
    count: int
    groups: Callable[[Any], list[np.ndarray]] = field(repr=False)
    points: np.ndarray | None = None


def make_groupings(points: LabelPoints, by: Any) -> list[Grouping]:
    """Create the groupings in ``by``: names, regions by name, and DataArrays."""
    keys = [by] if isinstance(by, (str, Mapping)) or is_data_array(by) else by
    if not isinstance(keys, Iterable):
        raise UserError(f"by takes names, regions or DataArrays, such as ('variable', 'season'), not {value_text(by)}")
    groupings = [_grouping(points, key) for key in keys]
    dims = [grouping.dim for grouping in groupings]
    for dim in dims:
        if dims.count(dim) > 1:
            raise UserError(f"by names {dim!r} twice; give it once")
    return groupings


def _grouping(points: LabelPoints, key: Any) -> Grouping:
    if isinstance(key, Mapping):
        return _regions(points, key)
    if is_data_array(key):
        return _areas(points, key)
    if key == "variable":
        return Grouping(
            "variable", points.names, len(points.names), lambda rows: [_of_channels(points, points.variables)]
        )
    if key == "lead":
        return _leads(points)
    if key in points.dims:
        return _coordinates(points, key)
    if key in OF_DATES:
        return _dates(points, key)
    names = ["variable", "lead", *OF_DATES, *points.dims]
    raise UserError(
        f"by takes no {key!r}{nearest(str(key), names) or f'; it takes {listed(names)}, regions and DataArrays'}"
    )


def _of_channels(points: LabelPoints, numbers: np.ndarray) -> np.ndarray:
    return numbers.reshape(1, -1, *(1,) * len(points.layout.space))


def _leads(points: LabelPoints) -> Grouping:
    dim = points.time("by='lead'")
    if dim in points.layout.space:
        raise UserError(
            f"by='lead' needs targets whose steps of {dim!r} are channels, not points of space; give {dim!r}"
        )
    ahead = points.leads(dim)
    numbers, groups = np.unique(ahead, return_inverse=True)
    return Grouping(
        "lead", _lead_labels(points, dim, numbers), len(numbers), lambda rows: [_of_channels(points, groups)]
    )


def _lead_labels(points: LabelPoints, dim: str, ahead: np.ndarray) -> np.ndarray:
    """Return leads as time spans if equal for all windows, else as numbers of points."""
    dataset = points.windows.dataset
    if dim not in dataset.indexes or not is_date_index(index := date_index(dataset[dim])):
        return ahead
    axis = points.layout.axes[dim]
    last = np.unique(points.windows.positions(np.arange(len(points.windows)))[dim]) + axis.size - 1
    last = last[(last + ahead.min() >= 0) & (last + ahead.max() < axis.length)]
    spans = index.values[last[:, None] + ahead] - index.values[last][:, None]
    if not len(spans) or not (spans == spans[0]).all():
        return ahead
    return spans[0].astype("timedelta64[us]").astype("timedelta64[ns]")


def _coordinates(points: LabelPoints, dim: str) -> Grouping:
    used = points.used_points(dim)
    dataset = points.windows.dataset
    labels = dataset[dim].variable.isel({dim: used}) if dim in dataset.coords else used
    return Grouping(dim, labels, len(used), lambda rows: [np.searchsorted(used, points.points(dim, rows))], points=used)


def _dates(points: LabelPoints, key: str) -> Grouping:
    dim = points.time(f"by={key!r}")
    dataset = points.windows.dataset
    if dim not in dataset.coords or not is_date_index(date_index(dataset[dim])):
        raise UserError(f"by={key!r} needs dates, which the coordinate {dim!r} does not have")
    dates = type(dataset[dim])(date_index(dataset[dim]), dims=dim)
    values = np.asarray(getattr(dates.dt, key).values)
    known = set(values[points.used_points(dim)].tolist())
    labels = [season for season in SEASONS if season in known] if key == "season" else sorted(known)
    numbers = np.array([labels.index(value) if value in known else NONE for value in values.tolist()])
    return Grouping(key, labels, len(labels), lambda rows: [numbers[points.points(dim, rows)]])


def _areas(points: LabelPoints, array: Any) -> Grouping:
    """Group by the area names or numbers in a DataArray; NaN is in none."""
    import pandas  # type: ignore[import-untyped]

    name = str(array.name or "region")
    dims = [str(dim) for dim in array.dims]
    dataset = points.windows.dataset
    for dim in dims:
        points.check_dim(dim, f"the DataArray {name!r}")
        places = places_of(dataset, array, dim)  # windows may lie in the order of training
        if places is None:
            raise UserError(
                f"the DataArray {name!r} has other points of {dim!r} than the data of the windows; give it at these: "
                f"{name}.sel({dim}=windows.dataset.{dim}, method='nearest')"
            )
        array = array.isel({dim: places})
    codes, labels = pandas.factorize(array.values.reshape(-1), sort=True)
    numbers = codes.reshape(array.shape)
    return Grouping(name, labels, len(labels), lambda rows: [numbers[_index(points, dims, rows)]])


def _regions(points: LabelPoints, regions: Mapping[Any, Any]) -> Grouping:
    members = [_region(points, str(name), bounds) for name, bounds in regions.items()]
    if not members:
        raise UserError("by has regions without any; give some, such as {'tropics': {'lat': (-20, 20)}}")

    def groups(rows: Any) -> list[np.ndarray]:
        return [
            np.where(inside[_index(points, dims, rows)], number, NONE) for number, (dims, inside) in enumerate(members)
        ]

    return Grouping("region", list(map(str, regions)), len(members), groups)


def _region(points: LabelPoints, name: str, bounds: Any) -> tuple[list[str], np.ndarray]:
    dataset = points.windows.dataset
    if not isinstance(bounds, Mapping) or not bounds:
        raise UserError(f"the region {name!r} takes ends by coordinate, such as {{'lat': (35, 70), 'lon': (-10, 40)}}")
    inside: Any = True
    for coordinate, ends in bounds.items():
        if coordinate not in dataset.coords or dataset[coordinate].dtype.kind not in "iuf":
            known = [str(each) for each in dataset.coords if dataset[each].dtype.kind in "iuf"]
            raise UserError(
                f"the region {name!r} names {coordinate!r}, which is no coordinate of numbers of the data"
                f"{nearest(str(coordinate), known) or f'; these are {listed(known)}'}"
            )
        if not isinstance(ends, Sequence) or isinstance(ends, str) or len(ends) != 2:
            raise UserError(f"the region {name!r} takes the first and last {coordinate!r}, not {ends!r}")
        inside = _between(dataset[coordinate], *map(float, ends)) & inside
    dims = [str(dim) for dim in inside.dims]
    for dim in dims:
        points.check_dim(dim, f"the region {name!r}")
    if not inside.any():
        raise UserError(f"no point of the data is in the region {name!r}; see the ends of {listed(map(repr, bounds))}")
    return dims, inside.values


def _between(coordinate: Any, first: float, last: float) -> Any:
    """Mark the points of a coordinate between two ends; longitudes wrap around the circle."""
    if is_longitude(coordinate):
        width = last - first if last >= first else (last - first) % CIRCLE
        return (coordinate - first) % CIRCLE <= width
    low, high = sorted((first, last))
    return (coordinate >= low) & (coordinate <= high)


def _index(points: LabelPoints, dims: Sequence[str], rows: Any) -> tuple[np.ndarray, ...]:
    return tuple(points.points(dim, rows) for dim in dims)

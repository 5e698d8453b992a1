"""Groups of the numbers of labels: by variable, lead, season, region, or point, each with its coordinate."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from dsinga.addons.fields.evaluation.label_points import NONE, LabelPoints
from dsinga.addons.fields.records.longitudes import CIRCLE, is_longitude, places_of
from dsinga.addons.fields.records.time_gaps import date_index, is_date_index
from dsinga.base.arguments import shown
from dsinga.base.errors import UserError
from dsinga.base.registry import listed, nearest
from dsinga.data.array_kinds import is_data_array

SEASONS = ("DJF", "MAM", "JJA", "SON")
OF_DATES = ("season", "month", "year", "dayofyear", "hour")  # as the accessor ``dt`` of xarray has them


@dataclass(frozen=True)
class Grouping:
    """Divides the numbers of labels into groups.

    Attributes:
        dim: the dimension of the result.
        labels: the coordinate of each group: an array (groups,) or an xarray Variable; None without one.
        count: the number of groups.
        groups: returns arrays of numbers of groups, for rows, that broadcast to (n, C, *space); ``NONE`` is no group.
            They are several where groups overlap.
        points: the points of the data that are the groups, where the dimension is one of these.
    """

    dim: str
    labels: Any
    count: int
    groups: Callable[[Any], list[np.ndarray]] = field(repr=False)
    points: np.ndarray | None = None


def make_groupings(points: LabelPoints, by: Any) -> list[Grouping]:
    """Return the groupings of ``by``: names, regions by name, and DataArrays. Raises UserError for one that is none."""
    keys = [by] if isinstance(by, (str, Mapping)) or is_data_array(by) else by
    if not isinstance(keys, Iterable):
        raise UserError(f"by takes names, regions or DataArrays, such as ('variable', 'season'), not {shown(by)}")
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
    """Return leads as spans of time where they are the same for all windows, else as numbers of points."""
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
    """Return the groups of the values of a DataArray: names or numbers of areas by point; NaN is in none."""
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
    """Return the groups of regions, each the first and last coordinate by name; they may overlap."""
    members = [_region(points, str(name), bounds) for name, bounds in regions.items()]
    if not members:
        raise UserError("by has regions without any; give some, such as {'tropics': {'lat': (-20, 20)}}")

    def groups(rows: Any) -> list[np.ndarray]:
        return [
            np.where(inside[_index(points, dims, rows)], number, NONE) for number, (dims, inside) in enumerate(members)
        ]

    return Grouping("region", list(map(str, regions)), len(members), groups)


def _region(points: LabelPoints, name: str, bounds: Any) -> tuple[list[str], np.ndarray]:
    """Return the dimensions of a region, and which points of these are inside."""
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
    """Return which points of a coordinate lie between two ends; longitudes go on round the circle."""
    if is_longitude(coordinate):
        width = last - first if last >= first else (last - first) % CIRCLE
        return (coordinate - first) % CIRCLE <= width
    low, high = sorted((first, last))
    return (coordinate >= low) & (coordinate <= high)


def _index(points: LabelPoints, dims: Sequence[str], rows: Any) -> tuple[np.ndarray, ...]:
    return tuple(points.points(dim, rows) for dim in dims)

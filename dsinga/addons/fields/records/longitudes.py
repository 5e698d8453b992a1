"""Reorders points along dimensions: rotates longitudes, reverses directions, matches another Dataset."""

from __future__ import annotations

from typing import Any

import numpy as np

LONGITUDES = ("lon", "longitude")


CIRCLE = 360.0  # degrees


SAME_POINT = 1e-3  # of a step: longitudes that differ less are one point


def is_longitude(coordinate: Any) -> bool:
    """Whether an xarray coordinate has longitudes in degrees, by its name, standard name or units."""
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
    """Return the index of longitude ``begin``, modulo 360, on a circle; None if missing."""
    values = coordinate.values.astype(np.float64)
    distance = np.abs((values - begin + CIRCLE / 2) % CIRCLE - CIRCLE / 2)
    place = int(np.argmin(distance))
    return place if distance[place] <= SAME_POINT * abs(values[1] - values[0]) else None


def rotated(dataset: Any, dim: str, first: int) -> Any:
    """Rotate a Dataset along a dimension to begin at point ``first``.

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
    """Reverse a Dataset along some dimensions."""
    return dataset.isel({dim: slice(None, None, -1) for dim in dims}) if dims else dataset


def with_begin(dataset: Any, dim: str, begin: float) -> Any:
    """Rotate a circle of longitudes to begin at ``begin``, increasing; return other Datasets unchanged.

    So -180 to 180 becomes 0 to 360.
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
    """Restore the order and numbers of the longitudes in ``before``."""
    dim = str(before.name)
    places = np.array([first_point(before, float(value)) or 0 for value in dataset[dim].values])
    first = int(np.argmin(places))
    return rotated(dataset, dim, first).assign_coords({dim: before.isel({dim: np.roll(places, -first)}).variable})


def places_of(dataset: Any, array: Any, dim: str) -> np.ndarray | None:
    """Return the index in ``array`` of each point of a Dataset along ``dim``; None if one is missing.

    The order may differ, and longitudes may differ by 360. Without coordinates both have the same points.
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

"""The Dataset of a prediction: dimensions, coordinates and attributes of the targets around a dask array."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import dask.array as da
import numpy as np

from dsinga.data.fields.applied import AppliedWindows, Target
from dsinga.data.fields.axis import Axis
from dsinga.errors import UserError


def predicted_dataset(windows: AppliedWindows, prediction: da.Array) -> Any:
    """Return the Dataset of ``prediction`` (windows of each dimension of samples ..., C', points of space ...)."""
    import xarray

    variables, channel = {}, 0
    for target in windows.targets:
        count = windows.channels(target)
        index = (slice(None),) * len(windows.samples) + (slice(channel, channel + count),)
        channel += count
        attributes = windows.dataset[target.name].attrs if target.known else {}
        variables[target.name] = (target.dims, arranged(windows, target, prediction[index]), attributes)
    dims = dict.fromkeys(dim for target in windows.targets for dim in target.dims)
    points = {dim: target_points(windows, windows.layout.axes[dim]) for dim in dims}
    return xarray.Dataset(variables, predicted_coordinates(windows, points), windows.dataset.attrs)


def arranged(windows: AppliedWindows, target: Target, array: da.Array) -> da.Array:
    """Return the numbers of a target along its dimensions.

    ``array`` is (windows of each dimension of samples ..., channels, points of space ...).
    """
    samples = [axis.name for axis in windows.samples]
    sizes = [windows.layout.axes[dim].size for dim in target.channel_dims]
    # (samples ..., steps of each dimension of channels ..., space ...)
    array = array.reshape(*array.shape[: len(samples)], *sizes, *array.shape[len(samples) + 1 :])
    names = [*((dim, "window") for dim in samples), *((dim, "step") for dim in target.channel_dims)]
    names += [(dim, "point") for dim in windows.layout.space]
    for axis in windows.samples:
        if axis.name not in target.dims:  # its only window
            place = names.index((axis.name, "window"))
            array, names = array[(slice(None),) * place + (0,)], names[:place] + names[place + 1 :]
    order, shape = [], []
    for dim in target.dims:
        places = [place for place, (name, _) in enumerate(names) if name == dim]
        order += places
        shape.append(int(np.prod([array.shape[place] for place in places])))
    return array.transpose(order).reshape(shape)


def target_points(windows: AppliedWindows, axis: Axis) -> np.ndarray:
    """Return the point of the data of each number of the prediction along a dimension, maybe beyond its end."""
    if axis.name in windows.layout.space:
        return np.arange(axis.length) + axis.lead
    return (axis.starts[:, None] + axis.lead + np.arange(axis.size)).reshape(-1)


def predicted_coordinates(windows: AppliedWindows, points: Mapping[str, np.ndarray]) -> dict[str, Any]:
    """Return the coordinates of a prediction at these points of the data.

    Those of a dimension that go beyond the data continue them, the others are left out there.
    """
    coordinates = {}
    for name, coordinate in windows.dataset.coords.items():
        dims = [str(dim) for dim in coordinate.dims]
        if any(dim not in points for dim in dims):
            continue
        if dims == [str(name)]:
            coordinates[str(name)] = continued(coordinate, points[dims[0]])
        elif all(0 <= points[dim].min() and points[dim].max() < coordinate.sizes[dim] for dim in dims):
            coordinates[str(name)] = coordinate.variable.isel({dim: points[dim] for dim in dims})
    return coordinates


def continued(coordinate: Any, points: np.ndarray) -> Any:
    """Return the coordinate of a dimension at points that may lie before and beyond the data, as an xarray Variable.

    Raises UserError where its steps follow no rule by which it could go on.
    """
    import xarray

    length = coordinate.sizes[coordinate.dims[0]]
    inside = coordinate.variable.isel({coordinate.dims[0]: points.clip(0, length - 1)})
    inside = xarray.Variable(inside.dims, inside.values, coordinate.attrs)
    outside = np.flatnonzero((points < 0) | (points >= length))
    if not len(outside):
        return inside
    index = coordinate.to_index()
    values = np.array(inside.values)
    for place in outside:
        end = 0 if points[place] < 0 else length - 1
        values[place] = _beyond(coordinate.name, index, end, int(points[place]) - end)
    return xarray.Variable(inside.dims, values, coordinate.attrs)


def _beyond(name: Any, index: Any, end: int, steps: int) -> Any:
    """Return the coordinate that lies so many steps beyond the end of an index."""
    import xarray

    steps_between = index[1:] - index[:-1] if len(index) > 1 else None
    if steps_between is not None and (steps_between == steps_between[0]).all():
        return index[end] + steps * steps_between[0]
    infer: Any = xarray.infer_freq
    frequency = infer(index) if len(index) > 2 and index.dtype.kind in "MO" else None
    if frequency is None:
        raise UserError(
            f"the prediction lies beyond the end of {name!r}, whose steps follow no rule by which it could go on; give "
            "the dataset without its last steps, or a regular coordinate"
        )
    return index[[end]].shift(steps, frequency)[0]

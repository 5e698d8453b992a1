"""Wraps a predicted dask array in a Dataset with the coordinates and attributes of the targets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import dask.array as da
import numpy as np
import xarray

from dsinga.addons.fields.lead_feedback import lead_axis
from dsinga.addons.fields.records.anomalies import with_climatology
from dsinga.addons.fields.records.axis import Axis
from dsinga.addons.fields.records.climatology import MARKS
from dsinga.addons.fields.records.coordinate_extrapolation import related_at
from dsinga.addons.fields.records.dataset import BOUNDS, MAPPING
from dsinga.addons.fields.records.layout import LEAD, VALID_TIME
from dsinga.addons.fields.records.prediction_windows import CLASS, PredictionWindows, Target
from dsinga.cluster.dask.written_arrays import written_apart
from dsinga.data.own_inputs import check_apart, inputs_of

SOURCE = "source"  # of the encoding of a Dataset and its variables: the path that they are read from, or several
# Encodings that coordinates keep. Targets do not keep how they were packed: predictions may be larger.
KEPT = ("units", "calendar", "dtype", "_FillValue")


def predicted_dataset(windows: PredictionWindows, prediction: da.Array) -> Any:
    """Wrap ``prediction`` (windows of each dimension of samples ..., C', points of space ...) in a Dataset."""
    variables = {
        target.name: (target.dims, arranged(windows, target, prediction), attributes(windows, target))
        for target in windows.targets
    }
    dims = dict.fromkeys(dim for target in windows.targets for dim in target.dims)
    points = {dim: target_points(windows, windows.axis(dim)) for dim in dims}
    return _lazy(windows, variables, predicted_coordinates(windows, points), points)


def dataset_of_leads(windows: PredictionWindows, predictions: Sequence[da.Array]) -> Any:
    """Wrap the predictions of several leads, arrays as for :func:`predicted_dataset`, in a Dataset.

    Targets have the dimension "lead" after time; along time, windows lie at the last point of their inputs.
    "valid_time" is the time of each prediction.
    """
    axis = lead_axis(windows.layout)
    count, steps = len(axis.starts), axis.size
    variables = {}
    for target in windows.targets:
        place = target.dims.index(axis.name)
        leads = [arranged(windows, target, prediction) for prediction in predictions]
        leads = [array.reshape(*array.shape[:place], count, steps, *array.shape[place + 1 :]) for array in leads]
        with_lead = (*target.dims[: place + 1], LEAD, *target.dims[place + 1 :])
        variables[target.name] = (with_lead, da.concatenate(leads, axis=place + 1), attributes(windows, target))
    dims = dict.fromkeys(dim for target in windows.targets for dim in target.dims)
    points = {dim: target_points(windows, windows.axis(dim)) for dim in dims}
    points[axis.name] = axis.starts + axis.size - 1  # the last point of the inputs
    coordinates = predicted_coordinates(windows, points)
    ahead = (np.arange(1, len(predictions) + 1)[:, None] * axis.lead + np.arange(1 - steps, 1)).reshape(-1)
    coordinates |= lead_coordinates(windows, axis, points[axis.name], ahead)
    return _lazy(windows, variables, coordinates, points)


def _lazy(
    windows: PredictionWindows,
    variables: Mapping[str, Any],
    coordinates: Mapping[str, Any],
    points: Mapping[str, np.ndarray],
) -> Any:
    dataset = with_related(LazyDataset(variables, coordinates, windows.dataset.attrs), windows, points)
    dataset = windows.alignment.undone(dataset)
    numbers = windows.numbers[0] if windows.numbers else None
    if (climatology := windows.definition.climatology) and numbers != CLASS:
        dataset = with_climatology(dataset, list(variables), climatology, LEAD, VALID_TIME, numbers)
    read = [*sources(windows.dataset.encoding)]
    for variable in windows.dataset.data_vars.values():
        read += inputs_of(variable.variable._data)
    for each in (dataset, *dataset.data_vars.values()) if read else ():
        each.encoding[SOURCE] = tuple(dict.fromkeys(read))
        if isinstance(each, xarray.DataArray) and isinstance(each.variable._data, da.Array):
            written_apart(each.variable._data, read)
    return dataset


def lazy_array(array: Any, dims: Sequence[str], coordinates: Mapping[Any, Any]) -> Any:
    """Wrap a predicted dask array as a DataArray that refuses to overwrite its own input."""
    result = LazyDataArray(array, dims=dims, coords=coordinates)
    result.encoding[SOURCE] = array.inputs
    return result


def with_related(dataset: Any, windows: PredictionWindows, points: Mapping[str, np.ndarray]) -> Any:
    """Add the CF grid mappings and bounds that a prediction names.

    Coordinates no longer name bounds that are unknown beyond the data.
    """
    gaps = {dim: windows.axis(dim).gaps for dim in points}
    related = related_at(windows.related, windows.dataset, points, gaps)
    dataset = dataset.assign(related)
    for name, variable in dataset.variables.items():
        known = windows.dataset.variables.get(name)
        encoding = {} if known is None else known.encoding
        for key in (MAPPING, *BOUNDS, *(KEPT if name in dataset.coords else ("_FillValue",))):
            if key in encoding and _fits(key, encoding[key], variable):  # where xarray has decoded it
                variable.encoding[key] = encoding[key]
        if name in dataset.coords and "dtype" in encoding:
            variable.encoding.setdefault("_FillValue", None)  # xarray would give it one that the file did not have
        for key in BOUNDS:
            if variable.attrs.get(key) in set(windows.related) - set(related):
                del variable.attrs[key]
    return dataset


def _fits(key: str, value: Any, variable: Any) -> bool:
    """Whether an encoding suits a prediction: no integers for dates, a fill value exact in float32."""
    if key == "dtype":
        return np.dtype(value).kind == "f" or variable.dtype.kind in "iu"
    is_number = isinstance(value, (float, np.floating)) and variable.dtype == np.float32
    return not is_number or bool(np.isnan(value)) or float(np.float32(value)) == float(value)


def lead_coordinates(windows: PredictionWindows, axis: Axis, points: np.ndarray, ahead: np.ndarray) -> dict[str, Any]:
    """Create the coordinates "lead" and "valid_time" of predictions ``ahead`` points after ``points``.

    A lead is a difference of times, or the number of points if differences vary between windows.
    """
    if axis.name not in windows.dataset.coords:
        return {LEAD: (LEAD, ahead)}
    valid = windows.extrapolated(axis.name, (points[:, None] + ahead).reshape(-1)).values.reshape(
        len(points), len(ahead)
    )
    coordinate, leads = windows.dataset[axis.name], ahead
    if coordinate.dtype.kind in "iufMO" and not isinstance(valid[0, 0], str):
        differences = valid - windows.extrapolated(axis.name, points).values[:, None]
        leads = differences[0] if (differences == differences[0]).all() else ahead
    leads = leads.astype("timedelta64[us]").astype("timedelta64[ns]") if leads.dtype.kind == "O" else leads  # of cftime
    known = {key: value for key, value in coordinate.attrs.items() if key not in BOUNDS}
    return {LEAD: (LEAD, leads), VALID_TIME: xarray.Variable((axis.name, LEAD), valid, known)}


def attributes(windows: PredictionWindows, target: Target) -> Mapping[Any, Any]:
    """Return the attributes of a target; its units in training if the Dataset lacks it."""
    if target.known:
        found: Mapping[Any, Any] = windows.dataset[target.name].attrs
        return found
    units = next((each.units for each in windows.definition.variable if each.name == target.name), "")
    return {"units": units} if units else {}


def arranged(windows: PredictionWindows, target: Target, array: da.Array) -> da.Array:
    """Arrange the axes of a target's prediction in the target's order."""
    samples = [axis.name for axis in windows.samples]
    array = array[(slice(None),) * len(samples) + (windows.channel_slice(target),)]
    sizes = [windows.axis(dim).size for dim in target.channel_dims]
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


def target_points(windows: PredictionWindows, axis: Axis) -> np.ndarray:
    """Return the index in the data, or beyond its end, of each predicted point along a dimension."""
    if axis.name in windows.layout.space:
        return np.arange(axis.length) + axis.lead
    return (axis.starts[:, None] + axis.lead + np.arange(axis.size)).reshape(-1)


def predicted_coordinates(windows: PredictionWindows, points: Mapping[str, np.ndarray]) -> dict[str, Any]:
    """Return the coordinates of a prediction at these points of the data.

    A dimension's own coordinate is extrapolated beyond the data; others are left out there.
    """
    coordinates: dict[str, Any] = {}
    if windows.numbers is not None and windows.numbers[0] != CLASS:
        coordinates[windows.numbers[0]] = (windows.numbers[0], list(windows.numbers[1]))
    left_out = {windows.numbers[0]} if windows.numbers else set()  # the data may have one point along it
    if windows.definition.climatology:  # which is added again
        left_out.update(MARKS)
    for name, coordinate in windows.dataset.coords.items():
        dims = [str(dim) for dim in coordinate.dims]
        if name in left_out or any(dim not in points for dim in dims):
            continue
        if dims == [str(name)]:
            coordinates[str(name)] = windows.extrapolated(dims[0], points[dims[0]])
        elif all(0 <= points[dim].min() and points[dim].max() < coordinate.sizes[dim] for dim in dims):
            coordinates[str(name)] = coordinate.variable.isel({dim: points[dim] for dim in dims})
    return coordinates


def sources(encoding: Mapping[Any, Any]) -> tuple[str, ...]:
    """Return the paths and URLs that a Dataset was opened from, by its encoding."""
    source = encoding.get(SOURCE) or ()
    return (source,) if isinstance(source, str) else tuple(source)


class _WrittenApart:
    """Methods that write a Dataset or variable, and refuse to overwrite its own input."""

    __slots__ = ()

    def to_zarr(self: Any, store: Any = None, *args: Any, **kwargs: Any) -> Any:
        """Write to a zarr store as xarray does. Raises UserError if that is the input."""
        group = kwargs.get("group", args[3] if len(args) > 3 else None)
        check_apart(store, sources(self.encoding), group or "")
        return super().to_zarr(store, *args, **kwargs)  # type: ignore[misc]

    def to_netcdf(self: Any, path: Any = None, *args: Any, **kwargs: Any) -> Any:
        """Write to a file as xarray does. Raises UserError if that is the input."""
        check_apart(path, sources(self.encoding))
        return super().to_netcdf(path, *args, **kwargs)  # type: ignore[misc]


class LazyDataset(_WrittenApart, xarray.Dataset):  # type: ignore[no-untyped-call]
    """A Dataset computed lazily from an input file, which refuses to overwrite that input."""

    __slots__ = ()

    def __getitem__(self, key: Any) -> Any:
        item = super().__getitem__(key)
        if isinstance(item, xarray.DataArray):
            item.__class__ = LazyDataArray  # a copy would not share its attributes with this Dataset
        return item

    def compute(self, **kwargs: Any) -> xarray.Dataset:  # type: ignore[override]
        """Return a plain Dataset in memory, which may be written anywhere."""
        computed = super().compute(**kwargs)
        return xarray.Dataset(computed.data_vars, computed.coords, computed.attrs)


class LazyDataArray(_WrittenApart, xarray.DataArray):  # type: ignore[no-untyped-call]
    """A variable of a :class:`LazyDataset`; its encoding names the input."""

    __slots__ = ()

    def compute(self, **kwargs: Any) -> xarray.DataArray:  # type: ignore[override]
        """Return a plain DataArray in memory, which may be written anywhere."""
        return xarray.DataArray(super().compute(**kwargs))

    def to_dataset(self, *args: Any, **kwargs: Any) -> LazyDataset:
        """Return a Dataset that also refuses to overwrite the input."""
        plain = super().to_dataset(*args, **kwargs)
        dataset = LazyDataset(plain.data_vars, plain.coords, plain.attrs)
        if SOURCE in self.encoding:
            dataset.encoding[SOURCE] = self.encoding[SOURCE]
        return dataset

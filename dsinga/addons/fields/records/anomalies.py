"""Subtracts a climatology from a Dataset's variables when they are read, and adds it to predictions."""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np
from xarray import Variable
from xarray.backends import BackendArray
from xarray.core.indexing import IndexingSupport, LazilyIndexedArray, explicit_indexing_adapter

from dsinga.addons.fields.records.climatology import (
    ANOMALY,
    MARKS,
    FieldClimatology,
    climatology_of,
    dates_of,
    values_at,
)
from dsinga.base.errors import UserError
from dsinga.base.registry import listed

PARAMETER = "parameter"  # the dimension of the parameters of a distribution


class _Field:
    """The climatology of one variable at any region, given as an index for each dimension."""

    def __init__(self, means: Any, by: str, dates: Any, dims: tuple[str, ...]):
        self._means, self._by, self._dates, self._dims = means.drop_vars(list(means.coords)), by, dates, dims

    @property
    def time(self) -> str:
        return str(self._dates.dims[0])

    def read(self, key: tuple[Any, ...]) -> np.ndarray:
        keys = dict(zip(self._dims, key, strict=True))
        (time,) = self._dates.dims
        dates = self._dates.isel({time: np.atleast_1d(np.arange(self._dates.size)[keys[time]])})
        means = self._means.isel({dim: each for dim, each in keys.items() if dim != time})
        values = values_at(means, dates, self._by)
        if np.ndim(np.empty(self._dates.size)[keys[time]]) == 0:
            return np.asarray(values[0])
        before = self._dims[: self._dims.index(time)]
        return np.moveaxis(values, 0, sum(dim in means.dims for dim in before))


class _Anomalies(BackendArray):
    """A lazily read variable minus its climatology, float32."""

    def __init__(self, variable: Any, field: _Field):
        self._variable, self._field = variable, field
        self.shape, self.dtype = variable.shape, np.dtype(np.float32)

    def __getitem__(self, key: Any) -> Any:
        return explicit_indexing_adapter(key, self.shape, IndexingSupport.OUTER, self._read)

    def _read(self, key: tuple[Any, ...]) -> np.ndarray:
        return _added(self._variable[key].values, self._field.read(key), -1)


def anomalies(dataset: Any, text: str) -> Any:
    """Subtract a climatology from the variables of a Dataset that it covers.

    Variables that are already its anomalies stay the same.
    """
    if not text:
        return dataset
    climatology = climatology_of(text)
    means = climatology.means
    names = [name for name in dataset.data_vars if name in means]
    if not names:
        raise UserError(
            f"the climatology has {listed(map(repr, means))}, and the windows none of these, but "
            f"{listed(map(repr, dataset.data_vars))}; take it of the variables of the windows"
        )
    number = zlib.crc32(text.encode())
    changed, time = {}, None
    for name in names:
        if not _is_anomaly(dataset, name, number):
            field = _field(dataset, name, climatology)
            changed[name], time = _with_field(dataset[name].variable, field, -1, {ANOMALY: number}), field.time
    if time is None:
        return dataset
    attributes = {"long_name": "the climatology that was subtracted"}
    marks = (time, np.full(dataset.sizes[time], number), attributes), ((), number, attributes)
    return dataset.assign(changed).assign_coords(dict(zip(MARKS, marks, strict=True)))


def _is_anomaly(dataset: Any, name: Any, number: int) -> bool:
    """Whether a variable is an anomaly from this climatology."""
    kept = dataset.variables[name].encoding.get(ANOMALY)
    coordinates = [mark for mark in MARKS if mark in dataset.coords]
    marks = {number for mark in coordinates for number in np.unique(dataset[mark].values).tolist()}
    if kept is None and not marks:
        return False
    if kept is None or any(mark != mark for mark in marks):
        raise UserError(
            f"{name!r} was made from anomalies from a climatology, by arithmetic, a file, or with other data, so that "
            "nothing says whether it has anomalies or fields; give windows.dataset as it is, or the fields: "
            f"(dataset + climatology.at(dataset.time)).drop_vars({coordinates!r})"
        )
    if {kept, *marks} != {number}:
        raise UserError(
            f"{name!r} has anomalies from another climatology than that of the windows; give the data from which that "
            "was subtracted"
        )
    return True


def with_climatology(
    dataset: Any, names: list[str], text: str, lead: str, valid_time: str, numbers: str | None = None
) -> Any:
    """Add the climatology to lazily predicted anomalies, at the times of the predictions.

    Along ``numbers`` there are several numbers for each anomaly: quantiles, members, or the parameters of a
    distribution, where only "loc" moves with the climatology.
    """
    climatology, changed = climatology_of(text), {}
    for name in (name for name in names if name in climatology.means):
        array = dataset[name]
        if numbers in array.dims:
            each = [dataset[[name]].isel({numbers: [number]}) for number in range(array.sizes[numbers])]
            moved = [
                with_climatology(part.isel({numbers: 0}, drop=True), [name], text, lead, valid_time)
                .expand_dims({numbers: part[numbers]})
                .transpose(*array.dims, ...)
                if numbers != PARAMETER or part[numbers].item() == "loc"
                else part
                for part in each
            ]
            changed[name] = _joined([part[name].variable for part in moved], numbers, array)
            continue
        if lead not in array.dims:
            changed[name] = _with_field(array.variable, _field(dataset, name, climatology), 1)
            continue
        others = dataset[[name]].isel({lead: 0}, drop=True)
        (time,) = (dim for dim in dataset[valid_time].dims if dim != lead)
        parts = []
        for number in range(array.sizes[lead]):
            dates = dataset[valid_time].variable.isel({lead: number})
            part = array.variable.isel({lead: number})
            field = _field(others.assign_coords({time: (time, dates.values)}), name, climatology)
            parts.append(_with_field(part, field, 1))
        changed[name] = _joined(parts, lead, array)
    return dataset.assign(changed)


def _joined(parts: list[Any], dim: str | None, like: Any) -> Any:
    """Join Variables along ``dim``, with the order of dimensions, attributes and encoding of ``like``."""
    joined: Any = Variable.concat(parts, dim)  # type: ignore[no-untyped-call]
    joined = joined.transpose(*like.dims)
    return Variable(joined.dims, joined.data, like.attrs, like.encoding)


def _field(dataset: Any, name: str, climatology: FieldClimatology) -> _Field:
    array, kept = dataset[name], climatology.means[name].dims[1:]
    times = [dim for dim in array.dims if dim not in kept]
    if len(times) != 1 or times[0] not in dataset.coords:
        raise UserError(
            f"{name!r} has the dimensions {listed(array.dims)}, its climatology {listed(kept)}, and these must be all "
            "but that of dates; take the climatology of data with the same dimensions"
        )
    dates = dates_of(dataset[times[0]])
    means = climatology.at_points_of(dataset[[name]], str(times[0])).means[name]
    return _Field(means, climatology.by, dates, tuple(map(str, array.dims)))


def _with_field(variable: Any, field: _Field, sign: int, mark: Mapping[str, int] | None = None) -> Any:
    encoding = {**variable.encoding, **(mark or {})}
    if variable.chunks is not None:
        data = variable.data.map_blocks(
            partial(_of_block, field, sign), dtype=np.float32, meta=np.empty((), np.float32)
        )
    elif getattr(variable, "_in_memory", True):
        data = _added(variable.values, field.read((slice(None),) * variable.ndim), sign)
    else:
        data = LazilyIndexedArray(_Anomalies(variable, field))
    return Variable(variable.dims, data, variable.attrs, encoding)


def _of_block(field: _Field, sign: int, block: np.ndarray, block_info: Any = None) -> np.ndarray:
    place = tuple(slice(start, stop) for start, stop in block_info[0]["array-location"])
    return _added(block, field.read(place), sign)


def _added(numbers: Any, climatology: np.ndarray, sign: int) -> np.ndarray:
    return (np.asarray(numbers, np.float64) + sign * climatology).astype(np.float32)

"""Opens xarray objects: a DataArray, or variables of a Dataset, as records and labels."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from typing import Any

import numpy as np

from dsinga.base.errors import UserError
from dsinga.base.registry import listed, nearest, register
from dsinga.data.array_kinds import is_data_array, order_of
from dsinga.data.column import Column
from dsinga.data.missing_values import with_nan
from dsinga.data.sources.arrays import (
    ArrayColumn,
    DataAndLabels,
    Kind,
    Options,
    as_numpy,
    check_block,
    column_dtype,
    convert,
)
from dsinga.data.sources.dask_arrays import DaskColumn
from dsinga.data.sources.zarr_source import DATA_NAMES, LABEL_NAMES
from dsinga.data.stores.store_format import block_rows


def dataset_records(dataset: Any, y: Any, options: Options) -> DataAndLabels:
    """Open variables of a Dataset as records and labels: ``options.data`` and ``options.label``.

    None guesses a variable by its name; the label "" means no labels.
    """
    if y is not None:
        raise UserError(
            "the labels of a Dataset are one of its variables; name it: dsinga.data.open_records(dataset, label=...)"
        )
    dataset, data, label = with_nan(dataset, "x"), options.data, options.label
    for name in (data, label):
        if name and name not in dataset.variables:
            raise missing_name("variable", name, [str(variable) for variable in dataset.variables], "Dataset")
    names = [str(name) for name in dataset.data_vars]
    labels = [name for name in names if name.lower() in LABEL_NAMES and name != data]
    if not data:
        records = [name for name in names if name.lower() in DATA_NAMES]
        data = _only(records or [name for name in names if name not in (label, *labels)], "data", names)
    if label is None and labels:
        label = _only(labels, "label", names)
    variables = data_array_records(dataset[data], dataset[label] if label else None, options)
    return variables._replace(location="xarray Dataset")


def _only(candidates: Sequence[str], field: str, names: Sequence[str]) -> str:
    if len(candidates) == 1:
        return candidates[0]
    which = f"may be {' or '.join(map(repr, candidates))}" if candidates else "have no usual name"
    raise UserError(
        f"the {field} of the Dataset {which}; name the variable: dsinga.data.open_records(..., {field}=...), or cut "
        f"windows of fields out of it: dsinga.windows(dataset, ...); its variables are {listed(map(repr, names))}"
    )


def data_array_records(x: Any, y: Any, options: Options) -> DataAndLabels:
    """Open the DataArray ``x`` as records, with labels ``y``."""
    if not x.dims:
        raise UserError(f"xarray DataArray: {x.name!r} is a single number; give one with a row for each record")
    x, y = with_nan(x, str(x.name or "x")), with_nan(y, "y")
    dim = str(x.dims[0]) if options.dim is None else options.dim
    name, label_name = str(x.name or "x"), str(getattr(y, "name", None) or "y")
    x, label_order = _samples_first(x, dim), order_of(y)
    data = _variable_column(x, name)
    data.order = order_of(x)
    if is_data_array(y):
        if dim not in y.dims and len(y.dims) == 1 and y.dims[0] in x.dims:
            raise UserError(
                f"xarray: the samples of {name!r} lie along {dim!r}, its first dimension, but the labels "
                f"{label_name!r} along {y.dims[0]!r}; name that one: "
                f"dsinga.data.open_records(..., dim={str(y.dims[0])!r})"
            )
        y = _samples_first(y, dim)
        y, label_order = y.data, order_of(y)
    return DataAndLabels("xarray DataArray", data, y, label_name, label_order)


def _samples_first(array: Any, dim: str) -> Any:
    if dim not in array.dims:
        raise missing_name("dimension", dim, [str(name) for name in array.dims], f"DataArray {array.name!r}")
    return array.transpose(dim, ...)


def _variable_column(array: Any, name: str) -> Column:
    if array.chunks is not None:
        return DaskColumn(array.data, name)
    if getattr(array.variable, "_in_memory", True):
        return ArrayColumn(as_numpy(array.data, name), name)
    return FileColumn(array, name)


@register("records", "xarray.Dataset", "xarray.DataArray")
def xarray_kind(value: Any) -> Kind:
    """Say how an xarray object is opened as records or labels."""
    if is_data_array(value):
        return Kind("a DataArray", data_array_records, ("dim", "classes"))
    return Kind("a Dataset", dataset_records, ("data", "label", "dim", "classes"))


class FileColumn(Column):
    """Reads records block by block from an xarray DataArray that stays in a file."""

    reads_regions = True

    def __init__(self, array: Any, name: str):
        self.array, dtype = array, column_dtype(array, name)
        rows = _chunk_rows(array)
        block = block_rows(len(array), math.prod(array.shape[1:]) * dtype.itemsize, rows)
        super().__init__(name, len(array), array.shape[1:], dtype, block)
        check_block(self, "rechunk the file along the samples")

    def load(self, start: int, stop: int) -> np.ndarray:
        """Read the rows ``start`` to ``stop`` from the file."""
        return convert(self.array[(slice(start, stop), *self.index)].values, self)


def _chunk_rows(array: Any) -> int | None:
    preferred = array.encoding.get("preferred_chunks") or {}
    rows = preferred.get(array.dims[0])
    return int(rows) if isinstance(rows, int) else None


def missing_name(what: str, name: str, known: Collection[str], where: str) -> UserError:
    """Return the error that a variable or dimension is missing, with similar names or all names."""
    hint = nearest(name, known) or f"; it has {listed(map(repr, known))}"
    return UserError(f"the {where} has no {what} {name!r}{hint}")

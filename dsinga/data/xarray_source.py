"""Records and labels from xarray: a DataArray, or variables of a Dataset, along a named sample dimension.

xarray is not imported here: whoever has such an object has imported it.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from typing import Any

import numpy as np

from dsinga.data.array_column import check_block, convert
from dsinga.data.array_kinds import is_data_array
from dsinga.data.array_source import column, label_column
from dsinga.data.column import Column
from dsinga.data.conversion import record_dtype
from dsinga.data.record_source import RecordSource
from dsinga.data.store_format import block_rows
from dsinga.data.zarr_names import DATA_NAMES, LABEL_NAMES
from dsinga.errors import UserError
from dsinga.registry import listed, nearest


def dataset_source(
    dataset: Any, data: str | None, label: str | None, dim: str | None, classes: Sequence[str] | None
) -> RecordSource:
    """Return the source of the variables ``data`` and ``label`` of a Dataset.

    None guesses a variable by its name, where that is plain; ``label`` "" leaves labels out. ``dim`` is the sample
    dimension; by default the first one of the data. Raises UserError where a variable or the dimension is not there.
    """
    for name in (data, label):
        if name and name not in dataset.variables:
            raise _missing("variable", name, [str(each) for each in dataset.variables], "Dataset")
    names = [str(name) for name in dataset.data_vars]
    labels = [name for name in names if name.lower() in LABEL_NAMES and name != data]
    if not data:
        records = [name for name in names if name.lower() in DATA_NAMES]
        data = _only(records or [name for name in names if name not in (label, *labels)], "data", names)
    if label is None and labels:
        label = _only(labels, "label", names)
    return data_array_source(dataset[data], dataset[label] if label else None, dim, classes, "xarray Dataset")


def _only(candidates: Sequence[str], field: str, names: Sequence[str]) -> str:
    """Return the only candidate; raise UserError where there are none or several."""
    if len(candidates) == 1:
        return candidates[0]
    which = f"may be {' or '.join(map(repr, candidates))}" if candidates else "have no usual name"
    raise UserError(
        f"the {field} of the Dataset {which}; name the variable: open_records(..., {field}=...); its variables are "
        f"{listed(map(repr, names))}"
    )


def data_array_source(
    x: Any, y: Any, dim: str | None, classes: Sequence[str] | None, location: str = "xarray DataArray"
) -> RecordSource:
    """Return the source of the DataArray ``x`` and the labels ``y``, a DataArray or any other array, or None.

    ``dim`` is the sample dimension; by default the first one of ``x``.
    """
    if not x.dims:
        raise UserError(f"{location}: {x.name!r} is a single number; give one with a row for each record")
    dim = str(x.dims[0]) if dim is None else dim
    names = str(x.name or "x"), str(getattr(y, "name", None) or "y")
    records = _variable_column(_samples_first(x, dim), names[0])
    if y is None:
        return RecordSource(location, records, classes=classes or ())
    if is_data_array(y):
        if dim not in y.dims and len(y.dims) == 1 and y.dims[0] in x.dims:
            raise UserError(
                f"{location}: the samples of {names[0]!r} lie along {dim!r}, its first dimension, but the labels "
                f"{names[1]!r} along {y.dims[0]!r}; name that one: open_records(..., dim={str(y.dims[0])!r})"
            )
        y = _samples_first(y, dim).data
    labels = label_column(y, names[1], records.length, classes)
    return RecordSource(location, records, labels, classes=classes or ())


def _samples_first(array: Any, dim: str) -> Any:
    """Return a DataArray whose first dimension is ``dim``."""
    if dim not in array.dims:
        raise _missing("dimension", dim, [str(name) for name in array.dims], f"DataArray {array.name!r}")
    return array.transpose(dim, ...)


def _variable_column(array: Any, name: str) -> Column:
    """Return the column of a DataArray: in memory, computed by Dask, or read from its file block by block."""
    if array.chunks is not None or getattr(array.variable, "_in_memory", True):
        return column(array.data, name)
    return FileColumn(array, name)


class FileColumn(Column):
    """Records that are an xarray DataArray whose numbers are in a file and are read block by block.

    Args:
        array: the DataArray, with the samples along its first dimension.
        name: the name by which messages call the array.
    """

    def __init__(self, array: Any, name: str):
        self.array, dtype = array, record_dtype(array.dtype)
        rows = _chunk_rows(array)
        block = block_rows(len(array), math.prod(array.shape[1:]) * dtype.itemsize, rows)
        super().__init__(name, len(array), array.shape[1:], dtype, block)
        check_block(self, "rechunk the file along the samples")

    def load(self, start: int, stop: int) -> np.ndarray:
        """Read the rows ``start`` to ``stop`` from the file."""
        return convert(self.array[start:stop].values, self)


def _chunk_rows(array: Any) -> int | None:
    """Return the rows of a chunk of the file, None if it is not known; xarray keeps them by the file's dimensions."""
    preferred = array.encoding.get("preferred_chunks") or {}
    rows = preferred.get(array.dims[0])
    return int(rows) if isinstance(rows, int) else None


def _missing(what: str, name: str, known: Collection[str], where: str) -> UserError:
    hint = nearest(name, known) or f"; it has {listed(map(repr, known))}"
    return UserError(f"the {where} has no {what} {name!r}{hint}")

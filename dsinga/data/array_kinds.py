"""Recognises arrays and data frames of other libraries without importing them, and compares their order."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any

import numpy as np

from dsinga.base.arguments import repeated
from dsinga.base.errors import UserError
from dsinga.base.registry import listed, nearest_or_listed


def is_a(value: Any, module: str, *names: str) -> bool:
    """Whether ``value`` is of one of a library's classes, found without importing the library."""
    loaded = sys.modules.get(module)
    return loaded is not None and isinstance(value, tuple(getattr(loaded, name) for name in names))


def is_of(value: Any, package: str, *names: str) -> bool:
    """Whether ``value`` is of a class with one of these names, anywhere in a package."""
    return any(base.__module__.split(".")[0] == package and base.__name__ in names for base in type(value).__mro__)


def is_dask_collection(value: Any) -> bool:
    """Whether a value is lazy: a Dask collection, or an xarray object with one inside."""
    dask = sys.modules.get("dask")
    return dask is not None and dask.is_dask_collection(value)


def is_dask_frame(value: Any) -> bool:
    """Whether ``value`` is a Dask data frame or series."""
    return is_a(value, "dask.dataframe", "DataFrame", "Series")


def is_data_array(value: Any) -> bool:
    """Whether ``value`` is an xarray DataArray."""
    return is_a(value, "xarray", "DataArray")


def is_path(value: Any) -> bool:
    """Whether ``value`` is a path or a URL."""
    return isinstance(value, (str, os.PathLike))


NEAR = 1e-5  # relative difference of coordinates that are the same
MOST_POINTS = 1000  # of a dimension whose coordinates are kept

ArrayOrder = tuple[tuple[str, ...], ...]  # of each dimension the name and the labels of its points, if known


def order_of(value: Any) -> ArrayOrder:
    """Return how data are laid out: names of dimensions and coordinates, or of columns.

    Dimensions of many points count only if their labels are texts.
    """
    if is_table(value):
        return (("row",), ("column", *distinct_names(frame_columns(value))))
    if not is_data_array(value):
        return ()
    labelled = [
        dim
        for dim in value.dims[1:]
        if has_labels(value, dim) and (value.sizes[dim] <= MOST_POINTS or value[dim].dtype.kind in "OSUT")
    ]
    return tuple((str(dim), *(point_texts(value, dim) if dim in labelled else ())) for dim in value.dims)


def in_order(value: Any, order: ArrayOrder) -> Any:
    """Transpose and sort an xarray object, or a frame's columns, to match the training data.

    Fields of numbered points, such as another region, are only transposed; other objects are returned unchanged.
    """
    has_columns = len(order) == 2 and len(order[1]) > 1
    if has_columns and is_table(value):
        columns = columns_of(value, order[1][1:])
        return value.select(columns) if is_a(value, "pyarrow", "Table", "RecordBatch") else value[columns]
    if not order or not (is_data_array(value) or is_a(value, "xarray", "Dataset")):
        return value
    dims = [name for name, *_ in order]
    if has_columns and is_data_array(value) and value.ndim == 2 and dims[1] not in value.dims:
        value = value.transpose(dims[0], ...) if dims[0] in value.dims else value
        return chosen(value, value.dims[1], order[1][1:])
    if set(dims) <= set(value.dims):
        value = value.transpose(*dims, ...)
    is_field = sum(len(axis) > 1 for axis in order) > 1
    for name, *labels in order[1:]:
        if name in value.dims and labels:
            value = chosen(value, name, labels, is_field and is_number(labels[0]))
    return value


def is_frame(value: Any) -> bool:
    """Whether an object is a pandas or Dask data frame, not a series."""
    return is_a(value, "pandas", "DataFrame") or is_dask_frame(value) and value.ndim == 2


def is_table(value: Any) -> bool:
    """Whether an object is a data frame of pandas, Dask, or a library that exports to Arrow."""
    return is_frame(value) or is_arrow_table(value)


def frame_columns(frame: Any) -> list[Any]:
    """Return the names of the columns of a data frame."""
    return list(frame.schema.names if is_a(frame, "pyarrow", "Table", "RecordBatch") else frame.columns)


def distinct_names(columns: Iterable[Any], where: str = "the data frame") -> list[str]:
    """Return the names of columns as texts. Raises UserError if two are equal."""
    names = list(map(str, columns))
    if (name := repeated(names)) is not None:
        raise UserError(f"{where} has several columns named {name!r}; give each its own name")
    return names


def is_arrow_table(value: Any) -> bool:
    """Whether a value exports rows and columns to Arrow, more than once: no stream, no series."""
    is_two_dimensional = len(getattr(value, "shape", ())) == 2
    return is_two_dimensional and hasattr(value, "__arrow_c_stream__") and hasattr(value, "columns")


def chosen(dataset: Any, dim: str, labels: Sequence[str], may_differ: bool = False) -> Any:
    """Select points of a dimension by their coordinates, in the given order.

    For missing coordinates it raises UserError, or returns all points if ``may_differ``.
    """
    if not has_labels(dataset, dim) or tuple(texts := point_texts(dataset, dim)) == tuple(labels):
        return dataset
    if (twice := repeated(texts)) is not None:
        raise UserError(f"the data have {twice!r} of {dim!r} twice; give each point its own label")
    place_of = {text: place for place, text in enumerate(texts)}
    numbers = [(float(text), place) for text, place in place_of.items() if is_number(text)]
    places = [place_of[label] if label in place_of else _nearest(label, numbers) for label in labels]
    if None not in places:
        return dataset.isel({dim: places})
    if may_differ:
        return dataset
    have = listed(texts[:20]) + (" and others" if len(texts) > 20 else "")
    raise UserError(
        f"the net was trained on {listed(labels)} of {dim!r}, but the data have no {labels[places.index(None)]}; they "
        f"have {have}"
    )


def columns_of(frame: Any, names: Sequence[str]) -> list[Any]:
    """Find the columns of a data frame with these names. Raises UserError for missing or other columns."""
    columns = {str(label): label for label in frame_columns(frame)}
    check_columns(names, columns, "the data frame", ", which the records of training have")
    for name in columns:
        if name not in names:
            raise UserError(
                f"the data frame has the column {name!r}, which the records of training lack; leave it out: "
                f"frame.drop({'columns=' if is_frame(frame) else ''}{columns[name]!r})"
            )
    return [columns[name] for name in names]


def check_columns(names: Iterable[str], known: Collection[str], where: str, which: str = "") -> None:
    """Raise UserError for a column that a data frame lacks."""
    columns = set(known)
    for name in names:
        if name not in columns:
            raise UserError(f"{where} has no column {name!r}{which}{nearest_or_listed(name, known, 'it has')}")


def has_labels(dataset: Any, dim: str) -> bool:
    """Whether a dimension has a coordinate with one label for each point."""
    return dim in dataset.indexes and getattr(dataset.indexes[dim], "nlevels", 1) == 1


def point_texts(dataset: Any, dim: str) -> tuple[str, ...]:
    """Return the coordinates of a dimension as texts."""
    return tuple(map(point_text, dataset[dim].values))


def point_text(label: Any) -> str:
    """Return a coordinate as a text that is unique to it, with nine digits for numbers."""
    value = np.asarray(label)[()]
    return f"{value:.9g}" if isinstance(value, (float, np.floating)) else label_text(value)


def _nearest(label: str, numbers: Sequence[tuple[float, int]]) -> int | None:
    """Find a numeric coordinate by its text despite rounding: return its index, or None."""
    if not is_number(label):
        return None
    return next((place for number, place in numbers if np.isclose(number, float(label), rtol=NEAR, atol=0)), None)


def label_text(value: Any) -> str:
    """Return a coordinate as short text for messages: dates without trailing zeros, numbers with six digits."""
    value = np.asarray(value)[()]
    if isinstance(value, np.datetime64):
        return str(value.astype("datetime64[s]")).removesuffix(":00").removesuffix("T00:00")
    if isinstance(value, np.timedelta64):
        return f"{value / np.timedelta64(1, 'h'):g} h"
    return f"{value:g}" if isinstance(value, (float, np.floating)) else str(value)


def is_number(text: str) -> bool:
    """Whether a text is a finite number."""
    try:
        return bool(np.isfinite(float(text)))
    except ValueError:
        return False


def origins(array: Any) -> dict[str, Any]:
    """Return the stored arrays, such as zarr arrays, that a dask array reads."""
    layers = getattr(getattr(array, "dask", None), "layers", {})
    nodes = {key: node for key, layer in layers.items() if key.startswith("original-") for node in layer.values()}
    return {key: getattr(node, "value", node) for key, node in nodes.items()}


def with_origins(array: Any, replaced: Callable[[Any], Any]) -> Any:
    """Return a dask array that reads ``replaced(array)``, unless None, in place of each stored array."""
    others = {key: replaced(value) for key, value in origins(array).items()}
    changed = {key: {key: other} for key, other in others.items() if other is not None}
    if not changed:
        return array
    graph = type(array.dask)({**array.dask.layers, **changed}, array.dask.dependencies)
    return type(array)(graph, array.name, array.chunks, meta=array._meta)

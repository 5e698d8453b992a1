"""Opens data frames of pandas and Dask: feature columns as records, and a column of labels."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from dsinga.base.arrays import warn_of_rounding
from dsinga.base.errors import UserError
from dsinga.base.registry import nearest_or_listed, register
from dsinga.data.array_kinds import distinct_names, is_dask_frame, order_of
from dsinga.data.column import Column
from dsinga.data.conversion import record_dtype
from dsinga.data.sources.arrays import ArrayColumn, DataAndLabels, Kind, Labels, Options, codes
from dsinga.data.sources.dask_arrays import DaskColumn, compute, with_fixed_partitions


def frame_records(frame: Any, y: Any, options: Options) -> DataAndLabels:
    """Open a data frame: feature columns as records, and its label column or ``y`` as labels.

    Records have one number for each feature column, in the order of ``options.columns``: uint8 if all are uint8 or
    bool, int32 if all are int32, else float32. Missing values are NaN, refused on reading. For a Dask data frame,
    length and labels are computed at once, features when they are read.
    """
    if frame.ndim == 1:
        frame = frame.to_frame()
    label = options.label or None
    features = _feature_columns(frame, label, options.columns)
    dtype = _common_dtype(frame, features)
    if is_dask_frame(frame):
        frame = with_fixed_partitions(frame[features if label is None else [*features, label]])
    labels = y if label is None else frame[label]
    data: Column
    name = str(label if label is not None else "y")
    if is_dask_frame(frame):
        x, labels = _from_dask(frame[features], labels, dtype)
        data, location = DaskColumn(x, "features"), "dask data frame"
    else:
        data, location = ArrayColumn(to_array(frame[features], dtype), "features"), "data frame"
    data.order, data.remedy = order_of(frame[features]), ", or give dsinga.table(frame), which takes gaps"
    return DataAndLabels(location, data, labels, name)


def _feature_columns(frame: Any, label: str | None, columns: Sequence[str] | None) -> list[Any]:
    known = distinct_names(frame.columns)
    for name in [*(columns or ()), *([label] if label is not None else [])]:
        if name not in frame.columns:
            hint = nearest_or_listed(str(name), known, "its columns are")
            raise UserError(f"the data frame has no column {name!r}{hint}")
    features = [name for name in frame.columns if name != label] if columns is None else list(columns)
    if not features:
        raise UserError("the data frame has no feature columns; name some in columns=")
    return features


def _common_dtype(frame: Any, features: Sequence[str]) -> np.dtype:
    dtypes = []
    for name in features:
        dtype = getattr(frame.dtypes[name], "numpy_dtype", frame.dtypes[name])  # pandas' nullable dtypes
        try:
            dtypes.append(record_dtype(dtype))
        except (UserError, TypeError):
            kind = "categories" if str(dtype) == "category" else f"dtype {dtype}"
            raise UserError(
                f"column {str(name)!r} of the data frame has {kind}, not numbers; leave the column out, as in "
                f"frame.drop(columns={name!r}), or give dsinga.table(frame, y) and a net for it, as dsinga.models.tabm "
                "makes"
            ) from None
    return dtypes[0] if len(set(dtypes)) == 1 else np.dtype(np.float32)


def to_array(frame: Any, dtype: np.dtype) -> np.ndarray:
    """Convert a pandas data frame to an array (rows, columns) with NaN for missing values."""
    if dtype.kind != "f" and frame.isna().any(axis=None):
        dtype = np.dtype(np.float32)
    out = np.empty(frame.shape, dtype)
    for number in range(frame.shape[1]):
        series = frame.iloc[:, number]
        if dtype.kind == "f" and series.dtype.kind in "iu":
            _warn_of_rounding(series)
        out[:, number] = series.to_numpy(dtype=dtype, na_value=np.nan) if dtype.kind == "f" else series.to_numpy(dtype)
    return out


def _warn_of_rounding(series: Any) -> None:
    name = f"column {str(series.name)!r} of the data frame"
    warn_of_rounding(series.dropna().to_numpy(), name, lambda place: name)


def _from_dask(features: Any, labels: Any, dtype: np.dtype) -> tuple[Any, Any]:
    lengths = features.map_partitions(len, meta=("length", "i8"))
    lazy = is_dask_frame(labels)
    counts, *computed = compute(lengths, *([labels] if lazy else []))
    width = len(features.columns)
    array = features.map_partitions(to_array, dtype, meta=np.empty((0, width), dtype))
    chunks = (tuple(int(count) for count in counts), (width,))  # the array does not know how many rows a partition has
    return type(array)(array.dask, array.name, chunks, dtype), computed[0] if lazy else labels


def frame_labels(labels: Any, name: str, length: int, options: Options) -> Labels:
    """Open a series or the label column of a data frame as labels, with class names.

    A categorical series gives its categories as classes, unless the options name some. Dask labels are computed at
    once.
    """
    if is_dask_frame(labels):
        (labels,) = compute(labels)
    title, classes = "y" if labels.ndim > 1 else str(labels.name or "y"), options.classes
    missing = labels.isna().to_numpy()
    if missing.any():
        row, *column = np.argwhere(missing)[0].tolist()
        raise UserError(
            f"the data frame has no label in record {row} of column "
            f"{str(labels.columns[column[0]]) if column else title!r}; leave records without a label out"
        )
    if str(getattr(labels, "dtype", "")) == "category":
        if classes is None:
            array, classes = labels.cat.codes.to_numpy().astype(np.int64), list(map(str, labels.cat.categories))
            return ArrayColumn(array, name, labels=True), classes
        labels = labels.astype(str)
    array = labels.to_numpy()
    numbers = getattr(getattr(labels, "dtype", None), "numpy_dtype", None)  # pandas' nullable dtypes
    if array.dtype.kind in "OSUT" and numbers is not None and numbers.kind in "buif":
        array = array.astype(numbers)
    elif array.dtype.kind in "OSUT":
        array = codes(array, title, classes)
    return ArrayColumn(array, name, labels=True), classes


@register("records", "pandas.DataFrame", "pandas.Series", "dask.DataFrame", "dask.Series")
def frame_kind(value: Any) -> Kind:
    """Say how a data frame or a series is opened as records or labels."""
    return Kind("a data frame", frame_records, ("label", "columns", "classes"), frame_labels)

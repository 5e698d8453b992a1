"""Records and labels from data frames of pandas and Dask: feature columns, and a column of labels.

pandas is not imported here: whoever has a data frame has imported it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from dsinga.data.array_kinds import is_dask_frame, is_frame
from dsinga.data.array_source import array_source, codes
from dsinga.data.conversion import record_dtype
from dsinga.data.record_source import RecordSource
from dsinga.errors import UserError
from dsinga.registry import nearest_or_listed


def frame_source(
    frame: Any,
    y: Any = None,
    *,
    label: str | None = None,
    columns: Sequence[str] | None = None,
    classes: Sequence[str] | None = None,
) -> RecordSource:
    """Return the source of the feature columns of a data frame, and of its labels.

    Records have one number for each feature column, in the order of ``columns``: uint8 if all are uint8 or bool, int32
    if all are int32, else float32; a missing value is NaN, which is refused when it is read. The length and the labels
    of a Dask data frame are computed at once, its features when they are read.

    Args:
        frame: DataFrame of pandas or Dask.
        y: the labels, if they are not a column: a series, a data frame, or an array.
        label: the column of labels.
        columns: the feature columns; by default all but ``label``.
        classes: the names of the labels 0, 1, ...; by default the categories of a categorical label column.

    Raises:
        UserError: a column is missing, or does not have numbers.
    """
    if frame.ndim == 1:
        frame = frame.to_frame()
    known = [str(name) for name in frame.columns]
    if len(set(known)) < len(known):
        name = next(name for name in known if known.count(name) > 1)
        raise UserError(f"the data frame has several columns named {name!r}; give each its own name")
    for name in [*(columns or ()), *([label] if label is not None else [])]:
        if name not in frame.columns:
            hint = nearest_or_listed(str(name), known, "its columns are")
            raise UserError(f"the data frame has no column {name!r}{hint}")
    features = [name for name in frame.columns if name != label] if columns is None else list(columns)
    if not features:
        raise UserError("the data frame has no feature columns; name some in columns=")
    dtype = _common_dtype(frame, features)
    labels = frame[label] if label is not None else y
    titles = [str(name) for name in features]
    if is_dask_frame(frame):
        x, labels = _from_dask(frame[features], labels, dtype)
        location = "dask data frame"
    else:
        x, location = to_array(frame[features], dtype), "data frame"
    if is_frame(labels):
        labels, classes = frame_labels(labels, classes)
    names = "features", str(label if label is not None else "y")
    return array_source(x, labels, location=location, names=names, classes=classes, titles=titles)


def _common_dtype(frame: Any, features: Sequence[str]) -> np.dtype:
    """Return the dtype of the records of these columns; raise UserError for one without numbers."""
    dtypes = []
    for name in features:
        dtype = getattr(frame.dtypes[name], "numpy_dtype", frame.dtypes[name])  # pandas' nullable dtypes
        try:
            dtypes.append(record_dtype(dtype))
        except (UserError, TypeError):
            kind = "categories" if str(dtype) == "category" else f"dtype {dtype}"
            raise UserError(
                f"column {str(name)!r} of the data frame has {kind}, not numbers; convert it, for instance to codes or "
                "indicator columns, or leave it out by columns=[...], the columns to use"
            ) from None
    return dtypes[0] if len(set(dtypes)) == 1 else np.dtype(np.float32)


def to_array(frame: Any, dtype: np.dtype) -> np.ndarray:
    """Return the columns of a pandas data frame as an array (rows, columns); missing values are NaN.

    An array of integers is one of float32 where values are missing, so that NaN can say so.
    """
    if dtype.kind != "f" and frame.isna().any(axis=None):
        dtype = np.dtype(np.float32)
    out = np.empty(frame.shape, dtype)
    for number in range(frame.shape[1]):
        series = frame.iloc[:, number]
        out[:, number] = series.to_numpy(dtype=dtype, na_value=np.nan) if dtype.kind == "f" else series.to_numpy(dtype)
    return out


def _from_dask(features: Any, labels: Any, dtype: np.dtype) -> tuple[Any, Any]:
    """Return the features of a Dask data frame as a dask array, and its labels as pandas has them or as they are."""
    from dsinga.data.dask_column import compute

    lengths = features.map_partitions(len, meta=("length", "i8"))
    lazy = is_dask_frame(labels)
    counts, *computed = compute(lengths, *([labels] if lazy else []))
    width = len(features.columns)
    array = features.map_partitions(to_array, dtype, meta=np.empty((0, width), dtype))
    chunks = (tuple(int(count) for count in counts), (width,))  # the array does not know how many rows a partition has
    return type(array)(array.dask, array.name, chunks, dtype), computed[0] if lazy else labels


def frame_labels(labels: Any, classes: Sequence[str] | None) -> tuple[np.ndarray, Sequence[str] | None]:
    """Return the labels of a series or data frame, and the names of their classes, if these are known.

    Those of a categorical series are its categories, where ``classes`` names none. Labels that Dask computes are
    computed at once. Raises UserError where a label is missing.
    """
    if is_dask_frame(labels):
        from dsinga.data.dask_column import compute

        (labels,) = compute(labels)
    name = str(getattr(labels, "name", None) or "y")
    missing = labels.isna().to_numpy()
    if missing.any():
        raise UserError(
            f"the data frame has no label in record {int(np.argmax(missing)) // max(1, missing[:1].size)} of column "
            f"{name!r}; leave records without a label out"
        )
    if str(getattr(labels, "dtype", "")) == "category":
        if classes is None:
            return labels.cat.codes.to_numpy().astype(np.int64), [str(each) for each in labels.cat.categories]
        labels = labels.astype(str)
    array = labels.to_numpy()
    if array.dtype.kind not in "OSUT":
        return array, classes
    numbers = getattr(getattr(labels, "dtype", None), "numpy_dtype", None)  # pandas' nullable dtypes
    if numbers is not None and numbers.kind in "buif":
        return array.astype(numbers), classes
    return codes(array, name, classes), classes

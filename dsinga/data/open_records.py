"""Opening records from whatever a person has: a path or URL, arrays, data frames, a source of records."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

from dsinga.data.array_kinds import is_dask_array, is_data_array, is_dataset, is_frame
from dsinga.data.array_source import array_source
from dsinga.data.auto_import import open_store
from dsinga.data.column import Column
from dsinga.data.paths import resolve
from dsinga.data.record_source import RecordSource
from dsinga.data.sendable import naming_unsendable
from dsinga.data.zarr_source import open_zarr_labels
from dsinga.errors import UserError


def open_records(
    source: Any,
    *,
    data: str | None = None,
    label: str | None = None,
    columns: Sequence[str] | None = None,
    dim: str | None = None,
    classes: Sequence[str] | None = None,
    roots: Sequence[str] = (),
) -> RecordSource:
    """Return the source of records that ``source`` is or has.

    Nothing is copied to disk. Numbers are converted as :func:`dsinga.data.write_store` converts them, and training
    gives the same bits as from a store with the same records; docs/arrays.md says which chunks are too large for that.

    Args:
        source: one of

            - the path or URL of a store; a relative path is looked up in the working directory, then under ``roots``;
            - an array of records: numpy, dask, an xarray DataArray, or what numpy converts;
            - a pair (x, y) of such an array, a data frame or a path, and labels: an array, or the path of a zarr array;
            - an xarray Dataset, or a data frame of pandas or Dask;
            - a source of records, which is returned as it is.
        data: the array of a zarr group, or the variable of a Dataset, that has the records; by default guessed from the
            names.
        label: the array of a zarr group, the variable of a Dataset, or the column of a data frame, that has the labels;
            "" for none. By default guessed; none in a data frame.
        columns: the feature columns of a data frame; by default all but ``label``.
        dim: the dimension of xarray objects along which samples are counted; by default the first.
        classes: the names of the labels 0, 1, ...; labels that are strings are coded by their place among these.
        roots: folders where a relative path is looked up.

    Raises:
        UserError: ``source`` is of another type, cannot be read, or does not have numbers of the right shape.
    """
    if isinstance(source, RecordSource):
        return source
    for path in source[:1] if isinstance(source, tuple) else (source,):
        _refuse_numpy_file(path)
    options = {"data": data, "label": label, "columns": columns, "dim": dim, "classes": classes}
    if isinstance(source, (str, os.PathLike)):
        _check_options(options, "a path or URL", "data", "label")
        return open_store(source, roots=roots, data=data, label=label)
    x, y = _pair(source)
    if isinstance(y, (str, os.PathLike)):
        y = open_labels(y, roots)
    from dsinga.data.dataframe_source import frame_labels, frame_source
    from dsinga.data.xarray_source import data_array_source, dataset_source

    with naming_unsendable({"x": x, "y": y}):
        if is_dataset(x) and y is None:
            _check_options(options, "a Dataset", "data", "label", "dim", "classes")
            return dataset_source(x, data, label, dim, classes)
        if is_frame(x):
            _check_options(options, "a data frame", "columns", "classes", *(["label"] if y is None else []))
            return frame_source(x, y, label=label or None, columns=columns, classes=classes)
        if is_data_array(x):
            _check_options(options, "a DataArray", "dim", "classes")
        else:
            _check_options(options, "an array", "classes")
        if is_frame(y):
            y, classes = frame_labels(y, classes)
        if is_data_array(x):
            return data_array_source(x, y, dim, classes)
        if isinstance(x, (str, os.PathLike)):
            store = open_store(x, roots=roots, has_label=False)
            return array_source(store.columns[0], y, location=store.location, classes=classes)
        if is_dask_array(x) or hasattr(x, "__array__") or isinstance(x, list):
            return array_source(x, y, classes=classes)
    raise _refusal(x)


def open_labels(path: str | os.PathLike[str], roots: Sequence[str] = ()) -> Column:
    """Return the labels (n,) or (n, K) that are the zarr array at a path or URL.

    A relative path is looked up in the working directory, then under ``roots``. Raises UserError where there is no such
    array, or it has no numbers that can be labels.
    """
    _refuse_numpy_file(path)
    if os.fspath(path).endswith((".csv", ".tsv", ".txt")):
        raise UserError(
            f"labels beside records are an array or the path of a zarr array, and {os.fspath(path)} is a file of text; "
            "give its column of labels, as pandas.read_csv returns it"
        )
    return open_zarr_labels(resolve(path, roots))


def _refuse_numpy_file(path: Any) -> None:
    """Raise UserError where ``path`` is that of a file of numpy."""
    if isinstance(path, (str, os.PathLike)) and os.fspath(path).endswith((".npz", ".npy")):
        raise UserError(
            f"{os.fspath(path)} is a file of numpy, which is not read in place; give its arrays, as numpy.load "
            "returns them, or import them: dsinga data import npz SOURCE DESTINATION"
        )


def _refusal(x: Any) -> UserError:
    """Return the error for records of another type, with the remedy for types that people often have."""
    kind, remedy = type(x).__name__, "give an array, a pair (x, y), a data frame, or the path or URL of a store"
    if type(x).__module__.startswith("zarr."):
        remedy = 'give its path, or its arrays: (group["x"], group["y"])'
    elif hasattr(x, "toarray"):
        remedy = "sparse matrices are not read; give x.toarray()"
    return UserError(f"records cannot be read from a {kind}; {remedy}")


def _check_options(options: Mapping[str, Any], what: str, *known: str) -> None:
    """Raise UserError for an option that has no meaning for this kind of source."""
    for name, value in options.items():
        if value is not None and name not in known:
            allowed = f"; it takes {', '.join(known)}" if known else ""
            raise UserError(f"open_records has no use for {name}= with {what}{allowed}; leave it out")


def _pair(source: Any) -> tuple[Any, Any]:
    """Return x and y of a pair, or the source and None."""
    if not isinstance(source, tuple):
        return source, None
    if len(source) != 2:
        raise UserError(f"a tuple of records has 2 parts, x and y, not {len(source)}")
    return source

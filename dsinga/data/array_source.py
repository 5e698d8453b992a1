"""Records and labels from arrays that live in Python: numpy arrays, dask arrays, and what converts to numpy."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from dsinga.data.array_column import ArrayColumn
from dsinga.data.array_kinds import is_dask_array
from dsinga.data.column import Column
from dsinga.data.conversion import label_dtype, record_dtype
from dsinga.data.record_source import RecordSource
from dsinga.data.store_format import SMALL_BYTES
from dsinga.errors import UserError
from dsinga.registry import nearest


def array_source(
    x: Any,
    y: Any = None,
    *,
    location: str = "",
    names: tuple[str, str] = ("x", "y"),
    classes: Sequence[str] | None = None,
    titles: Sequence[str] = (),
) -> RecordSource:
    """Return the source of the records ``x`` and the labels ``y``.

    Args:
        x: numpy or dask array (n, ...), or what numpy converts to one; or a column.
        y: labels (n,), or a row of labels or of targets for each record (n, K); or a column; None without.
        location: the words by which messages call the source; by default the kind of ``x``.
        names: the names by which messages call ``x`` and ``y``.
        classes: the names of the labels 0, 1, ...; labels that are strings are coded by their place among these.
        titles: the names of the columns of ``x``, if it is a table.

    Raises:
        UserError: an array has a dtype, a shape, chunks or a length that does not do.
    """
    data = column(x, names[0], titles=titles)
    labels = None if y is None else label_column(y, names[1], data.length, classes)
    location = location or f"{'dask' if is_dask_array(x) else 'numpy'} array"
    return RecordSource(location, data, labels, classes=classes or ())


def column(array: Any, name: str, labels: bool = False, titles: Sequence[str] = ()) -> Column:
    """Return the column of an array: a dask array is computed when it is read, any other one is in memory.

    A column is returned as it is.
    """
    if isinstance(array, Column):
        return array
    dask = is_dask_array(array)
    array = array if dask else as_numpy(array, name)
    if not array.ndim or (labels and array.ndim > 2):
        needed = "labels need the shape (n,) or (n, K)" if labels else "records need a row each"
        raise UserError(f"{name!r} has the shape {array.shape}, but {needed}")
    try:
        (label_dtype if labels else record_dtype)(array.dtype)
    except UserError as error:
        raise UserError(f"{name!r}: {error}") from None
    if dask:
        from dsinga.data.dask_column import DaskColumn

        return DaskColumn(array, name, labels, titles)
    return ArrayColumn(array, name, labels, titles)


def label_column(y: Any, name: str, length: int, classes: Sequence[str] | None = None) -> Column:
    """Return the column of the labels of ``length`` records.

    Labels that Dask computes are computed at once, except for float labels of more than 128 MiB: their smallest and
    largest value is needed before training.
    """
    if is_dask_array(y):
        from dsinga.data.dask_column import check_chunks, compute

        check_chunks(y, name)
        if y.dtype.kind in "OSUT" or (y.shape[:1] == (length,) and (y.dtype.kind in "bui" or y.nbytes <= SMALL_BYTES)):
            (y,) = compute(y)
    if not is_dask_array(y) and not isinstance(y, Column):
        y = as_numpy(y, name)
        if y.dtype.kind in "OSUT":
            y = codes(y, name, classes)
    return column(y, name, labels=True)


def as_numpy(array: Any, name: str) -> np.ndarray:
    """Return an array, or what numpy converts to one, as a numpy array; a mask must not hide any of its numbers."""
    if np.ma.isMaskedArray(array) and np.ma.is_masked(array):
        raise UserError(f"{name!r} has masked numbers; fill them: {name}.filled(0)")
    try:
        return np.asarray(array)
    except (TypeError, ValueError) as error:
        hint = "; give records and labels as a tuple, (x, y)" if isinstance(array, list) and len(array) == 2 else ""
        text = f"{name!r}, a {type(array).__name__}, does not convert to a numpy array: {error}"
        raise UserError(text.removesuffix(".") + hint) from None


def codes(labels: np.ndarray, name: str, classes: Sequence[str] | None) -> np.ndarray:
    """Return the place of each label among ``classes``, int64; raise UserError for one that is not among them.

    Without ``classes`` strings are refused: those of the training and the test records could get different codes.
    """
    values, places = np.unique(labels.astype(str), return_inverse=True)
    if classes is None:
        known = ", ".join(repr(str(value)) for value in values[:10]) + (", ..." if len(values) > 10 else "")
        raise UserError(
            f"{name!r} has labels that are strings; name the classes in the order of their codes, the same for all "
            f"phases: open_records(..., classes=[{known}])"
        )
    places_of = {str(name): place for place, name in enumerate(classes)}
    for number, value in enumerate(values):
        if str(value) not in places_of:
            record = int(np.argmax(places.reshape(-1) == number)) // max(1, labels[:1].size)
            text = f"{name!r} has the label {str(value)!r} in record {record}, which is not among the classes"
            raise UserError(f"{text}{nearest(str(value), list(places_of))}")
    return np.array([places_of[str(value)] for value in values], np.int64)[places].reshape(labels.shape)

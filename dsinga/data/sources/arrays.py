"""Opens arrays in memory as records; defines Kind, the interface for opening each kind of object."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from dsinga.base.errors import UserError
from dsinga.base.registry import nearest
from dsinga.data.array_kinds import ArrayOrder, is_arrow_table, order_of
from dsinga.data.column import Column
from dsinga.data.conversion import as_labels, as_records, label_dtype, record_dtype
from dsinga.data.missing_values import with_nan
from dsinga.data.record_source import RecordSource
from dsinga.data.stores.store_format import MAX_BLOCK_BYTES, block_rows

Labels = tuple[Column, Sequence[str] | None]  # and the names of their classes, if known
CONVERTED_BYTES = 16 << 20  # the most bytes of rows that are converted at once and kept beside the array


@dataclass(frozen=True)
class Options:
    """How records are opened: the options of :func:`dsinga.data.open_records`."""

    data: str | None = None
    label: str | None = None
    columns: Sequence[str] | None = None
    dim: str | None = None
    classes: Sequence[str] | None = None
    roots: Sequence[str] = ()


class DataAndLabels(NamedTuple):
    """The records of an object as a column, and its labels in any form.

    Attributes:
        labels: an array, a data frame or a path; None without labels.
    """

    location: str
    data: Column
    labels: Any = None
    label_name: str = "y"
    label_order: ArrayOrder = ()


def array_records(x: Any, y: Any, options: Options) -> DataAndLabels:
    """Open an array (n, ...), or an object that numpy converts to one, as records."""
    array = as_numpy(x, "x")
    if array.dtype.kind == "O" and is_arrow_table(x):
        raise UserError(f"the {type(x).__name__} has columns that are no numbers; give dsinga.table(frame) of it")
    column = ArrayColumn(array, "x")
    column.order = order_of(x)
    return DataAndLabels("numpy array", column, y)


def array_labels(y: Any, name: str, length: int, options: Options) -> Labels:
    """Return labels (n, ...) as a column; strings become their index among the classes."""
    y = as_numpy(y, name, is_label=True)
    if y.dtype.kind in "OSUT":
        y = codes(y, name, options.classes)
    return ArrayColumn(y, name, labels=True), options.classes


class Kind(NamedTuple):
    """How objects of one kind, such as pandas data frames, are opened as records or labels.

    A function that returns the kind of an object, or None, is registered under package and class:
    ``@register("records", "pandas.DataFrame")``. For files it is a function of the path, registered under the suffix,
    ``@register("records", ".tif")``. It returns a :class:`dsinga.data.RecordSource` and accepts the settings of
    ``store_conf`` by ``**settings``. A distribution names either in the entry points ``dsinga.addons``:
    ``"records.polars.DataFrame" = "my_package.tables"``.

    >>> import dsinga
    >>> from dsinga.data.sources.arrays import Kind, array_records
    >>> class Table:
    ...     def __init__(self, rows):
    ...         self.rows = rows
    >>> @dsinga.register("records", f"{__name__}.Table")
    ... def table_kind(table):
    ...     return Kind("a table", lambda x, y, options: array_records(x.rows, y, options))

    Attributes:
        words: what messages call such an object.
        records: returns the records of an object with the labels ``y``, or both as a source of records.
        options: the options of :func:`open_records` that have a meaning for the records of an object.
        labels: returns an object's column of labels, from the object, its name, the number of records, and the options.
    """

    words: str
    records: Callable[[Any, Any, Options], DataAndLabels | RecordSource]
    options: tuple[str, ...] = ("classes",)
    labels: Callable[[Any, str, int, Options], Labels] = array_labels


def is_array(value: Any) -> bool:
    """Whether ``value`` is an array of any library or a list, which numpy can convert."""
    return hasattr(value, "__array__") or isinstance(value, list)


ARRAYS = Kind("an array", array_records)


class ArrayColumn(Column):
    """Records or labels in a numpy array (length, *shape), converted when they are read.

    A pickle contains the whole array, so send it to each process only once.

    Args:
        array: the array; do not change it while it is read.
        labels: whether the array has labels, with label dtypes, rather than records.
    """

    from_files = False
    reads_regions = in_memory = True

    def __init__(self, array: np.ndarray, name: str, labels: bool = False):
        self.array, self.labels = array, labels
        dtype = column_dtype(array, name, labels)
        block = block_rows(len(array), array[:1].size * dtype.itemsize)
        super().__init__(name, len(array), array.shape[1:], dtype, block)

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != "whole"}

    @cached_property
    def whole(self) -> np.ndarray | None:  # type: ignore[override]
        """All rows at once, if a view or a copy of few bytes can give them; else None."""
        flags = self.array.flags
        is_ready = self.array.dtype == self.dtype and flags.c_contiguous and flags.aligned
        if self.ranges is not None or not (is_ready or self.length * self.row_bytes <= CONVERTED_BYTES):
            return None
        return np.require(convert(self.array, self, self.labels), requirements=["C", "ALIGNED"])

    def load(self, start: int, stop: int) -> np.ndarray:
        """Return the rows ``start`` to ``stop``, without a copy if the dtype is right."""
        array = self.array if self.whole is None else self.whole
        return convert(array[(slice(start, stop), *self.index)], self, self.labels)

    def why_unsendable(self) -> str:
        """Return "": arrays of numbers can be sent to any process."""
        return ""


def column_dtype(array: Any, name: str, labels: bool = False) -> np.dtype:
    """Return the dtype in which the rows of an array are read: uint8, int32, int64 or float32."""
    if not array.ndim:
        needed = "labels need a row each; give [label]" if labels else "records need a row each; give [[number]]"
        raise UserError(f"{name!r} has the shape {array.shape}, but {needed}")
    try:
        return label_dtype(array.dtype) if labels else record_dtype(array.dtype, array)
    except UserError as error:
        raise UserError(f"{name!r}: {error}") from None


def as_numpy(array: Any, name: str, is_label: bool = False) -> np.ndarray:
    """Convert an array-like object to a numpy array, with NaN in place of missing values."""
    array = with_nan(array, name, is_label)
    try:
        return np.asarray(with_nan(np.asanyarray(array), name))  # a variable of netCDF4 becomes a masked array
    except (TypeError, ValueError) as error:
        if isinstance(array, list) and all(isinstance(each, (tuple, list)) and len(each) == 2 for each in array):
            raise UserError(
                f"{name!r} is a list of {len(array)} pairs, such as batches (x, y); give one pair of arrays, as in "
                "(np.concatenate([x for x, y in batches]), np.concatenate([y for x, y in batches])), or write the "
                "batches to a store by dsinga.data.write_store(path, batches), and give the path"
            ) from None
        hint = "; give records and labels as a tuple, (x, y)" if isinstance(array, list) and len(array) == 2 else ""
        text = f"{name!r}, a {type(array).__name__}, does not convert to a numpy array: {error}"
        raise UserError(text.removesuffix(".") + hint) from None


def codes(labels: np.ndarray, name: str, classes: Sequence[str] | None) -> np.ndarray:
    """Convert labels to int64 codes: the index of each in ``classes``. Raises UserError for unknown labels."""
    values, places = np.unique(labels.astype(str), return_inverse=True)
    if classes is None:
        known = ", ".join(repr(str(value)) for value in values[:10]) + (", ..." if len(values) > 10 else "")
        raise UserError(
            f"{name!r} has labels that are strings; name the classes in the order of their codes, the same for all "
            f"phases, as in dsinga.data.open_records((x, y), classes=[{known}]) in place of x and y"
        )
    places_of = {str(name): place for place, name in enumerate(classes)}
    for number, value in enumerate(values):
        if str(value) not in places_of:
            record = int(np.argmax(places.reshape(-1) == number)) // max(1, labels[:1].size)
            text = f"{name!r} has the label {str(value)!r} in record {record}, which is not among the classes"
            raise UserError(f"{text}{nearest(str(value), list(places_of))}")
    return np.array([places_of[str(value)] for value in values], np.int64)[places].reshape(labels.shape)


def convert(rows: np.ndarray, column: Column, labels: bool = False) -> np.ndarray:
    """Return rows in their column's dtype: a view if they cast safely, else a copy."""
    if rows.dtype.kind in "bui" and np.can_cast(rows.dtype, column.dtype):
        return rows[:]  # a view, since the cache makes it read-only
    column.warn_of_rounding(rows)
    try:
        return (as_labels if labels else as_records)(rows)[:]
    except UserError as error:
        raise UserError(f"{column.name!r}: {error}") from None


def check_block(column: Column, remedy: str) -> None:
    """Refuse a column with blocks so large that ten may not fit in memory."""
    if column.block_bytes > MAX_BLOCK_BYTES:
        raise UserError(
            f"{column.name!r} has chunks of {column.block_bytes >> 20} MiB, and reading keeps up to ten in memory; at "
            f"most {MAX_BLOCK_BYTES >> 20} MiB do; {remedy}"
        )

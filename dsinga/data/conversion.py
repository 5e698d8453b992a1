"""Converts records and labels to the dtypes that nets compute with, and finds NaN and infinity."""

from __future__ import annotations

import math
from numbers import Real
from typing import Any, NamedTuple

import numpy as np

from dsinga.base.arguments import value_text
from dsinga.base.errors import UserError

_REMEDIES = {
    "c": "give the real and the imaginary part as two numbers",
    "S": "give codes of the strings",
    "U": "give codes of the strings",
    "T": "give codes of the strings",
    "M": "give a number, such as days since a date",
    "m": "give a number of seconds or days",
    "V": "give one array for each field",
}


def record_dtype(dtype: Any, array: Any = None) -> np.dtype:
    """Return the dtype in which records are read: uint8 for uint8 and bool, int32 for int32, else float32."""
    dtype = np.dtype(dtype)
    if dtype.kind not in "buif":
        if dtype.kind == "O" and isinstance(array, np.ndarray) and array.ndim:
            raise UserError(f"records must be numbers, not {dtype.name}; {_remedy_of_objects(array)}")
        raise UserError(f"records must be numbers, not {_named(dtype)}")
    if dtype in (np.uint8, np.bool_):
        return np.dtype(np.uint8)
    return np.dtype(np.int32 if (dtype.kind, dtype.itemsize) == ("i", 4) else np.float32)


def label_dtype(dtype: Any) -> np.dtype:
    """Return the dtype in which labels are read: int64 for integers and bool, float32 for floats."""
    dtype = np.dtype(dtype)
    if dtype.kind not in "buif":
        example = ", as in [classes.index(label) for label in y]" if dtype.kind in "SUT" else ""
        raise UserError(f"labels must be integers or floats, not {_named(dtype)}{example}")
    return np.dtype(np.float32 if dtype.kind == "f" else np.int64)


def as_records(array: np.ndarray) -> np.ndarray:
    """Convert records to uint8, int32 or float32. Raises UserError for a value that float32 cannot represent."""
    return array if array.dtype == np.float32 else _cast(array, record_dtype(array.dtype, array), "records")


def as_labels(array: np.ndarray) -> np.ndarray:
    """Convert labels to int64 or float32. Raises UserError for a value that cannot be represented."""
    dtype = label_dtype(array.dtype)
    if array.dtype.kind == "u" and array.size and int(array.max()) > np.iinfo(np.int64).max:
        raise UserError(f"label {array.max()} does not fit into 64 bits")
    return _cast(array, dtype, "labels")


def _cast(array: np.ndarray, dtype: np.dtype, what: str) -> np.ndarray:
    if array.dtype == dtype:
        return array
    try:
        with np.errstate(over="raise"):
            return array.astype(dtype, copy=False)
    except FloatingPointError:
        raise UserError(f"{what} have values beyond the range of float32; scale them") from None


def _named(dtype: np.dtype) -> str:
    name = "records of fields" if dtype.fields else "strings" if dtype.kind in "SUT" else dtype.name
    return f"{name}; {_REMEDIES.get(dtype.kind, 'give an array with a dtype of numbers')}"


def _remedy_of_objects(records: np.ndarray) -> str:
    """Advise on an array of dtype object: which value is no number, or which dtype to use."""
    for place, value in np.ndenumerate(records):
        if isinstance(value, Real):
            continue
        text = f"record {place[0]} has {value_text(value)}"
        if isinstance(value, str) and records.ndim == 2:
            return (
                f"{text} in column {place[1]}; leave the column out, or give the data frame to dsinga.table(frame, y)"
            )
        return f"{text}; give an array with a dtype of numbers"
    return "all are numbers, so give .astype('float32') of the array"


class Nonfinite(NamedTuple):
    """Where an array (n, ...) has its first NaN or infinity: row, position in it, and which."""

    row: int
    position: tuple[int, ...]
    value: str


def find_nonfinite(rows: np.ndarray, allows_nan: bool = False) -> Nonfinite | None:
    """Find the first NaN or infinity in ``rows`` (n, ...); None if there is none.

    With ``allows_nan``, NaN does not count: it marks masked points of targets that are fields.
    """
    if rows.dtype.kind != "f":
        return None
    with np.errstate(over="ignore", invalid="ignore"):
        if is_small_and_finite(rows):
            return None
        if np.isfinite(rows.sum()):  # a NaN or infinity makes the sum one, too; no array in between
            return None
    finite = ~np.isinf(rows) if allows_nan else np.isfinite(rows)
    if finite.all():  # the sum was too large
        return None
    row, *index = (int(position) for position in np.unravel_index(int(np.argmin(finite)), rows.shape))
    return Nonfinite(row, tuple(index), "NaN" if np.isnan(rows[(row, *index)]) else "infinity")


def is_small_and_finite(rows: np.ndarray) -> bool:
    """Test quickly whether a small array is finite: True is certain, False is not."""
    return rows.size <= 4096 and rows.flags.c_contiguous and math.isfinite(np.dot(flat := rows.reshape(-1), flat))


def place_of(index: tuple[int, ...]) -> str:
    """Name the position of a number in a row, for messages: "column 3", or "index (0, 2, 5)"."""
    if len(index) < 2:
        return "".join(f"column {position}" for position in index)
    return f"index ({', '.join(map(str, index))})"


def nonfinite_error(what: str, value: str, record: int, place: str, remedy: str = "") -> UserError:
    """Return the error that a record has NaN or infinity."""
    where = f"record {record}, {place}" if place else f"record {record}"
    return UserError(f"{what} has {value} in {where}; leave such records out, or put a number in its place{remedy}")

"""Reads the values of an Arrow column: as numbers, as texts of categories, or as parts of dates."""

from __future__ import annotations

from typing import Any

import numpy as np

from dsinga.base.errors import UserError

WORDS = {"number": "numbers", "boolean": "booleans", "category": "texts", "date": "dates"}


def kind_of(arrow_type: Any) -> str | None:
    """Return what the values of an Arrow type are: a kind of :data:`.definition.KINDS`, or "" for no values at all.

    None stands for a type that no column of a table has, such as lists.
    """
    from pyarrow import types

    if types.is_null(arrow_type):
        return ""
    if types.is_boolean(arrow_type):
        return "boolean"
    if types.is_integer(arrow_type) or types.is_floating(arrow_type) or types.is_decimal(arrow_type):
        return "number"
    if types.is_duration(arrow_type):
        return "number"
    if types.is_timestamp(arrow_type) or types.is_date(arrow_type):
        return "date"
    if types.is_dictionary(arrow_type):
        return "category"
    is_text = types.is_string(arrow_type) or types.is_large_string(arrow_type) or types.is_string_view(arrow_type)
    return "category" if is_text else None


def require_kind(column: Any, name: str, *kinds: str) -> None:
    """Raise UserError unless the values of an Arrow column are of one of these kinds, or all missing."""
    kind = kind_of(column.type)
    if kind != "" and kind not in kinds:
        has = WORDS.get(kind or "", f"values of type {column.type}")
        raise UserError(
            f"column {name!r} of the table has {has}, but {WORDS[kinds[0]]} in the records of training; convert it"
        )


def as_numbers(column: Any, name: str) -> np.ndarray:
    """Return an Arrow column of numbers or booleans as float64, NaN where a value is missing; durations in seconds."""
    import pyarrow

    require_kind(column, name, "number", "boolean")
    if pyarrow.types.is_duration(column.type):
        microseconds = column.cast(pyarrow.duration("us"), safe=False).cast(pyarrow.int64())
        return _to_numpy(microseconds.cast(pyarrow.float64(), safe=False)) / 1e6
    if pyarrow.types.is_boolean(column.type):
        column = column.cast(pyarrow.uint8())
    return _to_numpy(column.cast(pyarrow.float64(), safe=False))


def as_texts(column: Any, name: str) -> Any:
    """Return an Arrow column of categories as texts; whole numbers have no point, whatever their type."""
    import pyarrow
    import pyarrow.compute

    require_kind(column, name, "category", "number", "boolean")
    text = pyarrow.large_string()
    if pyarrow.types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    if pyarrow.types.is_floating(column.type):
        column = pyarrow.compute.if_else(pyarrow.compute.is_nan(column), None, column)
        whole = pyarrow.compute.equal(column, pyarrow.compute.trunc(column))
        if pyarrow.compute.all(whole).as_py() is not False:
            column = column.cast(pyarrow.int64())
    return column.cast(text)


def date_part(column: Any, name: str, part: str) -> np.ndarray:
    """Return a part of the dates of an Arrow column as float64, NaN where a date is missing; see :data:`PARTS`.

    Dates of a time zone count by its clock.
    """
    import pyarrow
    import pyarrow.compute as functions

    require_kind(column, name, "date")
    if kind_of(column.type) == "":
        return np.full(len(column), np.nan)
    if getattr(column.type, "tz", None):
        column = functions.local_timestamp(column)
    column = column.cast(pyarrow.timestamp("us"), safe=False)
    if part == "day":
        return _to_numpy(column.cast(pyarrow.int64()).cast(pyarrow.float64(), safe=False)) / 86_400e6
    arrow_name = {"monthday": "day", "yearday": "day_of_year", "weekday": "day_of_week"}.get(part, part)
    return _to_numpy(getattr(functions, arrow_name)(column).cast(pyarrow.float64()))


def _to_numpy(column: Any) -> np.ndarray:
    """Return an Arrow column of float64, in which missing values become NaN."""
    numbers: np.ndarray = column.to_numpy(zero_copy_only=False) if hasattr(column, "type") else column
    return numbers

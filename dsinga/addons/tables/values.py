"""Reads the values of an Arrow column: as numbers, as categories, or as parts of dates."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from dsinga.base.errors import UserError

WORDS = {"number": "numbers", "boolean": "booleans", "category": "texts", "date": "dates"}  # of each kind of column
DAY = 86_400_000_000  # microseconds
SECONDS = {"hour": (3600, 24), "minute": (60, 60), "second": (1, 60)}  # of a part, and how many there are
ARROW_PARTS = {"monthday": "day", "yearday": "day_of_year", "weekday": "day_of_week"}
MOST_DAYS = 100_000  # between the first and the last date: up to it, each day is looked up


def kind_of(arrow_type: Any) -> str | None:
    """Classify an Arrow type: a kind of :data:`WORDS`, "" for no values, None if unsupported, such as lists."""
    from pyarrow import types

    if types.is_null(arrow_type):
        return ""
    if types.is_boolean(arrow_type):
        return "boolean"
    numbers = (types.is_integer, types.is_floating, types.is_decimal, types.is_duration, types.is_time)
    if any(is_number(arrow_type) for is_number in numbers):
        return "number"
    if types.is_timestamp(arrow_type) or types.is_date(arrow_type):
        return "date"
    if types.is_dictionary(arrow_type):
        return None if kind_of(arrow_type.value_type) is None else "category"
    if types.is_string(arrow_type) or types.is_large_string(arrow_type) or types.is_string_view(arrow_type):
        return "category"
    return None


def zone_of(arrow_type: Any) -> str | None:
    """Return the time zone of an Arrow type's dates, "" without one; None for other values."""
    arrow_type = getattr(arrow_type, "value_type", arrow_type)  # of categories
    return (getattr(arrow_type, "tz", None) or "") if kind_of(arrow_type) == "date" else None


def zone_words(zone: str) -> str:
    """Describe dates of a time zone for messages."""
    return f"dates of the time zone {zone}" if zone else "dates without a time zone"


def in_zone(column: Any, name: str, zone: str | None) -> Any:
    """Convert an Arrow column's dates to the time zone of training, "" for dates without one.

    None keeps them unchanged.
    """
    import pyarrow

    given = zone_of(column.type)
    if zone is None or given in (None, zone) or column.null_count == len(column):
        return column
    if not (zone and given):
        raise UserError(
            f"column {name!r} of the table has {zone_words(given or '')}, but {zone_words(zone)} in the records of "
            f"training; frame[{name!r}].dt.tz_localize({zone or None!r}) gives such dates"
        )
    value_type = getattr(column.type, "value_type", column.type)
    return column.cast(value_type).cast(pyarrow.timestamp(value_type.unit, zone))


def is_missing(column: Any) -> np.ndarray:
    """Mark the missing values of an Arrow column: null or NaN."""
    missing: np.ndarray = column.is_null(nan_is_null=True).to_numpy(zero_copy_only=False)
    return missing


def _of_kind(column: Any, name: str, *kinds: str) -> Any:
    """Check the kind of an Arrow column, and decode categories of these kinds."""
    import pyarrow

    column_type = column.type
    if pyarrow.types.is_dictionary(column_type) and kind_of(column_type.value_type) in kinds:
        column = column.cast(column_type.value_type)
    kind = kind_of(column.type)
    if kind in kinds:
        return column
    if kind == "" or column.null_count == len(column) or kind == "number" and is_missing(column).all():
        return pyarrow.nulls(len(column), pyarrow.bool_() if "boolean" in kinds else pyarrow.timestamp("us"))
    has = WORDS.get(kind or "", f"values of type {column_type}")
    raise UserError(
        f"column {name!r} of the table has {has}, but {WORDS[kinds[0]]} in the records of training; convert it"
    )


class Indexed(NamedTuple):
    """Values of a column as places (rows,) in distinct values; the last one is NaN for missing."""

    places: np.ndarray
    distinct: np.ndarray

    def whole(self) -> np.ndarray:
        """Return the value of each row."""
        return self.distinct.take(self.places)


def indexed_numbers(column: Any, name: str) -> Indexed | np.ndarray:
    """Convert an Arrow column like :func:`as_numbers`, indexed if it has few distinct integers."""
    import pyarrow

    if not pyarrow.types.is_integer(column.type):
        return as_numbers(column, name)
    whole = column.fill_null(0) if column.null_count else column
    numbers = whole.to_numpy(zero_copy_only=False)
    least, most = int(numbers.min(initial=0)), int(numbers.max(initial=0))
    if most - least > len(numbers) // 2:
        return as_numbers(column, name)
    places = numbers.astype(np.int64) - least
    if column.null_count:
        places[column.is_null().to_numpy(zero_copy_only=False)] = most - least + 1
    return Indexed(places, np.append(np.arange(least, most + 1, dtype=np.float64), np.nan))


def as_numbers(column: Any, name: str, kind: str = "number") -> np.ndarray:
    """Convert an Arrow column of numbers or booleans to float64, NaN for missing values.

    Durations, and times of a day, are in seconds; -0.0 becomes 0.0.
    """
    import pyarrow

    column, unit = _of_kind(column, name, kind, "number", "boolean"), 1.0
    if pyarrow.types.is_duration(column.type) or pyarrow.types.is_time(column.type):
        to_unit = pyarrow.duration if pyarrow.types.is_duration(column.type) else pyarrow.time64
        column, unit = column.cast(to_unit("us"), safe=False).cast(pyarrow.int64()), 1e6
    if pyarrow.types.is_boolean(column.type):
        column = column.cast(pyarrow.uint8())
    numbers: np.ndarray = column.cast(pyarrow.float64(), safe=False).to_numpy(zero_copy_only=False)
    return numbers / unit + 0.0


def indexed_texts(column: Any, name: str) -> Iterator[tuple[Any, np.ndarray]]:
    """Yield the texts of each stretch of an Arrow column of categories, and each row's place.

    The place of a missing value is the number of texts. Texts may repeat, or be null. Whole numbers have no point,
    whatever their type.
    """
    import pyarrow

    if kind_of(column.type) not in WORDS:
        column = _of_kind(column, name, "category", *WORDS)
    if pyarrow.types.is_string_view(column.type):
        column = column.cast(pyarrow.large_string())
    for part in column.chunks if isinstance(column, pyarrow.ChunkedArray) else [column]:
        coded = part if pyarrow.types.is_dictionary(part.type) else part.dictionary_encode()
        texts = _texts_of(coded.dictionary)
        places = coded.indices.cast(pyarrow.int64()).fill_null(len(texts)).to_numpy(zero_copy_only=False)
        if texts.null_count:
            is_null = np.append(texts.is_null().to_numpy(zero_copy_only=False), False)
            places = np.where(is_null[places], len(texts), places)
        yield texts, places


def codes_of(column: Any, name: str, known: Sequence[str]) -> tuple[np.ndarray, tuple[int, str] | None]:
    """Encode the texts of an Arrow column: the place in ``known`` + 1, 0 for others.

    Also return the row and text of the first unknown text, or None.
    """
    import pyarrow
    import pyarrow.compute

    codes, new = [np.empty(0, np.int32)], None
    for texts, places in indexed_texts(column, name):
        found = pyarrow.compute.index_in(texts, value_set=pyarrow.array(known, texts.type))
        codes.append(np.append(found.fill_null(-1).to_numpy(zero_copy_only=False) + 1, 0).astype(np.int32).take(places))
        is_new = (codes[-1] == 0) & (places < len(texts))
        if new is None and is_new.any():
            row = int(np.argmax(is_new))
            new = sum(map(len, codes[:-1])) + row, texts[int(places[row])].as_py()
    return np.concatenate(codes), new


def _texts_of(values: Any) -> Any:
    """Convert an Arrow array to large strings, with the same text for a number of any type.

    Durations, and times of a day, are in seconds.
    """
    import pyarrow
    import pyarrow.compute

    if pyarrow.types.is_decimal(values.type):
        texts = [None if value is None else f"{value.normalize():f}" for value in values.to_pylist()]
        return pyarrow.array(texts, pyarrow.large_string())
    if pyarrow.types.is_duration(values.type) or pyarrow.types.is_time(values.type):
        values = pyarrow.array(as_numbers(values, ""))
    if pyarrow.types.is_floating(values.type):
        return pyarrow.array(map(_text_of, values.to_numpy(zero_copy_only=False)), pyarrow.large_string())
    if pyarrow.types.is_boolean(values.type):  # as Python and pandas write them
        return pyarrow.compute.if_else(values, "True", "False").cast(pyarrow.large_string())
    if kind_of(values.type) == "date":
        values = values.cast(pyarrow.timestamp("us", getattr(values.type, "tz", None)), safe=False)
    return values.cast(pyarrow.large_string())


def _text_of(number: Any) -> str | None:
    """Format a numpy float: whole without a point, others with their type's digits."""
    if np.isnan(number):
        return None
    return str(int(number)) if np.isfinite(number) and number == np.trunc(number) else str(number)


class Dates:
    """The dates of an Arrow column, with their parts such as day or hour.

    Attributes:
        microseconds: since 1970, (rows,) int64; 0 for a missing date.
    """

    def __init__(self, column: Any, name: str):
        import pyarrow
        import pyarrow.compute

        column = _of_kind(column, name, "date")
        if zone := getattr(column.type, "tz", None):
            try:
                column = pyarrow.compute.local_timestamp(column)
            except pyarrow.ArrowInvalid as error:
                raise UserError(
                    f"column {name!r} of the table has the time zone {zone!r}, which is not known here ({error}); "
                    f"convert it: frame[{name!r}].dt.tz_convert('UTC')"
                ) from error
        dates = column.cast(pyarrow.timestamp("us"), safe=False).cast(pyarrow.int64())
        self._missing = dates.is_null().to_numpy(zero_copy_only=False) if dates.null_count else None
        self.microseconds = (dates.fill_null(0) if dates.null_count else dates).to_numpy(zero_copy_only=False)
        self._days = self.microseconds // DAY
        self._seconds = ((self.microseconds - self._days * DAY) // 1_000_000).astype(np.int32)  # of the day
        self._first, self._last = int(self._days.min(initial=0)), int(self._days.max(initial=0))

    def part(self, part: str) -> Indexed | np.ndarray:
        """Return a part of the dates, float64, NaN for missing dates; see :data:`.definition.PARTS`."""
        import pyarrow
        import pyarrow.compute as functions

        if part == "day":
            days = self.microseconds / DAY
            if self._missing is not None:
                days[self._missing] = np.nan
            return days
        if part in SECONDS:
            seconds, count = SECONDS[part]
            since = self._seconds // seconds
            places, distinct = since - since // count * count, np.arange(float(count))  # % takes five times as long
        else:
            if self._last - self._first > MOST_DAYS:
                known, places = np.unique(self._days, return_inverse=True)
            else:
                known, places = np.arange(self._first, self._last + 1), self._days - self._first
            days = pyarrow.array(known, pyarrow.int32()).cast(pyarrow.date32())
            distinct = getattr(functions, ARROW_PARTS.get(part, part))(days).to_numpy().astype(np.float64)
        if self._missing is not None:
            places = np.where(self._missing, len(distinct), places)
        return Indexed(places, np.append(distinct, np.nan))

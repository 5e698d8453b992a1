"""Settings of windows as a user may give them, each brought into its one form or refused."""

from __future__ import annotations

import operator
import reprlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import date, timedelta
from numbers import Real
from typing import Any, TypeVar

import numpy as np

from dsinga.base.errors import UserError

T = TypeVar("T")
Label = str | float  # of a coordinate: a number, or a date as text

MOST_POINTS = 1 << 40  # that a setting may name: no data have more
NUMBER = "a finite number for each variable, such as {'sst': 0.0}"
EDGE = "what lies beyond the data by dimension, such as {'lon': 'periodic'}"
ENDS = "the first and last coordinate by dimension, such as {'time': ('2001-01-01', None)}"


def refused(what: str, wanted: str, value: Any) -> UserError:
    """Return the error for a setting that is not what is wanted."""
    return UserError(f"{what} takes {wanted}, not {reprlib.repr(value)}")


def names_of(what: str, names: Any) -> tuple[str, ...]:
    """Return a name, or several in their order, as a tuple; none of None."""
    if names is None:
        return ()
    if isinstance(names, str):
        return (names,)
    has_order = isinstance(names, Iterable) and not isinstance(names, (set, frozenset, bytes))
    is_scalar = isinstance(names, np.ndarray) and not names.ndim
    listed = list(names) if has_order and not is_scalar else [None]
    if not all(isinstance(name, str) for name in listed):
        raise refused(what, "a name or a list of names", names)
    return tuple(map(str, listed))


def numbers_of(what: str, numbers: Any) -> tuple[Any, ...]:
    """Return finite numbers in their order as a tuple, whole ones as ints; none of None."""
    if numbers is None:
        return ()
    if isinstance(numbers, (str, bytes, Mapping)) or np.ndim(numbers) != 1:
        raise refused(what, "a list of numbers, one for each lead", numbers)
    return tuple(whole_of(as_number(what, "a list of numbers, one for each lead", number)) for number in numbers)


def by_dim(what: str, given: Any, convert: Callable[[str, str, Any], T]) -> dict[str, T]:
    """Return a number of points by dimension, each converted by ``convert(what, dim, value)``."""
    if given is None:
        return {}
    if not isinstance(given, Mapping) or not all(isinstance(dim, str) for dim in given):
        raise UserError(
            f"{what} has a number of points for each dimension, such as {{'time': 1}}, not {reprlib.repr(given)}"
        )
    return {str(dim): convert(what, str(dim), value) for dim, value in given.items()}


def by_name(what: str, given: Any, wanted: str, convert: Callable[[str, str, Any], T]) -> dict[str, T]:
    """Return a setting by the name of a variable or dimension, each converted by ``convert(what, wanted, value)``."""
    if given is None:
        return {}
    if not isinstance(given, Mapping) or not all(isinstance(name, str) for name in given):
        raise refused(what, wanted, given)
    return {str(name): convert(f"{what} of {name!r}", wanted, value) for name, value in given.items()}


def points(what: str, dim: str, value: Any) -> int:
    """Return a number of points; raise UserError for anything else, such as a span of time."""
    try:
        number = None if isinstance(value, (bool, np.bool_)) else operator.index(value)
    except TypeError:
        number = None
    if number is None or abs(number) > MOST_POINTS:
        raise UserError(f"{what} of {dim!r} is a whole number of points of the data, not {reprlib.repr(value)}")
    return number


def pair_of_points(what: str, dim: str, value: Any) -> tuple[int, int]:
    """Return the context before and after a window; a single number stands for both."""
    if not isinstance(value, (Sequence, np.ndarray)) or isinstance(value, str) or np.ndim(value) != 1:
        value = (value, value)
    if len(value) != 2:
        raise UserError(f"context of {dim!r} is a number of points, or a pair (before, after), not {value!r}")
    return points(what, dim, value[0]), points(what, dim, value[1])


def whole_of(value: Any) -> Any:
    """Return a float that is whole, such as 1e9, as an int; anything else as it is."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


def as_text(what: str, wanted: str, value: Any) -> str:
    """Return a text; raise UserError for anything else."""
    if not isinstance(value, str):
        raise refused(what, wanted, value)
    return value


def as_number(what: str, wanted: str, value: Any) -> float:
    """Return a finite number; raise UserError for anything else."""
    if np.ndim(value) == 0 and isinstance(value, np.ndarray):
        value = value[()]
    if not isinstance(value, Real) or isinstance(value, (bool, np.bool_)) or not np.isfinite(float(value)):
        raise refused(what, wanted, value)
    return float(value)


def ends_of(what: str, wanted: str, ends: Any) -> tuple[Label | None, Label | None]:
    """Return the first and last coordinate: numbers, dates as text, or None for an open end."""
    if isinstance(ends, (str, bytes)) or not isinstance(ends, (Sequence, np.ndarray)) or len(ends) != 2:
        raise UserError(f"{what} is a pair (first, last) of coordinates, not {reprlib.repr(ends)}")
    return _end(what, ends[0]), _end(what, ends[1])


def _end(what: str, end: Any) -> Label | None:
    if end is None:
        return None
    if isinstance(end, (timedelta, np.timedelta64)) and end == end:
        return str(end)
    value = end.item() if isinstance(end, (np.number, np.bool_)) else end
    if isinstance(value, Real) and not isinstance(value, bool) and not np.isnan(float(value)):
        return value if isinstance(value, (int, float)) else float(value)
    is_date = isinstance(value, (date, np.datetime64)) or hasattr(value, "isoformat")  # the last of cftime
    if isinstance(value, str) or is_date and not (value != value):
        return str(value)
    raise UserError(f"{what} is between numbers, dates, times or None, not {reprlib.repr(end)}")

"""Checks settings of windows given in Python: names, mappings by dimension or variable, dates."""

from __future__ import annotations

import inspect
import operator
import reprlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import date, timedelta
from functools import partial
from numbers import Real
from typing import Any, TypeVar

import numpy as np

from dsinga.addons.fields.records.climatology import FieldClimatology, climatology_text
from dsinga.addons.fields.records.definition import EDGES, OF_DIM, WindowDefinition, WindowFillConf, with_settings
from dsinga.base.errors import UserError
from dsinga.job.component import docs
from dsinga.job.message import JobError
from dsinga.job.setting_arguments import explaining, settings_from

F = TypeVar("F", bound=Callable[..., Any])

NEVER_NONE = ("leads", "direct", "over_gaps")  # settings that do not accept None as their default
MOST_POINTS = 1 << 40  # that a setting may name: no data have more


def define_windows(**settings: Any) -> WindowDefinition:
    """Check the arguments of :func:`dsinga.windows`, and return them as a definition."""
    given = {name: value for name, value in settings.items() if value is not None or name in NEVER_NONE}
    if isinstance(edges := given.get("edges"), str):
        given["edges"] = dict.fromkeys(_by_dim(_points, "input_dims", given["input_dims"]), edges)
    for name, convert in CONVERTERS.items():
        if name in given:
            given[name] = convert(name, given[name])
    if given.get("lead") and not given.get("targets"):
        raise UserError("lead says where targets lie, but no targets are named; give targets, the names of variables")
    given["dim"] = with_settings((), {name: given.pop(name) for name in OF_DIM if name in given})
    try:
        definition = settings_from(WindowDefinition, "windows", (), given, {})
    except JobError as error:  # which calls a setting WindowDefinition.name
        raise UserError(str(error).removeprefix("WindowDefinition.")) from None
    for message in (*definition.dim, *definition.fill):
        for fault in message.all_faults():
            raise UserError(fault.text)
    return definition


def check_no_spans(dataset: Any, settings: Mapping[str, Any]) -> None:
    """Raise UserError, with the number of points to write, for a span of time in place of a number of points."""
    for name in ("input_dims", "input_overlap", "lead", "context"):
        by_dim = settings.get(name)
        for dim, value in by_dim.items() if isinstance(by_dim, Mapping) else ():
            times = dataset[dim].values if dim in dataset.coords else np.empty(0)
            if not isinstance(value, (str, timedelta, np.timedelta64)) or times.dtype.kind != "M" or len(times) < 2:
                continue
            import pandas  # type: ignore[import-untyped]

            step = pandas.Timedelta(times[1] - times[0])
            try:
                points, rest = divmod(pandas.Timedelta(value), step)
            except (ValueError, ZeroDivisionError):
                continue
            remedy = "give a multiple of it" if rest else f"write {name}={{{dim!r}: {points}}}"
            raise UserError(
                f"{name} of {dim!r} is a number of points, not {value!r}; from one point of {dim!r} to the next it is "
                f"{str(step).removeprefix('0 days ')}: {remedy}"
            )


def documented_settings(function: F) -> F:
    """Decorator that adds the settings of windows, with descriptions, to a function's docstring."""
    known = {name: f"{doc}." for name, doc in docs(WindowDefinition).items()}
    function.__doc__ = explaining(function, inspect.signature(function).parameters, known)
    return function


def _refused(what: str, wanted: str, value: Any) -> UserError:
    return UserError(f"{what} takes {wanted}, not {reprlib.repr(value)}")


def names_of(what: str, names: Any) -> list[str]:
    """Return one or several names, in order, as a list, empty for None."""
    if names is None:
        return []
    if isinstance(names, str):
        return [names]
    has_order = isinstance(names, Iterable) and not isinstance(names, (set, frozenset, bytes))
    is_scalar = isinstance(names, np.ndarray) and not names.ndim
    listed = list(names) if has_order and not is_scalar else [None]
    if not all(isinstance(name, str) for name in listed):
        raise _refused(what, "a name or a list of names", names)
    return list(map(str, listed))


def _by_dim(convert: Callable[[str, Any], Any], what: str, given: Any) -> dict[str, Any]:
    """Check a setting by dimension, and convert each value by ``convert(what it is, value)``."""
    if not isinstance(given, Mapping) or not all(isinstance(dim, str) for dim in given):
        examples = {"edges": "an edge for each dimension, such as {'lon': 'periodic'}"}
        examples["within"] = "the first and last coordinate by dimension, such as {'time': ('2001-01-01', None)}"
        raise _refused(what, examples.get(what, "a number of points for each dimension, such as {'time': 1}"), given)
    return {str(dim): convert(f"{what} of {str(dim)!r}", value) for dim, value in given.items()}


def _points(what: str, value: Any) -> int:
    try:
        number = None if isinstance(value, (bool, np.bool_)) else operator.index(value)
    except TypeError:
        number = None
    if number is None or abs(number) > MOST_POINTS:
        raise UserError(f"{what} is a whole number of points of the data, not {reprlib.repr(value)}")
    return number


def _pair_of_points(what: str, value: Any) -> tuple[int, int]:
    if not isinstance(value, (Sequence, np.ndarray)) or isinstance(value, str) or np.ndim(value) != 1:
        value = (value, value)
    if len(value) != 2:
        raise UserError(f"{what} is a number of points, or a pair (before, after), not {value!r}")
    before, after = _points(what, value[0]), _points(what, value[1])
    if min(before, after) < 0:
        raise UserError(f"{what} is {(before, after)}; give numbers of points from 0")
    return before, after


def _text(what: str, value: Any) -> str:
    if not isinstance(value, str):
        raise _refused(what, f"one of {', '.join(EDGES)}", value)
    return value


def _ends(what: str, ends: Any) -> tuple[str | None, str | None]:
    if isinstance(ends, (str, bytes)) or not isinstance(ends, (Sequence, np.ndarray)) or len(ends) != 2:
        raise UserError(f"{what} is a pair (first, last) of coordinates, not {reprlib.repr(ends)}")
    return _end(what, ends[0]), _end(what, ends[1])


def _end(what: str, end: Any) -> str | None:
    if end is None:
        return None
    is_span = isinstance(end, (timedelta, np.timedelta64))
    value = end.item() if isinstance(end, (np.number, np.bool_)) and not is_span else end
    is_number = isinstance(value, Real) and not isinstance(value, bool) and not is_span
    is_date = isinstance(value, (date, np.datetime64)) or hasattr(value, "isoformat")  # dates of cftime have the latter
    if isinstance(value, str) or (is_number or is_date or is_span) and value == value:  # NaN and NaT do not equal this
        return str(float(value) if is_number and not isinstance(value, int) else value)
    raise UserError(f"{what} is between numbers, dates, times or None, not {reprlib.repr(end)}")


def _mask(what: str, names: Any) -> list[str]:
    """Return the names of variables that may have NaN; True becomes ["*"], for all."""
    return ["*"] if names is True else [] if names is False else names_of(what, names)


def _fill(what: str, given: Any) -> list[WindowFillConf]:
    numbers, fills = given if isinstance(given, Mapping) else {"*": given}, []
    for name, value in numbers.items():
        try:
            fills.append(WindowFillConf(variable=name, value=value))
        except JobError:
            wanted = "a finite number for each variable, such as {'sst': 0.0}"
            raise _refused(f"{what} of {name!r}", wanted, value) from None
    return fills


def _climatology(what: str, value: Any) -> str:
    if not isinstance(value, (FieldClimatology, str)):
        raise UserError(f"{what} is one of dsinga.data.field_climatology(dataset), not {reprlib.repr(value)}")
    return value if isinstance(value, str) else climatology_text(value)


# Functions that convert Python arguments to settings of another form.
CONVERTERS: dict[str, Callable[[str, Any], Any]] = {
    **dict.fromkeys(("inputs", "targets", "static", "coordinates"), names_of),
    "channels": lambda what, dims: names_of(what, dims) or [""],
    "mask": _mask,
    "fill": _fill,
    "memory": lambda what, value: int(value) if isinstance(value, float) and value.is_integer() else value,
    **{name: partial(_by_dim, _points) for name in ("input_dims", "input_overlap", "lead")},
    "context": partial(_by_dim, _pair_of_points),
    "climatology": _climatology,
    "edges": partial(_by_dim, _text),
    "within": partial(_by_dim, _ends),
}

"""The definition of windows: which variables, sizes, context, lead and edges. Plain settings, apart from any data.

Each setting is declared once in :class:`WindowDefinition`, with the function that brings what a user may give into its
one form, or refuses it.
"""

from __future__ import annotations

import dataclasses
import operator
import reprlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date, timedelta
from functools import partial
from numbers import Real
from typing import Any, TypeVar

import numpy as np

from dsinga.base.arguments import check_bool, is_whole
from dsinga.base.errors import UserError
from dsinga.base.registry import nearest

T = TypeVar("T")
Label = str | float  # of a coordinate: a number, or a date as text

EDGES = ("inside", "zero", "edge", "reflect", "periodic")
DEFAULT_MEMORY = 256 << 20  # bytes of decoded fields that a process keeps
SAMPLER_SHARE = 12  # of the memory that a block may have: the sampler mixes 8, and reads the next
MOST_POINTS = 1 << 40  # that a setting may name: no data have more


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
    wanted = "a list of numbers, one for each lead"
    if numbers is None:
        return ()
    if isinstance(numbers, (str, bytes, Mapping)) or np.ndim(numbers) != 1:
        raise refused(what, wanted, numbers)
    return tuple(whole_of(what, as_number(what, wanted, number)) for number in numbers)


def by_dim(convert: Callable[[str, str, Any], T], what: str, given: Any) -> dict[str, T]:
    """Return a number of points by dimension, each converted by ``convert(what, dim, value)``."""
    if given is None:
        return {}
    if not isinstance(given, Mapping) or not all(isinstance(dim, str) for dim in given):
        raise UserError(
            f"{what} has a number of points for each dimension, such as {{'time': 1}}, not {reprlib.repr(given)}"
        )
    return {str(dim): convert(what, str(dim), value) for dim, value in given.items()}


def by_name(convert: Callable[[str, str, Any], T], wanted: str, what: str, given: Any) -> dict[str, T]:
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


def whole_of(what: str, value: Any) -> Any:
    """Return a float that is whole, such as 1e9, as an int; anything else as it is."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


def checked_text(what: str, wanted: str, value: Any) -> str:
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


def flag_of(what: str, value: Any) -> bool:
    """Return true or false; raise UserError for anything else."""
    check_bool(what, value)
    return bool(value)


def given_as(what: str, value: Any) -> Any:
    """Return a value as it is given, which a definition checks."""
    return value


def mask_of(what: str, names: Any) -> tuple[str, ...]:
    """Return the names of variables that may have NaN; ("*",) of True, for all."""
    return ("*",) if names is True else () if names is False else names_of(what, names)


def fill_of(what: str, given: Any) -> dict[str, float]:
    """Return the numbers in place of NaN by variable; a single number is that of all."""
    given = given if given is None or isinstance(given, Mapping) else {"*": given}
    return by_name(as_number, "a finite number for each variable, such as {'sst': 0.0}", what, given)


def weights_of(what: str, given: Any) -> str:
    """Return the name of the weights, "" for none."""
    return "" if given is None else checked_text(what, "a variable, or an expression of coordinates", given)


@dataclass(frozen=True, kw_only=True)
class TrainedLayout:
    """How the data lay from which a net was trained, so that other data are read in the same order; all as text.

    Attributes:
        dims: the dimensions of each variable, in their order.
        points: the coordinates of a dimension all of whose points are channels, such as levels.
        steps: the step of a coordinate of space or time: a number, below 0 where it decreases, or of dates a frequency
            such as "6h" or "MS".
        units: the units of each variable that has any.
        begins: the first longitude of a dimension that goes round the circle.
    """

    dims: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    points: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    steps: Mapping[str, str] = field(default_factory=dict)
    units: Mapping[str, str] = field(default_factory=dict)
    begins: Mapping[str, str] = field(default_factory=dict)


def _setting(convert: Callable[[str, Any], Any], default: Any = dataclasses.MISSING) -> Any:
    """Return a field of a definition whose value ``convert(name, value)`` makes of what a user gives."""
    kept = {"default_factory": dict} if default == {} else {"default": default}
    return field(**kept, metadata={"convert": convert})


@dataclass(frozen=True, kw_only=True)
class WindowDefinition:
    """What a window is, without the data: it can be applied to another Dataset, pickled, and written into a job file.

    ``FieldWindows(dataset, definition)`` applies it. :func:`dsinga.windows` explains each setting; here they are in one
    form: names as tuples, settings by dimension or variable as dicts. ``channels`` is None for the default, ``mask``
    ("*",) for all variables, ``climatology`` a text, as ``climatology_text`` makes it. ``trained`` says how the data
    lay from which a net was trained; None for a definition that is apart from any data.
    """

    inputs: tuple[str, ...] = _setting(names_of)
    input_dims: Mapping[str, int] = _setting(partial(by_dim, points))
    targets: tuple[str, ...] = _setting(names_of, ())
    input_overlap: Mapping[str, int] = _setting(partial(by_dim, points), {})
    context: Mapping[str, tuple[int, int]] = _setting(partial(by_dim, pair_of_points), {})
    lead: Mapping[str, int] = _setting(partial(by_dim, points), {})
    leads: int = _setting(given_as, 1)
    direct: bool = _setting(flag_of, False)
    lead_weights: tuple[float, ...] = _setting(numbers_of, ())
    lead_start: tuple[int, ...] = _setting(numbers_of, ())
    channels: tuple[str, ...] | None = _setting(lambda what, dims: None if dims is None else names_of(what, dims), None)
    static: tuple[str, ...] = _setting(names_of, ())
    coordinates: tuple[str, ...] = _setting(names_of, ())
    edges: Mapping[str, str] = _setting(
        partial(by_name, checked_text, "what lies beyond the data by dimension, such as {'lon': 'periodic'}"), {}
    )
    mask: tuple[str, ...] = _setting(mask_of, ())
    fill: Mapping[str, float] = _setting(fill_of, {})
    max_nan: float | None = _setting(given_as, None)
    weights: str = _setting(weights_of, "")
    within: Mapping[str, tuple[Label | None, Label | None]] = _setting(
        partial(by_name, ends_of, "the first and last coordinate by dimension, such as {'time': ('2001-01-01', None)}"),
        {},
    )
    over_gaps: bool = _setting(flag_of, False)
    climatology: str = _setting(given_as, "")
    memory: int = _setting(whole_of, DEFAULT_MEMORY)
    trained: TrainedLayout | None = None

    def __post_init__(self) -> None:
        _check_sizes(self)
        _check_edges(self)
        _check_leads(self)
        if self.max_nan is not None and not 0 <= as_number("max_nan", "a share of NaN", self.max_nan) < 1:
            raise UserError(f"max_nan is a share of NaN from 0 to less than 1, not {self.max_nan}")
        if self.max_nan and not self.mask:
            raise UserError(
                f"max_nan={self.max_nan} keeps windows that have NaN; ask for a mask, too (mask=True), or give "
                "max_nan=0"
            )
        if not is_whole(self.memory, 1 << 20):
            raise UserError(f"memory is in bytes, at least 1 MiB (1 << 20), not {self.memory!r}")

    def replace(self, **changes: Any) -> WindowDefinition:
        """Return a definition with other settings."""
        return dataclasses.replace(self, **changes)

    def is_masked(self, name: str) -> bool:
        """Whether NaN of a variable is masked."""
        return name in self.mask or "*" in self.mask

    def ordered_dims(self, name: str, dims: Iterable[Any]) -> tuple[str, ...]:
        """Return the dimensions of a variable in the order that they had in training, if that is known."""
        here = tuple(map(str, dims))
        trained = self.trained.dims.get(name, ()) if self.trained else ()
        return trained if set(trained) == set(here) else here

    def edge(self, dim: str) -> str:
        """Return what lies beyond the data along a dimension."""
        return self.edges.get(dim, "inside")


def define_windows(**settings: Any) -> WindowDefinition:
    """Return a definition of windows from settings as :func:`dsinga.windows` takes them. Raises UserError."""
    if isinstance(edges := settings.get("edges"), str):
        settings["edges"] = dict.fromkeys(by_dim(points, "input_dims", settings["input_dims"]), edges)
    converters = {each.name: each.metadata["convert"] for each in dataclasses.fields(WindowDefinition) if each.metadata}
    return WindowDefinition(**{name: converters[name](name, value) for name, value in settings.items()})


def _check_sizes(definition: WindowDefinition) -> None:
    """Raise UserError for sizes, overlaps and contexts that are no numbers of points of a window."""
    sizes = definition.input_dims
    if not definition.inputs:
        raise UserError("windows need inputs, the names of variables of the Dataset")
    for dim, size in sizes.items():
        if size < 1 and size != -1:
            raise UserError(f"input_dims has {size} points of {dim!r}; give at least 1, or -1 for all of them")
    for what, dims in (("input_overlap", definition.input_overlap), ("context", definition.context)):
        for dim in dims:
            if dim not in sizes:
                hint = nearest(dim, list(sizes)) or f"; add {dim!r} to input_dims (-1 for all its points)"
                raise UserError(f"{what} names {dim!r}, which input_dims does not have{hint}")
    for dim, overlap in definition.input_overlap.items():
        if sizes[dim] != -1 and overlap >= sizes[dim]:
            raise UserError(
                f"input_overlap of {dim!r} is {overlap}, but a window has {sizes[dim]} points; give less, such as "
                f"{sizes[dim] - 1} for a window at each point"
            )
    for dim, pair in definition.context.items():
        if min(pair) < 0:
            raise UserError(f"context of {dim!r} is {pair}; give numbers of points from 0")


def _check_leads(definition: WindowDefinition) -> None:
    """Raise UserError for leads that are no number of targets, and for settings of leads that do not fit it."""
    leads, settings = definition.leads, ("direct", "lead_weights", "lead_start")
    if not is_whole(leads, 1):
        raise UserError(f"leads is a number of targets, at least 1, not {leads!r}")
    if leads > 1 and not any(definition.lead.values()):
        raise UserError(
            f"leads={leads} are multiples of a lead, and there is none; give one, such as lead={{'time': 1}}"
        )
    given = next((name for name in settings if getattr(definition, name)), None)
    if leads == 1 and given:
        raise UserError(f"{given} is for windows of several leads; give leads, such as leads=4, or leave {given} out")
    for name in settings[1:]:
        numbers = getattr(definition, name)
        if numbers and (definition.direct or len(numbers) != leads):
            remedy = "leave it out of the direct form" if definition.direct else "give one for each lead"
            raise UserError(f"{name} has {len(numbers)} numbers for {leads} leads; {remedy}")
    weights, starts = definition.lead_weights, definition.lead_start
    if weights and (min(weights) < 0 or not weights[0] > 0):
        raise UserError(f"lead_weights are {list(weights)}; give numbers from 0, the first above 0")
    if starts and (starts[0] != 0 or list(starts) != sorted(starts) or not all(is_whole(step, 0) for step in starts)):
        raise UserError(
            f"lead_start has the steps of training {list(starts)}; the first lead begins at 0, and no lead before the "
            "one that it follows"
        )


def _check_edges(definition: WindowDefinition) -> None:
    for dim, edge in definition.edges.items():
        if edge not in EDGES:
            hint = nearest(edge, EDGES) or f"; it is one of {', '.join(EDGES)}"
            raise UserError(f"edges of {dim!r} is {edge!r}{hint}")

"""The definition of windows: which variables, sizes, context, lead and edges. Plain settings, apart from any data."""

from __future__ import annotations

import dataclasses
import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np

from dsinga.base.errors import UserError
from dsinga.base.registry import nearest

EDGES = ("inside", "zero", "edge", "reflect", "periodic")
DEFAULT_MEMORY = 256 << 20  # bytes of decoded fields that a process keeps
SAMPLER_SHARE = 12  # of the memory that a block may have: the sampler mixes 8, and reads the next

T = TypeVar("T")
Label = str | float  # of a coordinate: a number, or a date as text


@dataclass(frozen=True, kw_only=True)
class Grid:
    """How the data lay from which a net was trained, so that other data are read in the same order; all as text.

    Attributes:
        dims: the dimensions of each variable, in their order.
        points: the coordinates of a dimension all of whose points are channels, such as levels.
        steps: the step of a coordinate of space or time: a number, below 0 where it decreases, or of dates a frequency
            such as "6h" or "MS".
        units: the units of each variable that has any.
    """

    dims: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    points: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    steps: Mapping[str, str] = field(default_factory=dict)
    units: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class WindowDefinition:
    """What a window is, without the data: it can be applied to another Dataset, pickled, and written into a job file.

    ``FieldWindows(dataset, definition)`` applies it. :func:`dsinga.windows` explains each setting; here they are in one
    form: names as tuples, settings by dimension as dicts.

    Attributes:
        inputs: names of the variables of a record.
        targets: names of the variables of a label; none for windows without labels.
        input_dims: points of a window by dimension; -1 for all of them.
        input_overlap: points that neighbouring windows share, by dimension; negative for points between windows.
        context: points (before, after) a window that are input only, by dimension.
        lead: offset of the target in points, by dimension.
        channels: dimensions whose points are channels; None for the default.
        static: names of variables without the dimension of time.
        coordinates: expressions of coordinates that are channels, such as "cos(latitude)".
        edges: what lies beyond the data, by dimension: one of ``EDGES``; "inside" where none is given.
        mask: names of the variables that may have NaN; ("*",) for all.
        fill: the number in place of NaN by variable; 0 where none is given.
        max_nan: the largest share of NaN in the inputs, or the targets, of a window; None to refuse NaN.
        weights: a variable or an expression of a coordinate that weights points of the targets; "" for none.
        within: the first and last coordinate of the data that are read, by dimension; None for an open end.
        memory: bytes of decoded fields that a process keeps; a block of windows has a twelfth.
        grid: how the data lay from which a net was trained; None for a definition that is apart from any data.
    """

    inputs: tuple[str, ...]
    input_dims: Mapping[str, int]
    targets: tuple[str, ...] = ()
    input_overlap: Mapping[str, int] = field(default_factory=dict)
    context: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    lead: Mapping[str, int] = field(default_factory=dict)
    channels: tuple[str, ...] | None = None
    static: tuple[str, ...] = ()
    coordinates: tuple[str, ...] = ()
    edges: Mapping[str, str] = field(default_factory=dict)
    mask: tuple[str, ...] = ()
    fill: Mapping[str, float] = field(default_factory=dict)
    max_nan: float | None = None
    weights: str = ""
    within: Mapping[str, tuple[Label | None, Label | None]] = field(default_factory=dict)
    memory: int = DEFAULT_MEMORY
    grid: Grid | None = None

    def __post_init__(self) -> None:
        _check_sizes(self)
        _check_edges(self)
        if self.max_nan is not None and not 0 <= self.max_nan < 1:
            raise UserError(f"max_nan is a share of NaN from 0 to less than 1, not {self.max_nan}")
        if self.max_nan and not self.mask:
            raise UserError(
                f"max_nan={self.max_nan} keeps windows that have NaN; ask for a mask, too (mask=True), or give "
                "max_nan=0"
            )
        if self.memory < 1 << 20:
            raise UserError(f"memory is in bytes, at least 1 MiB (1 << 20), not {self.memory}")

    def replace(self, **changes: Any) -> WindowDefinition:
        """Return a definition with other settings."""
        return dataclasses.replace(self, **changes)

    def to_dict(self) -> dict[str, Any]:
        """Return the settings that differ from their defaults, as JSON has them."""
        settings = {}
        for part in dataclasses.fields(self):
            value = getattr(self, part.name)
            default = part.default_factory() if part.default_factory is not dataclasses.MISSING else part.default
            if value != default:
                settings[part.name] = _as_json(value)
        return settings

    @classmethod
    def from_dict(cls, settings: Mapping[str, Any]) -> WindowDefinition:
        """Return the definition that :meth:`to_dict` has described."""
        settings = dict(settings)
        grid = settings.pop("grid", None)
        definition = define_windows(**settings)
        if grid is None:
            return definition
        many = {what: {name: tuple(texts) for name, texts in grid[what].items()} for what in ("dims", "points")}
        return definition.replace(grid=Grid(**many, steps=grid["steps"], units=grid["units"]))

    def is_masked(self, name: str) -> bool:
        """Whether NaN of a variable is masked."""
        return name in self.mask or "*" in self.mask

    def ordered_dims(self, name: str, dims: Iterable[Any]) -> tuple[str, ...]:
        """Return the dimensions of a variable in the order that they had in training, if that is known."""
        here = tuple(map(str, dims))
        trained = self.grid.dims.get(name, ()) if self.grid else ()
        return trained if set(trained) == set(here) else here

    def edge(self, dim: str) -> str:
        """Return what lies beyond the data along a dimension."""
        return self.edges.get(dim, "inside")


def define_windows(
    *,
    inputs: str | Iterable[str],
    input_dims: Mapping[str, int],
    targets: str | Iterable[str] | None = None,
    input_overlap: Mapping[str, int] | None = None,
    context: Mapping[str, int | Sequence[int]] | None = None,
    lead: Mapping[str, int] | None = None,
    channels: str | Iterable[str] | None = None,
    static: str | Iterable[str] = (),
    coordinates: str | Iterable[str] = (),
    edges: str | Mapping[str, str] | None = None,
    mask: bool | str | Iterable[str] = False,
    fill: float | Mapping[str, float] | None = None,
    max_nan: float | None = None,
    weights: str | None = None,
    within: Mapping[str, Sequence[Any]] | None = None,
    memory: int = DEFAULT_MEMORY,
) -> WindowDefinition:
    """Return a definition of windows from settings as :func:`dsinga.windows` takes them. Raises UserError."""
    dims = _by_dim("input_dims", input_dims, _points)
    if isinstance(edges, str):
        edges = dict.fromkeys(dims, edges)
    if fill is not None and not isinstance(fill, Mapping):
        fill = {"*": fill}
    return WindowDefinition(
        inputs=_names(inputs),
        targets=_names(targets),
        input_dims=dims,
        input_overlap=_by_dim("input_overlap", input_overlap, _points),
        context=_by_dim("context", context, _pair),
        lead=_by_dim("lead", lead, _points),
        channels=None if channels is None else _names(channels),
        static=_names(static),
        coordinates=_names(coordinates),
        edges=dict(edges or {}),
        mask=("*",) if mask is True else () if mask is False else _names(mask),
        fill={name: float(number) for name, number in (fill or {}).items()},
        max_nan=max_nan,
        weights=weights or "",
        within={dim: _ends(dim, ends) for dim, ends in (within or {}).items()},
        memory=int(memory),
    )


def _names(names: str | Iterable[str] | None) -> tuple[str, ...]:
    return () if names is None else (names,) if isinstance(names, str) else tuple(str(name) for name in names)


def _by_dim(what: str, given: Any, convert: Callable[[str, str, Any], T]) -> dict[str, T]:
    """Return a setting by dimension, each value converted by ``convert(what, dim, value)``."""
    if given is not None and not isinstance(given, Mapping):
        raise UserError(f"{what} has a number of points for each dimension, such as {{'time': 1}}, not {given!r}")
    return {str(dim): convert(what, str(dim), value) for dim, value in (given or {}).items()}


def _points(what: str, dim: str, value: Any) -> int:
    """Return a number of points; raise UserError for anything else, such as a span of time."""
    try:
        return operator.index(value)
    except TypeError:
        raise UserError(f"{what} of {dim!r} is a whole number of points of the data, not {value!r}") from None


def _pair(what: str, dim: str, points: Any) -> tuple[int, int]:
    """Return the context before and after a window; a single number stands for both."""
    if not isinstance(points, (Sequence, np.ndarray)) or isinstance(points, str):
        points = (points, points)
    if len(points) != 2:
        raise UserError(f"context of {dim!r} is a number of points, or a pair (before, after), not {points!r}")
    return _points(what, dim, points[0]), _points(what, dim, points[1])


def _ends(dim: str, ends: Sequence[Any]) -> tuple[Label | None, Label | None]:
    if isinstance(ends, str) or len(ends) != 2:
        raise UserError(f"within of {dim!r} is a pair (first, last) of coordinates, not {ends!r}")
    first, last = (end if end is None or isinstance(end, (int, float)) else str(end) for end in ends)
    return first, last


def _as_json(value: Any) -> Any:
    if isinstance(value, Grid):
        return _as_json(vars(value))
    if isinstance(value, Mapping):
        return {key: _as_json(part) for key, part in value.items()}
    return [_as_json(part) for part in value] if isinstance(value, tuple) else value


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
    for dim, points in definition.context.items():
        if min(points) < 0:
            raise UserError(f"context of {dim!r} is {points}; give numbers of points from 0")


def _check_edges(definition: WindowDefinition) -> None:
    for dim, edge in definition.edges.items():
        if edge not in EDGES:
            hint = nearest(edge, EDGES) or f"; it is one of {', '.join(EDGES)}"
            raise UserError(f"edges of {dim!r} is {edge!r}{hint}")

"""The definition of windows: which variables, sizes, context, lead and edges. Plain settings, apart from any data."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from dsinga.addons.fields.records.window_settings import (
    EDGE,
    ENDS,
    NUMBER,
    Label,
    as_number,
    as_text,
    by_dim,
    by_name,
    ends_of,
    names_of,
    numbers_of,
    pair_of_points,
    points,
    whole_of,
)
from dsinga.base.arguments import check_bool, is_whole
from dsinga.base.errors import UserError
from dsinga.base.registry import nearest

EDGES = ("inside", "zero", "edge", "reflect", "periodic")
DEFAULT_MEMORY = 256 << 20  # bytes of decoded fields that a process keeps
SAMPLER_SHARE = 12  # of the memory that a block may have: the sampler mixes 8, and reads the next


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
        leads: how many targets a window has, each one offset after the one before.
        direct: whether a net gives all of them at once; without it each prediction is an input of the next lead.
        lead_weights: the weight of each lead in the loss; the same for all where it is empty.
        lead_start: the step of training from which each lead is trained; 0 for all where it is empty.
        channels: dimensions whose points are channels; None for the default.
        static: names of variables without the dimension of time.
        coordinates: expressions of coordinates that are channels, such as "cos(latitude)".
        edges: what lies beyond the data, by dimension: one of ``EDGES``; "inside" where none is given.
        mask: names of the variables that may have NaN; ("*",) for all.
        fill: the number in place of NaN by variable; 0 where none is given.
        max_nan: the largest share of NaN in the inputs, or the targets, of a window; None to refuse NaN.
        weights: a variable or an expression of a coordinate that weights points of the targets; "" for none.
        within: the first and last coordinate of the data that are read, by dimension; None for an open end.
        over_gaps: whether windows may reach over gaps of time; without it they are left out.
        climatology: what is subtracted from variables where they are read, and added to predictions, as
            :func:`dsinga.addons.fields.records.climatology_text.as_text` has it; "" for nothing.
        memory: bytes of decoded fields that a process keeps; a block of windows has a twelfth.
        trained: how the data lay from which a net was trained; None for a definition that is apart from any data.
    """

    inputs: tuple[str, ...]
    input_dims: Mapping[str, int]
    targets: tuple[str, ...] = ()
    input_overlap: Mapping[str, int] = field(default_factory=dict)
    context: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    lead: Mapping[str, int] = field(default_factory=dict)
    leads: int = 1
    direct: bool = False
    lead_weights: tuple[float, ...] = ()
    lead_start: tuple[int, ...] = ()
    channels: tuple[str, ...] | None = None
    static: tuple[str, ...] = ()
    coordinates: tuple[str, ...] = ()
    edges: Mapping[str, str] = field(default_factory=dict)
    mask: tuple[str, ...] = ()
    fill: Mapping[str, float] = field(default_factory=dict)
    max_nan: float | None = None
    weights: str = ""
    within: Mapping[str, tuple[Label | None, Label | None]] = field(default_factory=dict)
    over_gaps: bool = False
    climatology: str = ""
    memory: int = DEFAULT_MEMORY
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


def define_windows(
    *,
    inputs: str | Iterable[str],
    input_dims: Mapping[str, int],
    targets: str | Iterable[str] | None = None,
    input_overlap: Mapping[str, int] | None = None,
    context: Mapping[str, int | Sequence[int]] | None = None,
    lead: Mapping[str, int] | None = None,
    leads: int = 1,
    direct: bool = False,
    lead_weights: Sequence[float] | None = None,
    lead_start: Sequence[int] | None = None,
    channels: str | Iterable[str] | None = None,
    static: str | Iterable[str] = (),
    coordinates: str | Iterable[str] = (),
    edges: str | Mapping[str, str] | None = None,
    mask: bool | str | Iterable[str] = False,
    fill: float | Mapping[str, float] | None = None,
    max_nan: float | None = None,
    weights: str | None = None,
    within: Mapping[str, Sequence[Any]] | None = None,
    over_gaps: bool = False,
    climatology: str = "",
    memory: int = DEFAULT_MEMORY,
) -> WindowDefinition:
    """Return a definition of windows from settings as :func:`dsinga.windows` takes them. Raises UserError."""
    dims = by_dim("input_dims", input_dims, points)
    check_bool("over_gaps", over_gaps)
    check_bool("direct", direct)
    return WindowDefinition(
        inputs=names_of("inputs", inputs),
        targets=names_of("targets", targets),
        input_dims=dims,
        input_overlap=by_dim("input_overlap", input_overlap, points),
        context=by_dim("context", context, pair_of_points),
        lead=by_dim("lead", lead, points),
        leads=leads,
        direct=bool(direct),
        lead_weights=numbers_of("lead_weights", lead_weights),
        lead_start=numbers_of("lead_start", lead_start),
        channels=None if channels is None else names_of("channels", channels),
        static=names_of("static", static),
        coordinates=names_of("coordinates", coordinates),
        edges=dict.fromkeys(dims, edges) if isinstance(edges, str) else by_name("edges", edges, EDGE, as_text),
        mask=("*",) if mask is True else () if mask is False else names_of("mask", mask),
        fill=by_name("fill", fill if fill is None or isinstance(fill, Mapping) else {"*": fill}, NUMBER, as_number),
        max_nan=max_nan,
        weights="" if weights is None else as_text("weights", "a variable, or an expression of coordinates", weights),
        within=by_name("within", within, ENDS, ends_of),
        over_gaps=over_gaps,
        climatology=climatology,
        memory=whole_of(memory),
    )


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

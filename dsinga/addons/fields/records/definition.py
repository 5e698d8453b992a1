"""The settings of windows (variables, sizes, context, lead, edges), in jobs and as arguments."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Self

from dsinga.base.errors import OtherRecords, UserError
from dsinga.base.registry import nearest, register
from dsinga.data.array_kinds import is_a, is_data_array, is_number, is_path
from dsinga.job.component import Fault, Settings, required, setting
from dsinga.job.definition import RecordsDefinition
from dsinga.job.limits import Count, Natural, NonNegative, Share
from dsinga.job.message import set_fields

EDGES = ("inside", "zero", "edge", "reflect", "periodic")
DEFAULT_MEMORY = 256 << 20  # bytes of decoded fields that a process keeps
SAMPLER_SHARE = 12  # of the memory that a block may have: the sampler mixes 8, and reads the next

# The fields of a dimension by the name of the setting in Python, a mapping by dimension.
OF_DIM = {
    "input_dims": ("size",), "input_overlap": ("overlap",), "context": ("before", "after"), "lead": ("lead",),
    "edges": ("edges",), "within": ("first", "last"), "points": ("points",), "steps": ("step",), "begins": ("begin",),
}  # fmt: skip
UNSET = (None, 0, "inside")  # defaults of the settings of a dimension
OF_TRAINED = ("points", "steps", "begins")  # those that say how the data of training lay


class WindowDimConf(Settings):
    """The settings of windows along one dimension of a Dataset."""

    name: str = required("the name of the dimension")
    size: int | None = setting(
        None, "the points of a window, -1 for all of them; without it the dimension is taken whole and not cut"
    )
    overlap: int = setting(0, "the points that neighbouring windows share; negative for points between windows")
    before: Natural = setting(0, "the points of context before a window, which are input only")
    after: Natural = setting(0, "the points of context after a window, which are input only")
    lead: int = setting(0, "the offset of the target in points")
    edges: str = setting(
        "inside", 'what lies beyond the data: "inside" (nothing), "zero", "edge", "reflect", "periodic"'
    )
    first: str | None = setting(None, "the first coordinate that is used; that of the data without it")
    last: str | None = setting(None, "the last coordinate that is used; that of the data without it")
    points: list[str] = setting([], "the coordinates of points that are channels, in which other data are read")
    step: str = setting("", 'the step of the coordinate in training, such as "-0.25" or "6h"')
    begin: str = setting("", "the first longitude in training, of those once round the circle")

    def faults(self) -> Iterator[Fault | str]:
        """Yield an error for each invalid size, overlap or edge of a dimension."""
        name, size = self.name, self.size
        if size is None and (self.overlap or self.before or self.after):
            what = "input_overlap" if self.overlap else "context"
            yield (
                f"{what} names {name!r}, which input_dims does not have; add {name!r} to input_dims "
                "(-1 for all its points)"
            )
        if size is not None and size < 1 and size != -1:
            yield f"input_dims has {size} points of {name!r}; give at least 1, or -1 for all of them"
        if size is not None and size > 0 and self.overlap >= size:
            yield (
                f"input_overlap of {name!r} is {self.overlap}, but a window has {size} points; give less, such as "
                f"{size - 1} for a window at each point"
            )
        if self.edges not in EDGES:
            hint = nearest(self.edges, EDGES) or f"; it is one of {', '.join(EDGES)}"
            yield f"edges of {name!r} is {self.edges!r}{hint}"


class WindowFillConf(Settings):
    """The number that replaces NaN in a variable."""

    variable: str = setting("*", 'the name of the variable; "*" for all others')
    value: float = setting(0.0, "the number")


class WindowVariableConf(Settings):
    """The layout of a variable in the training data; :func:`dsinga.nn.Model.fit` writes it."""

    name: str = required("the name of the variable")
    dims: list[str] = setting([], "its dimensions in their order, in which those of other data are read")
    units: str = setting("", "its units; other units are said in the log")


@register("message", "StoreConf.windows")
class WindowDefinition(RecordsDefinition):
    """The settings of windows, without data, for another Dataset or a job file.

    After training it also has the layout of the training data, so that other data are read in the same order.
    """

    options = MappingProxyType(
        {
            "leads": "leads are those of a Dataset, for a model that was trained from windows of one",
            **dict.fromkeys(("by", "against"), "by and against are for windows of a Dataset, as of dsinga.windows"),
        }
    )
    can_be_cut = False  # windows are cut between coordinates, by split

    inputs: list[str] = required(
        "names of the variables of a record; in Python all without it, but static ones, and the grid mappings and "
        "bounds of CF"
    )
    targets: list[str] = setting(
        [],
        'names of the variables of a label; without it windows have no labels. "border(cells)" and others are made '
        'from a label image "cells" where it is read; docs/howto/microscopes.md has them',
    )
    dim: list[WindowDimConf] = setting([], "the dimensions that are cut, or that have a lead or an end")
    leads: Count = setting(
        1,
        "how many targets to train on: at one, two, ... times the lead. A net of one lead is trained on all of them by "
        "feeding its predictions back as inputs; the loss is the mean over leads, and its gradient goes through all of "
        "them. Inputs that are not predicted are read for each lead",
    )
    direct: bool = setting(
        False, "train a net that gives all leads at once, as channels, in place of feeding predictions back"
    )
    lead_weights: list[NonNegative] = setting([], "the weight of each lead in the loss; the same for all without it")
    lead_start: list[Natural] = setting(
        [],
        "the step of training from which each lead is trained: [0, 1000, 2000, 2000] trains one lead of four at first, "
        "and all of them from step 2000 on; 0 for all without it",
    )
    channels: list[str] = setting(
        [],
        'dimensions whose points are channels, such as "time" and "level", in a job "" for none. By default these are '
        "time, dimensions with windows of one point, and dimensions that input_dims does not name; if input_dims names "
        "time only, all others are space",
    )
    static: list[str] = setting([], "names of variables without time, such as a height of the ground")
    coordinates: list[str] = setting(
        [],
        'channels that are functions of coordinates, worked out when they are read: "latitude", "cos(latitude)", '
        '"sin(longitude)" (of degrees), "sin(day of year)", "cos(hour of day)"',
    )
    mask: list[str] = setting(
        [],
        'names of variables that may have NaN, "*" (in Python True) for all. In records NaN is filled, and channels '
        "say which points are valid (1) and which are masked (0); in labels it stays NaN. Without it NaN is an error",
    )
    fill: list[WindowFillConf] = setting(
        [], "the number in place of NaN, in Python also numbers by variable; 0 without it"
    )
    max_nan: Share | None = setting(
        None,
        "leave out windows that have more than this share of NaN in their inputs or in their targets. The data are "
        "read once for it",
    )
    weights: str = setting(
        "",
        "a variable, or an expression as of coordinates, that weights the points of a target: the last channel of a "
        "label, divided by its mean over the data",
    )
    over_gaps: bool = setting(
        False,
        "whether windows may reach over gaps of time, and count points whatever lies between. Without it they are left "
        "out. A gap is a step of more than one and a half times the usual one; months, and business days without "
        "holidays, have none. Dates may be datetime64, cftime, datetime.date, ISO 8601 texts, timedelta64 or numbers",
    )
    memory: Count | None = setting(
        None,
        "the most bytes of decoded fields that a process keeps; the largest among the windows of a process holds for "
        "all of them together. A twelfth of it is a block: the windows that are read and shuffled together. The "
        "default is 256 MiB. Each process takes more of its free memory, up to an eighth, where chunks are then "
        "decoded once an epoch: chunks of at most two blocks, and longer ones if all fields fit. Blocks stay the same",
    )
    climatology: str = setting(
        "",
        "what is subtracted from the variables that it has, inputs and targets, where they are read: records are "
        "anomalies from it. The net keeps it, and predictions of a Dataset have it added again. In Python it is one "
        "of dsinga.data.field_climatology, taken from the training part; in a job its compressed numbers",
    )
    variable: list[WindowVariableConf] = setting([], "how the variables lay in the data of training")

    @property
    def block_bytes(self) -> int:
        """The most bytes of decoded fields of a block."""
        return (self.memory or DEFAULT_MEMORY) // SAMPLER_SHARE

    def along(self, name: str) -> WindowDimConf:
        """Return the settings of a dimension, or default settings."""
        return next((dim for dim in self.dim if dim.name == name), None) or WindowDimConf(name=name)

    def named_dims(self) -> Iterator[tuple[str, str]]:
        """Yield the name of a setting in Python, and each dimension that it names."""
        for name, fields in OF_DIM.items():
            for dim in self.dim if name not in OF_TRAINED else ():
                if any(getattr(dim, field) not in UNSET for field in fields):
                    yield name, dim.name
        yield from (("channels", dim) for dim in self.channels if dim)

    def replace(self, **changes: Any) -> Self:
        """Change settings; settings of dimensions are mappings, as ``lead={"time": 1}``."""
        of_dim = {name: changes.pop(name) for name in OF_DIM if name in changes}
        return super().replace(**changes, **({"dim": with_settings(self.dim, of_dim)} if of_dim else {}))

    @property
    def input_dims(self) -> dict[str, int]:
        """The points of a window by dimension, for dimensions that have a size."""
        return {dim.name: dim.size for dim in self.dim if dim.size is not None}

    @property
    def is_trained(self) -> bool:
        """Whether the definition has the layout of the training data."""
        return bool(self.variable) or any(dim.points or dim.step or dim.begin for dim in self.dim)

    def trained_like(self, other: WindowDefinition) -> Self:
        """Copy the training data's layout from another definition."""
        of_dim = {name: {dim.name: getattr(dim, OF_DIM[name][0]) for dim in other.dim} for name in OF_TRAINED}
        return self.replace(variable=other.variable, **of_dim)

    def trained_dims(self, name: str) -> tuple[str, ...]:
        """Return the dimensions of a variable in the training data, none if they are unknown."""
        return next((tuple(variable.dims) for variable in self.variable if variable.name == name), ())

    def ordered_dims(self, name: str, dims: Iterable[Any]) -> tuple[str, ...]:
        """Return the dimensions of a variable in the order of training, if that is known."""
        here, trained = tuple(map(str, dims)), self.trained_dims(name)
        return trained if set(trained) == set(here) else here

    def faults(self) -> Iterator[Fault | str]:
        """Yield an error for each invalid setting, except in single dimensions."""
        if not self.inputs:
            yield "windows need inputs, the names of variables of the Dataset"
        if len({dim.name for dim in self.dim}) < len(self.dim):
            yield Fault("windows name a dimension twice; give each dimension once", "dim")
        yield from self._lead_faults()
        if self.max_nan and not self.mask:
            yield Fault(
                f"max_nan={self.max_nan:g} keeps windows that have NaN; ask for a mask, too (mask=True), or give "
                "max_nan=0",
                "max_nan",
            )
        if self.memory is not None and self.memory < 1 << 20:
            yield Fault(f"memory is in bytes, at least 1 MiB (1 << 20), not {self.memory}", "memory")

    def _lead_faults(self) -> Iterator[Fault]:
        leads, weights, starts = self.leads, self.lead_weights, self.lead_start
        if leads > 1 and not any(dim.lead for dim in self.dim):
            yield Fault(
                f"leads={leads} are multiples of a lead, and there is none; give one, such as lead={{'time': 1}}",
                "leads",
            )
        for name in ("direct", "lead_weights", "lead_start"):
            value = getattr(self, name)
            if value and leads == 1:
                text = f"{name} is for windows of several leads; give leads, such as leads=4, or leave {name} out"
                yield Fault(text, name)
            elif value and name != "direct" and (self.direct or len(value) != leads):
                remedy = "leave it out of the direct form" if self.direct else "give one for each lead"
                yield Fault(f"{name} has {len(value)} numbers for {leads} leads; {remedy}", name)
        if weights and not weights[0] > 0:
            yield Fault(f"lead_weights are {weights}; give numbers from 0, the first above 0", "lead_weights")
        if starts and (starts[0] != 0 or starts != sorted(starts)):
            yield Fault(
                f"lead_start has the steps of training {starts}; the first lead begins at 0, and no lead before the "
                "one that it follows",
                "lead_start",
            )

    def takes(self, source: Any) -> bool:
        """Whether a source is a Dataset or DataArray, from which windows are cut."""
        return is_a(source, "xarray", "Dataset") or is_data_array(source)

    def predicts(self, source: Any) -> bool:
        """Whether a source is a Dataset or DataArray, or a path that may lead to one."""
        return is_a(source, "xarray", "Dataset", "DataArray") or is_path(source)

    def predict(self, job: Any, params: Any, layers: Any, source: Any, **options: Any) -> Any:
        """Predict a Dataset lazily with windows like these."""
        if len(layers) != 1:
            raise UserError(f"predict takes a Dataset for a model with one output, not {len(layers)}")
        return super().predict(job, params, layers[0], source, **options)

    def check_options(self, **labels: Any) -> None:
        """Raise UserError for labels or weights if errors of windows are grouped."""
        if any(value is not None for value in labels.values()):
            raise UserError(
                "by and against take windows alone, which have their targets, and weights by weights= of "
                "dsinga.windows; leave y and sample_weight out"
            )

    def evaluate(self, job: Any, params: Any, layers: Sequence[str], **options: Any) -> Any:
        """Compute the errors of forecasts by group, as a Dataset."""
        if len(layers) != 1:
            raise UserError(f"errors by group are those of a model with one output, not {len(layers)}")
        return super().evaluate(job, params, layers[0], **options)

    def learnt(self) -> dict[str, str]:
        """Describe what a record's numbers mean, as texts by name, for a resumed run to compare; "" if unknown.

        Windows, places, times and loss weights may change, and are not included.
        """
        dims, fills = self.dim, [[fill.variable, fill.value] for fill in self.fill]
        names = ("inputs", "targets", "static", "coordinates", "channels", "climatology")
        known = {name: getattr(self, name) for name in names} | {"mask": [self.mask, fills]}
        known["leads"] = [self.direct, {dim.name: dim.lead for dim in dims if dim.lead}]
        known |= {name: self._meaning()[name] for name in ("context", "edges")}
        texts = {name: json.dumps(value, sort_keys=True) for name, value in known.items()}
        for dim in dims:  # further points change the mean step of numbers, but not its sign
            step = str(float(dim.step) > 0) if is_number(dim.step) else dim.step
            order = {"points": "\n".join(dim.points), "step": step, "first point": dim.begin}
            texts |= {f"{what} of {dim.name!r}": text for what, text in order.items()}
        for variable in self.variable:
            texts[f"units of {variable.name!r}"] = variable.units
            texts[f"dimensions of {variable.name!r}"] = "\n".join(variable.dims)
        return texts

    def _meaning(self) -> dict[str, Any]:
        """Return what record and label channels mean, by setting in Python, in any order."""
        names = [*self.inputs, *self.static]
        masked = sorted(names if "*" in self.mask else set(names) & set(self.mask))
        fills = {fill.variable: fill.value for fill in self.fill}
        return {
            **{name: sorted(getattr(self, name)) for name in ("inputs", "static", "coordinates")},
            "context": {dim.name: [dim.before, dim.after] for dim in self.dim if dim.before or dim.after},
            "edges": {dim.name: dim.edges for dim in self.dim if dim.edges != "inside"},
            "mask": masked,
            "fill": {name: fills.get(name, fills.get("*", 0.0)) for name in masked},
            "targets": sorted(self.targets),
            "lead": {dim.name: dim.lead for dim in self.dim if dim.lead},
            "direct": self.direct,
        }

    def check_like(self, training: WindowDefinition) -> None:
        """Raise OtherRecords if inputs, context, mask or, with targets, leads differ from those of training."""
        here, there = self._meaning(), training._meaning()
        for name in here if self.targets else list(here)[: list(here).index("targets")]:
            if here[name] != there[name]:
                texts = [f"{name}={each[name]!r}" if each[name] else f"no {name}" for each in (here, there)]
                raise OtherRecords(
                    f"the windows have {texts[0]}, but the net was trained on windows with {texts[1]}; give windows "
                    f"with {texts[1]}, or train a new model on these"
                )

    def remark_on_scores(self, layer: str) -> str:
        """Return a remark for readers of scores if an input layer's windows overlap; else ""."""
        dims = [dim.name for dim in self.dim if dim.overlap > 0] if self.targets else []
        if not dims:
            return ""
        return (
            f"windows of {layer!r} overlap along {', '.join(map(repr, dims))}: scores count points in several windows "
            "more often than those near the ends of the data; for equal weights leave out input_overlap, or compare "
            "predict(dataset) with the dataset"
        )


def with_settings(dims: Iterable[WindowDimConf], of_dim: Mapping[str, Mapping[str, Any]]) -> list[WindowDimConf]:
    """Change settings of dimensions to the ones in ``of_dim`` (:data:`OF_DIM`)."""
    messages = {dim.name: dim for dim in dims}
    for setting_, values in of_dim.items():
        fields = OF_DIM[setting_]
        for name in (*messages, *(name for name in values if name not in messages)):
            value = values.get(name) if len(fields) == 2 else (values.get(name),)
            message = messages.get(name) or WindowDimConf(name=name)
            messages[name] = message.replace(**dict(zip(fields, value or (None, None), strict=True)))
    return [message for message in messages.values() if len(set_fields(message)) > 1]

"""The message ``windows { }`` of the store of a job: what windows of a Dataset are, as a definition and back."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dsinga.addons.fields.records.definition import DEFAULT_MEMORY, TrainedLayout, WindowDefinition, define_windows
from dsinga.base.errors import UserError
from dsinga.base.registry import lookup, register
from dsinga.data.record_source import RecordSource
from dsinga.job.component import Settings, required, setting
from dsinga.job.limits import Count, Natural, NonNegative, Share
from dsinga.job.message import defaults

# Settings by dimension: their names in a WindowDimConf and in a definition, and those of how the data of training lay.
OF_DIM = {"size": "input_dims", "overlap": "input_overlap", "lead": "lead", "edges": "edges"}
TRAINED_OF_DIM = {"points": "points", "step": "steps", "begin": "begins"}
# The settings that a definition has in the same form.
ALIKE = (
    "inputs", "targets", "leads", "direct", "lead_weights", "lead_start", "static", "coordinates", "mask", "max_nan",
    "weights", "over_gaps", "climatology", "memory",
)  # fmt: skip


class WindowDimConf(Settings):
    """The windows along one dimension of a Dataset."""

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


class WindowFillConf(Settings):
    """The number in place of NaN of a variable."""

    variable: str = setting("*", 'the name of the variable; "*" for all others')
    value: float = setting(0.0, "the number")


class WindowVariableConf(Settings):
    """How a variable lay in the data from which a net was trained; :func:`dsinga.nn.Model.fit` writes it."""

    name: str = required("the name of the variable")
    dims: list[str] = setting([], "its dimensions in their order, in which those of other data are read")
    units: str = setting("", "its units; other units are said in the log")


@register("message", "StoreConf.windows")
class WindowsConf(Settings):
    """Windows of a Dataset: records and labels that are fields; :func:`dsinga.windows` explains each setting."""

    inputs: list[str] = required("the variables of a record")
    targets: list[str] = setting([], "the variables of a label")
    dim: list[WindowDimConf] = setting([], "the dimensions that are cut, or that have a lead or an end")
    leads: Count = setting(1, "how many targets a window has, each one lead after the one before")
    direct: bool = setting(False, "whether a net gives all leads at once; without it predictions are fed back")
    lead_weights: list[NonNegative] = setting([], "the weight of each lead in the loss; the same for all without it")
    lead_start: list[Natural] = setting([], "the step of training from which each lead is trained; 0 without it")
    channels: list[str] = setting(
        [], 'the dimensions whose points are channels, "" for none; told by the data without it'
    )
    static: list[str] = setting([], "the variables without time")
    coordinates: list[str] = setting([], 'channels that are functions of coordinates, as "cos(latitude)"')
    mask: list[str] = setting([], 'the variables that may have NaN, "*" for all')
    fill: list[WindowFillConf] = setting([], "the numbers in place of NaN; 0 without it")
    max_nan: Share | None = setting(None, "the largest share of NaN in a window; others are left out")
    weights: str = setting("", "a variable, or a function of a coordinate, that weights points of the targets")
    over_gaps: bool = setting(
        False, "whether windows may reach over gaps of time, so that they count points; without it they are left out"
    )
    memory: Count = setting(DEFAULT_MEMORY, "the bytes of decoded fields that a process keeps")
    climatology: str = setting("", "what is subtracted from variables and added to predictions; compressed numbers")
    variable: list[WindowVariableConf] = setting([], "how the variables lay in the data of training")

    def definition(self) -> WindowDefinition:
        """Return the definition that these settings describe. Raises UserError for what is wrong with them."""
        if len({dim.name for dim in self.dim}) < len(self.dim):
            raise self.error("windows name a dimension twice; give each dimension once", "dim")
        definition = define_windows(
            **{name: getattr(self, name) for name in ALIKE},
            **self._by_dim(OF_DIM),
            context={dim.name: (dim.before, dim.after) for dim in self.dim if dim.before or dim.after},
            within={dim.name: (dim.first, dim.last) for dim in self.dim if (dim.first, dim.last) != (None, None)},
            channels=[name for name in self.channels if name] if self.channels else None,
            fill={fill.variable: fill.value for fill in self.fill},
        )
        trained = TrainedLayout(
            **self._by_dim(TRAINED_OF_DIM),
            dims={variable.name: tuple(variable.dims) for variable in self.variable},
            units={variable.name: variable.units for variable in self.variable if variable.units},
        )
        return definition if trained == TrainedLayout() else definition.replace(trained=trained)

    def _by_dim(self, names: Mapping[str, str]) -> dict[str, dict[str, Any]]:
        """Return settings by dimension, under their ``names`` in a definition, where they are no defaults."""
        default, result = defaults(WindowDimConf), {}
        for field, name in names.items():
            values = {dim.name: getattr(dim, field) for dim in self.dim}
            given = {dim: value for dim, value in values.items() if value != default[field]}
            result[name] = {dim: tuple(value) if isinstance(value, list) else value for dim, value in given.items()}
        return result

    @classmethod
    def of(cls, definition: WindowDefinition) -> WindowsConf:
        """Return the settings of a job that describe a definition."""
        trained, channels = definition.trained or TrainedLayout(), definition.channels
        of_dim = {field: getattr(definition, name) for field, name in OF_DIM.items()}
        of_dim |= {field: getattr(trained, name) for field, name in TRAINED_OF_DIM.items()}
        by_dim = (definition.input_dims, definition.lead, definition.edges, definition.within)
        names = [name for each in (*by_dim, trained.points, trained.steps, trained.begins) for name in each]
        dims = []
        for name in dict.fromkeys(names):
            settings = {field: values[name] for field, values in of_dim.items() if name in values}
            settings["before"], settings["after"] = definition.context.get(name, (0, 0))
            ends = [None if end is None else str(end) for end in definition.within.get(name, (None, None))]
            dims.append(WindowDimConf(name=name, first=ends[0], last=ends[1], **settings))
        return cls(
            **{name: getattr(definition, name) for name in ALIKE},
            dim=dims,
            channels=[] if channels is None else list(channels) or [""],
            fill=[WindowFillConf(variable=name, value=value) for name, value in definition.fill.items()],
            variable=[
                WindowVariableConf(name=name, dims=list(dims), units=trained.units.get(name, ""))
                for name, dims in trained.dims.items()
            ],
        )

    def open_records(self, layer: str, dataset: Any, has_targets: bool) -> RecordSource:
        """Return the windows of a Dataset, or of the one at a path, that an input layer reads. Raises JobError."""
        try:  # by name: the file of the class is not needed to read a job
            windows: RecordSource = lookup("hook", "field_windows")(dataset, self.definition(), has_targets=has_targets)
        except UserError as error:
            raise self.error(f"layer {layer!r}: {error}") from error
        return windows

    def remark_on_scores(self, layer: str) -> str:
        """Return a sentence where windows that an input layer reads overlap, for the reader of scores; "" elsewhere."""
        dims = [dim.name for dim in self.dim if dim.overlap > 0] if self.targets else []
        if not dims:
            return ""
        return (
            f"windows of {layer!r} overlap along {', '.join(map(repr, dims))}: scores count points in several windows "
            "more often than those near the ends of the data; for equal weights leave out input_overlap, or compare "
            "predict(dataset) with the dataset"
        )

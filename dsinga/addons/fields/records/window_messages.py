"""The message ``windows { }`` of the store of a job: windows of a Dataset as records and labels."""

from __future__ import annotations

from typing import Any

from dsinga.base.errors import UserError
from dsinga.data.record_source import RecordSource
from dsinga.job.component import Settings, required, setting
from dsinga.job.limits import Count, Natural, NonNegative, Share


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
    memory: Count = setting(256 << 20, "the bytes of decoded fields that a process keeps")
    climatology: str = setting("", "what is subtracted from variables and added to predictions; compressed numbers")
    variable: list[WindowVariableConf] = setting([], "how the variables lay in the data of training")

    def open_records(self, layer: str, dataset: Any, has_targets: bool) -> RecordSource:
        """Return the windows of a Dataset, or of the one at a path, that an input layer reads. Raises JobError."""
        from dsinga.addons.fields.records.field_windows import FieldWindows  # not needed to read a job
        from dsinga.addons.fields.records.windows_conf import definition_of

        try:
            return FieldWindows(dataset, definition_of(self), has_targets=has_targets)
        except UserError as error:
            raise self.error(f"layer {layer!r}: {error}") from error

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

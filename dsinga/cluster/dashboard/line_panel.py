"""Dashboard panels that plot curves: a colour for each run, a dash and a marker for each kind of curve."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from bokeh.models import (
    AdaptiveTicker,
    ColumnDataSource,
    DatetimeTickFormatter,
    HoverTool,
    Legend,
    LegendItem,
    MultiLine,
    NumeralTickFormatter,
    Scatter,
    Select,
)

from dsinga.cluster.dashboard.history import RunHistory, labels, shortened
from dsinga.cluster.dashboard.panel import NO_RUN, SLOT_COLOURS, Choice, DashboardPanel, new_figure
from dsinga.cluster.dashboard.records import RunRecord, Series

# A curve of so few points has a marker at each, so that a single one is visible.
FEW_POINTS = 30
# The y axis is logarithmic where the largest value is so many times the smallest one.
LOGARITHMIC_RATIO = 100  # of less than two decades, ticks would be crowded at the top
# The letters of a label in the legend, and the pixels for a row of it in a small panel.
LABEL_LETTERS = 20
LEGEND_WIDTH = 350
GREY = "#555555"
BYTE_TICKS = {"base": 1024, "mantissas": [1, 2, 4, 8, 16, 32, 64, 128, 256, 512]}
CLOCK = {"milliseconds": "%H:%M:%S.%3N", "seconds": "%H:%M:%S", "minsec": "%H:%M:%S"}
CLOCK |= dict.fromkeys(("minutes", "hourmin", "hours"), "%H:%M")


class Style(NamedTuple):
    """The line and marker of all curves of one kind."""

    dash: str
    marker: str


class Curve(NamedTuple):
    """A curve of a run: its kind (a name in :data:`STYLES` or a group) and its points."""

    kind: str
    x: Sequence[float]
    y: Sequence[float]


STYLES = {
    "train": Style("solid", "circle"),
    "val": Style("dashed", "triangle"),
    "test": Style("dotted", "square"),
    "between processes": Style("solid", "circle"),
    "within one": Style("dashed", "triangle"),
    "group 0": Style("solid", "circle"),
    "group 1": Style("dashed", "triangle"),
    "group 2": Style("dotted", "square"),
    "group 3": Style("dashdot", "diamond"),
}
PLAIN = Style("solid", "circle")

# Returns the curves of a run; the second argument is the metric that the user has chosen.
Curves = Callable[[RunRecord, str], list[Curve]]


def loss_curves(record: RunRecord, metric: str = "loss") -> list[Curve]:
    """Return a run's loss by step for each phase; for training, of batches if the history has no rows."""
    return metric_curves(record, "loss")


def metric_curves(record: RunRecord, metric: str) -> list[Curve]:
    """Return a run's metric by step for each phase, as in :func:`loss_curves`."""
    curves = [Curve(phase, *series.columns()) for (phase, name), series in record.metrics.items() if name == metric]
    if metric in record.last_batches and not any(curve.kind == "train" for curve in curves):
        curves.insert(0, Curve("train", *record.last_batches[metric].columns()))
    return sorted(curves, key=lambda curve: [*STYLES].index(curve.kind) if curve.kind in STYLES else len(STYLES))


def metric_names(records: Sequence[RunRecord]) -> list[str]:
    """Return the names of the runs' metrics except the loss, in order of appearance."""
    names: dict[str, None] = {}
    for record in records:
        names.update(dict.fromkeys(name for _, name in record.metrics))
        names.update(dict.fromkeys(record.last_batches))
    names.pop("loss", None)
    return list(names)


def speed_curves(record: RunRecord, metric: str = "") -> list[Curve]:
    """Return a run's samples a second over time."""
    return [_over_time("", record.speed)]


def staleness_curves(record: RunRecord, metric: str = "") -> list[Curve]:
    """Return the mean staleness of each worker group's gradients over time; none for a synchronous run."""
    return [_over_time(f"group {group}", series) for group, series in sorted(record.staleness.items())]


def byte_curves(record: RunRecord, metric: str = "") -> list[Curve]:
    """Return a run's bytes a second over time, between processes and within one."""
    return [_over_time("between processes", record.crossing), _over_time("within one", record.within)]


def _over_time(kind: str, series: Series) -> Curve:
    times, values = series.columns()
    if not times:
        return Curve(kind, times, values)
    first = bokeh_time(times[0])
    return Curve(kind, [first + 1e3 * (time - times[0]) for time in times], values)


def bokeh_time(seconds: float) -> float:
    """Convert a time for Bokeh's axes: milliseconds since 1970, in the scheduler's local time."""
    return 1e3 * (seconds + time.localtime(seconds).tm_gmtoff)


class LinePanel(DashboardPanel):
    """A panel that draws the curves that ``curves`` returns for each run.

    Args:
        over_time: whether x is the time of day; else steps.
        logarithmic: whether the y axis becomes logarithmic if values differ much.
        has_choice: whether the user chooses a metric.
        nothing: the sentence for runs without curves.
    """

    def __init__(
        self,
        history: RunHistory,
        title: str,
        curves: Curves,
        y_label: str,
        *,
        over_time: bool = False,
        logarithmic: bool = False,
        in_bytes: bool = False,
        has_choice: bool = False,
        nothing: str = "",
        choose: Choice | None = None,
    ):
        super().__init__(history, title, choose)
        self._curves, self._nothing = curves, nothing
        self._y_label, self._over_time, self._in_bytes = y_label, over_time, in_bytes
        self.lines = [ColumnDataSource(_lines([], ""), name=f"{title} {slot}") for slot in range(len(SLOT_COLOURS))]
        self.points = [ColumnDataSource(_points([], "")) for _ in SLOT_COLOURS]
        self._states: dict[int, Any] = {}  # the state of the run that is drawn in each colour, and its curves
        self._drawn_curves: dict[int, list[Curve]] = {}
        self._logarithmic = logarithmic
        self._legends: dict[str, Legend] = {}
        self.figures: dict[str, Any] = {}  # by the scale of the y axis, made when needed: it takes a tenth of a second
        self.metric = Select(options=[], value="", visible=False, width=150, margin=(2, 5, 0, 40))
        if has_choice:
            self.metric.on_change("value", lambda attr, old, new: self.update())
        self.root.children = [self._sentence, self.metric]
        self._has_choice = has_choice

    def settings(self) -> Any:
        """Return the metric that the user chose."""
        return self.metric.value

    def draw(self, records: Sequence[RunRecord]) -> None:
        """Draw the curves of some runs."""
        if self._has_choice:
            self._offer(metric_names(records))
        names, drawn = labels(list(records)), {}
        for record in records:
            state = (record.run, record.version, names[record.run], self.metric.value)
            if state != self._states.get(record.slot):  # what has not changed is neither computed nor sent again
                curves = [curve for curve in self._curves(record, self.metric.value) if len(curve.x)]
                self._draw_run(record.slot, names[record.run], curves, state)
            if self._drawn_curves[record.slot]:
                drawn[record.slot] = (names[record.run], self._drawn_curves[record.slot])
        for slot in self._states.keys() - {record.slot for record in records}:
            self._draw_run(slot, "", [], None)
        values = [y for _, curves in drawn.values() for curve in curves for y in curve.y if math.isfinite(y)]
        wide = bool(values) and min(values) > 0 and max(values) > LOGARITHMIC_RATIO * min(values)
        self._show("" if not drawn else "log" if wide and self._logarithmic else "linear", drawn)
        self.say("" if drawn else self._nothing if records and self._nothing else NO_RUN)

    def _draw_run(self, slot: int, label: str, curves: list[Curve], state: Any) -> None:
        if state is None:
            del self._states[slot]
        else:
            self._states[slot] = state
        self._drawn_curves[slot] = curves
        self.lines[slot].data = _lines(curves, label)
        self.points[slot].data = _points(curves, label)

    def _show(self, scale: str, drawn: dict[int, tuple[str, list[Curve]]]) -> None:
        """Show the figure with a y axis of this scale, "" for none."""
        if scale and scale not in self.figures:
            self.figures[scale] = self._new_figure(scale)
            self.root.children = [*self.root.children, self.figures[scale]]
        for its_scale, chart in self.figures.items():
            chart.visible = its_scale == scale
        if scale:
            self._draw_legend(self._legends[scale], drawn)
            if self._has_choice:
                self.figures[scale].left[0].axis_label = self.metric.value or self._y_label

    def _offer(self, names: list[str]) -> None:
        self.metric.options = list(names)
        if self.metric.value not in names:
            self.metric.value = names[0] if names else ""
        self.metric.visible = len(names) > 1

    def _draw_legend(self, legend: Legend, drawn: dict[int, tuple[str, list[Curve]]]) -> None:
        kinds = {curve.kind for _, curves in drawn.values() for curve in curves}
        letters = max([len(label) for label, _ in drawn.values()] + [len(kind) for kind in kinds], default=0)
        legend.ncols = max(1, LEGEND_WIDTH // (min(letters, LABEL_LETTERS) * 6 + 30))
        for item in legend.items:
            if isinstance(item.tags[0], int):
                item.visible = item.tags[0] in drawn
                label = drawn.get(item.tags[0], ("",))[0]
                item.label = {"value": shortened(label, LABEL_LETTERS)}
            else:
                item.visible = item.tags[0] in kinds and len(kinds) > 1

    def _new_figure(self, scale: str) -> Any:
        chart = new_figure(
            self.title,
            x_axis_label="time of day" if self._over_time else "step",
            y_axis_label=self._y_label,
            y_axis_type=scale,
            x_axis_type="datetime" if self._over_time else "linear",
            visible=False,
        )
        runs = [self._add_run(chart, slot) for slot in range(len(SLOT_COLOURS))]
        items = [*runs, *_add_kinds(chart)]
        legend = Legend(
            items=items, click_policy="hide", label_text_font_size="10px", spacing=6, padding=0, margin=2,
            glyph_height=12, glyph_width=18, label_height=12, border_line_color=None, background_fill_alpha=0,
            orientation="horizontal",
        )  # fmt: skip
        self._legends[scale] = legend  # to look it up in the figure takes milliseconds
        chart.add_layout(legend, "above")  # where it covers no curve
        self._set_formats(chart, scale)
        chart.add_tools(self._hover([item.renderers[0] for item in runs]))
        return chart

    def _hover(self, lines: list[Any]) -> HoverTool:
        x = ("time", "$snap_x{%H:%M:%S}") if self._over_time else ("step", "$snap_x{0,0}")
        y = ("value", "$snap_y{0.0 b}/s" if self._in_bytes else "$snap_y{0,0.[0000]}")
        return HoverTool(
            renderers=lines,
            tooltips=[("run", "@run"), ("", "@kind"), x, y],
            formatters={"$snap_x": "datetime"} if self._over_time else {},
            line_policy="nearest",
            visible=False,
        )

    def _add_run(self, chart: Any, slot: int) -> LegendItem:
        colour = SLOT_COLOURS[slot]
        lines = MultiLine(xs="xs", ys="ys", line_dash="dash", line_color=colour, line_width=1.8)
        points = Scatter(x="x", y="y", marker="marker", line_color=colour, fill_color=colour, size=5)
        renderers = [chart.add_glyph(self.lines[slot], lines), chart.add_glyph(self.points[slot], points)]
        return LegendItem(label="", renderers=renderers, visible=False, tags=[slot])

    def _set_formats(self, chart: Any, scale: str) -> None:
        if self._over_time:
            chart.x_range.default_span = 10_000  # milliseconds around a single point
            chart.xaxis[0].ticker.desired_num_ticks = 4
            chart.xaxis[0].formatter = DatetimeTickFormatter(**CLOCK)
        else:
            chart.xaxis[0].formatter = NumeralTickFormatter(format="0,0")
        if self._in_bytes:
            chart.yaxis[0].formatter = NumeralTickFormatter(format="0.[0] b")
            chart.yaxis[0].ticker = AdaptiveTicker(**BYTE_TICKS)
        elif scale == "linear" and self._over_time:
            chart.yaxis[0].formatter = NumeralTickFormatter(format="0.[0] a")
        if self._over_time:
            chart.y_range.start = 0


def _add_kinds(chart: Any) -> list[LegendItem]:
    columns = {
        "xs": [[math.nan]] * len(STYLES),
        "x": [math.nan] * len(STYLES),
        "dash": [style.dash for style in STYLES.values()],
        "marker": [style.marker for style in STYLES.values()],
    }
    source = ColumnDataSource(columns)
    lines = MultiLine(xs="xs", ys="xs", line_dash="dash", line_color=GREY, line_width=1.8)
    points = Scatter(x="x", y="x", marker="marker", line_color=GREY, fill_color=GREY, size=5)
    renderers = [chart.add_glyph(source, lines), chart.add_glyph(source, points)]
    return [
        LegendItem(label=kind, renderers=renderers, index=index, visible=False, tags=[kind])
        for index, kind in enumerate(STYLES)
    ]


def _lines(curves: Sequence[Curve], label: str) -> dict[str, list[Any]]:
    return {
        "xs": [np.array(curve.x) for curve in curves],
        "ys": [np.array(curve.y) for curve in curves],
        "dash": [STYLES.get(curve.kind, PLAIN).dash for curve in curves],
        "run": [label] * len(curves),
        "kind": [curve.kind for curve in curves],
    }


def _points(curves: Sequence[Curve], label: str) -> dict[str, Any]:
    """Choose the points of a run's curves that get markers: all of a short curve, else the last one."""
    shown = [(curve, curve.x if len(curve.x) <= FEW_POINTS else curve.x[-1:]) for curve in curves]
    kinds = [curve.kind for curve, xs in shown for _ in xs]
    return {
        "x": [x for _, xs in shown for x in xs],
        "y": [y for curve, xs in shown for y in curve.y[-len(xs) :]],
        "marker": [STYLES.get(kind, PLAIN).marker for kind in kinds],
        "run": [label] * len(kinds),
        "kind": kinds,
    }

"""A panel of stacked bars: the milliseconds of an iteration at each worker, by computing, exchange and data."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from bokeh.models import ColumnDataSource, FactorRange, HoverTool

from dsinga.cluster.dashboard.history import RunHistory, labels, shortened
from dsinga.cluster.dashboard.panel import NO_RUN, Choice, DashboardPanel, new_figure
from dsinga.cluster.dashboard.records import KINDS, RunRecord

# Colours of the kinds, distinguishable by colour-blind readers, and other than those of the first runs.
KIND_COLOURS = {"compute": "#0072b2", "exchange": "#e69f00", "data": "#999999"}
# The largest number of bars that have room for their names.
MAX_NAMES = 24
# The letters of a run's name beside its bars.
LABEL_LETTERS = 16
COLUMNS = ("worker", "name", "address", *KINDS)


class TimePanel(DashboardPanel):
    """Draws a bar for each worker of the running runs, or of the last run that has ended."""

    def __init__(self, history: RunHistory, choose: Choice | None = None):
        super().__init__(history, "Time of an iteration by worker", choose)
        self.source = ColumnDataSource({column: [] for column in COLUMNS}, name=self.title)
        self._figure = new_figure(self.title, x_axis_label="milliseconds", y_range=FactorRange(), visible=False)
        self._figure.hbar_stack(
            list(KINDS), y="worker", height=0.8, color=list(KIND_COLOURS.values()), source=self.source,
            legend_label=list(KINDS), line_color=None,
        )  # fmt: skip
        self._figure.x_range.start = 0
        self._figure.ygrid.grid_line_color = None
        tooltips = [("worker", "@name"), ("Dask worker", "@address")]
        tooltips += [(kind, f"@{kind}{{0,0.[000]}} ms") for kind in KINDS]
        self._figure.add_tools(HoverTool(tooltips=tooltips, visible=False))
        legend = self._figure.legend[0]
        legend.update(
            orientation="horizontal", label_text_font_size="10px", padding=2, margin=0, glyph_height=12,
            glyph_width=12, label_height=12, border_line_color=None, background_fill_alpha=0,
        )  # fmt: skip
        self._figure.add_layout(legend, "above")
        self.root.children = [self._sentence, self._figure]

    def draw(self, records: Sequence[RunRecord]) -> None:
        """Draw the bars of these runs."""
        timed = [record for record in records if record.seconds]
        running = [record for record in timed if record.ended is None] or timed[-1:]
        columns = time_columns(running, labels(list(records)))
        self._figure.y_range.factors = columns["worker"][::-1]  # the first one at the top
        self.source.data = columns
        shows_names = len(columns["worker"]) <= MAX_NAMES
        self._figure.yaxis[0].major_label_text_font_size = "10px" if shows_names else "0px"
        self._figure.yaxis[0].major_tick_line_alpha = int(shows_names)
        self._figure.visible = bool(timed)
        self.say("" if timed else NO_RUN)


def time_columns(records: Sequence[RunRecord], names: dict[str, str]) -> dict[str, list[Any]]:
    """Return a row for each worker of these runs: its name, its Dask worker, and milliseconds of an iteration."""
    columns: dict[str, list[Any]] = {column: [] for column in COLUMNS}
    short = {run: shortened(name, LABEL_LETTERS) for run, name in names.items()}
    if len(set(short.values())) < len(short):
        short = names  # a worker must have a name that no other has
    for record in records:
        has_groups = any(group for group, _ in record.seconds)
        for (group, number), seconds in sorted(record.seconds.items()):
            columns["worker"].append(f"{short[record.run]} {f'g{group} ' if has_groups else ''}w{number}")
            of_group = f" of group {group}" if has_groups else ""
            columns["name"].append(f"{names[record.run]}: worker {number}{of_group}")
            columns["address"].append(record.addresses.get((group, number), ""))
            for kind in KINDS:
                columns[kind].append(1e3 * seconds[kind])
    return columns

"""Two dashboard panels: a table of running, waiting and ended runs, and bars of workers' times."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

from bokeh.models import (
    ColumnDataSource,
    CustomJS,
    DataTable,
    FactorRange,
    HoverTool,
    HTMLTemplateFormatter,
    TableColumn,
)

from dsinga.cluster.dashboard.history import RunHistory, labels, queued_runs, shortened
from dsinga.cluster.dashboard.panel import NO_RUN, SLOT_COLOURS, Choice, DashboardPanel, new_figure
from dsinga.cluster.dashboard.records import KINDS, RunRecord
from dsinga.monitor.progress import duration

COLUMNS = {"job": "Job", "state": "State", "for": "Time", "workers": "Workers", "step": "Step", "user": "User"}
WIDTHS = {"job": 95, "state": 60, "for": 62, "workers": 62, "step": 125, "user": 45}
# The name of a job is shown as text, whatever it contains; its square has the colour of the run's curves.
JOB_TEMPLATE = '<span title="<%- run %>"><span style="color:<%= colour %>">■</span> <%- value %></span>'
TEXT_TEMPLATE = '<span title="<%- value %>"><%- value %></span>'  # the title is whole where the column is narrow


class QueuePanel(DashboardPanel):
    """A table with a row for each waiting, running or ended run, in which the user chooses runs."""

    def __init__(self, history: RunHistory, scheduler: Any):
        super().__init__(history, "Runs", lambda: list(history.runs.values()))
        self._scheduler = scheduler
        self.source = ColumnDataSource({name: [] for name in (*COLUMNS, "run", "colour")}, name=self.title)
        columns = [
            TableColumn(
                field=name,
                title=title,
                width=WIDTHS[name],
                formatter=HTMLTemplateFormatter(template=JOB_TEMPLATE if name == "job" else TEXT_TEMPLATE),
            )
            for name, title in COLUMNS.items()
        ]
        self._table = DataTable(
            source=self.source, columns=columns, index_position=None, sizing_mode="stretch_both", row_height=22,
            sortable=False, reorderable=False, visible=False,
        )  # fmt: skip
        # The table of Bokeh 3.9 shows old figures until the number of rows changes.
        refresh = CustomJS(args={"view": self._table.view}, code="view.change.emit()")
        self.source.js_on_change("data", refresh)
        self.root.children = [self._sentence, self._table]

    def settings(self) -> Any:
        """Return what the table shows besides the history: the time in seconds, and the queued runs."""
        return int(time.time()), [(name, record["state"]) for name, record in queued_runs(self._scheduler).items()]

    def draw(self, records: Sequence[RunRecord]) -> None:
        """Draw the table, and keep the user's choice of rows."""
        chosen = {record.run for record in self.selected()}
        columns = queue_columns(records, queued_runs(self._scheduler), time.time())
        self.source.data = columns
        self.source.selected.indices = [row for row, run in enumerate(columns["run"]) if run in chosen]
        self._table.visible = bool(columns["run"])
        self.say("" if columns["run"] else NO_RUN)

    def selected(self) -> list[RunRecord]:
        """Return the runs that the user chose."""
        runs = [self.source.data["run"][row] for row in self.source.selected.indices]
        return [self.history.runs[run] for run in runs if run in self.history.runs]


def queue_columns(
    records: Sequence[RunRecord], queue: Mapping[str, Mapping[str, Any]], now: float
) -> dict[str, list[Any]]:
    """Return the table's columns: running runs, then waiting ones in order, then ended ones, newest first."""
    known = {record.run for record in records}
    rows = [_row(record, now) for record in records if record.ended is None]
    rows += [_queue_row(record, now) for run, record in queue.items() if run not in known]
    rows += [_row(record, now) for record in records[::-1] if record.ended is not None]
    names = (*COLUMNS, "run", "colour")
    return {name: [row[name] for row in rows] for name in names}


def _row(record: RunRecord, now: float) -> dict[str, Any]:
    return {
        "job": record.job,
        "state": record.state,
        "for": duration((record.ended or now) - record.begun),
        "workers": len(record.addresses) or "",
        "step": f"{record.step:,}/{record.train_steps:,}",
        "user": record.user,
        "run": record.run,
        "colour": SLOT_COLOURS[record.slot],
    }


def _queue_row(record: Mapping[str, Any], now: float) -> dict[str, Any]:
    """Return the row of a run that waits, or holds Dask workers and does not train yet."""
    return {
        "job": record["job"],
        "state": "waiting" if record["state"] == "waiting" else "starting",
        "for": duration(now - record["since"]),
        "workers": record["threads"],
        "step": "",
        "user": record["user"],
        "run": record["run"],
        "colour": "transparent",
    }


# Colours of the kinds, distinguishable by colour-blind readers, and different from the first runs' colours.
KIND_COLOURS = {"compute": "#0072b2", "exchange": "#e69f00", "data": "#999999"}
# The largest number of bars that have room for their names.
MAX_NAMES = 24
# The letters of a run's name next to its bars.
LABEL_LETTERS = 16
TIME_COLUMNS = ("worker", "name", "address", *KINDS)


class TimePanel(DashboardPanel):
    """Bars of each worker's time in an iteration, for the running runs or the last that ended."""

    def __init__(self, history: RunHistory, choose: Choice | None = None):
        super().__init__(history, "Time of an iteration by worker", choose)
        self.source = ColumnDataSource({column: [] for column in TIME_COLUMNS}, name=self.title)
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
        """Draw the bars of some runs."""
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
    """Return the bars' columns: each worker's name, Dask worker and milliseconds of an iteration."""
    columns: dict[str, list[Any]] = {column: [] for column in TIME_COLUMNS}
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

"""The panel with a table of the runs that wait, run or have ended."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

from bokeh.models import ColumnDataSource, CustomJS, DataTable, HTMLTemplateFormatter, TableColumn

from dsinga.cluster.dashboard.history import RunHistory, queued_runs
from dsinga.cluster.dashboard.panel import NO_RUN, SLOT_COLOURS, DashboardPanel
from dsinga.cluster.dashboard.records import RunRecord
from dsinga.monitor.progress import duration

COLUMNS = {"job": "Job", "state": "State", "for": "Time", "workers": "Workers", "step": "Step", "user": "User"}
WIDTHS = {"job": 95, "state": 60, "for": 62, "workers": 62, "step": 125, "user": 45}
# The name of a job is shown as text, whatever it contains; its square has the colour of the run's curves.
JOB_TEMPLATE = '<span title="<%- run %>"><span style="color:<%= colour %>">■</span> <%- value %></span>'
TEXT_TEMPLATE = '<span title="<%- value %>"><%- value %></span>'  # the title is whole where the column is narrow


class QueuePanel(DashboardPanel):
    """Draws a row for each run that waits, runs or has ended; ``selected()`` are the runs of the rows chosen.

    The queue of runs is a plugin of the scheduler (:mod:`dsinga.cluster.queue.run_queue`).
    """

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
        """Return the time in seconds, and what waits: the table shows both."""
        return int(time.time()), [(name, record["state"]) for name, record in queued_runs(self._scheduler).items()]

    def draw(self, records: Sequence[RunRecord]) -> None:
        """Draw the table; rows that the user has chosen stay so."""
        chosen = {record.run for record in self.selected()}
        columns = queue_columns(records, queued_runs(self._scheduler), time.time())
        self.source.data = columns
        self.source.selected.indices = [row for row, run in enumerate(columns["run"]) if run in chosen]
        self._table.visible = bool(columns["run"])
        self.say("" if columns["run"] else NO_RUN)

    def selected(self) -> list[RunRecord]:
        """Return the runs of the rows that the user has chosen."""
        runs = [self.source.data["run"][row] for row in self.source.selected.indices]
        return [self.history.runs[run] for run in runs if run in self.history.runs]


def queue_columns(
    records: Sequence[RunRecord], queue: Mapping[str, Mapping[str, Any]], now: float
) -> dict[str, list[Any]]:
    """Return the columns of the table: running runs, then waiting ones in their order, then the last ended ones."""
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
    """Return the row of a run that waits, or that holds Dask workers and does not train yet."""
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

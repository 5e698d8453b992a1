"""A panel with a table of the sites of runs that agree by the mean."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from bokeh.models import ColumnDataSource, DataTable, NumberFormatter, TableColumn

from dsinga.dashboard.history import RunHistory, labels
from dsinga.dashboard.panel import NO_RUN, Choice, DashboardPanel
from dsinga.dashboard.records import RunRecord

NOTHING = "no run with sites:<br>server groups that agree by the mean"
# The heading of each column, and the format of its numbers.
COLUMNS = {
    "run": ("Run", ""), "site": ("Site", ""), "step": ("Step", "0,0"), "age": ("Age, steps", "0,0"),
    "sent": ("Sent", "0.0 b"), "share": ("Link in use", "0%"),
}  # fmt: skip


class SitePanel(DashboardPanel):
    """Draws a row for each site: its step, how many steps ago it agreed with the others, its bytes, its link's use."""

    def __init__(self, history: RunHistory, choose: Choice | None = None):
        super().__init__(history, "Sites", choose)
        self.source = ColumnDataSource({name: [] for name in COLUMNS}, name=self.title)
        formats = {
            name: {"formatter": NumberFormatter(format=form)} if form else {} for name, (_, form) in COLUMNS.items()
        }
        columns = [TableColumn(field=name, title=title, **formats[name]) for name, (title, _) in COLUMNS.items()]
        self._table = DataTable(
            source=self.source, columns=columns, index_position=None, sizing_mode="stretch_both", row_height=22,
            visible=False,
        )  # fmt: skip
        self.root.children = [self._sentence, self._table]

    def draw(self, records: Sequence[RunRecord]) -> None:
        """Draw the rows of these runs."""
        names = labels(list(records))
        rows: list[tuple[Any, ...]] = [
            (names[record.run], str(group), site.step, site.age, site.sent, site.share)
            for record in records
            for group, site in sorted(record.sites.items())
        ]
        self.source.data = {name: [row[number] for row in rows] for number, name in enumerate(COLUMNS)}
        self._table.visible = bool(rows)
        self.say("" if rows else NOTHING if records else NO_RUN)

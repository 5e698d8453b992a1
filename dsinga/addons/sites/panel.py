"""The dashboard panel with a table of sites (server groups that average their params)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from bokeh.models import ColumnDataSource, DataTable, NumberFormatter, TableColumn

from dsinga.base.registry import register
from dsinga.cluster.dashboard.history import RunHistory, labels
from dsinga.cluster.dashboard.panel import NO_RUN, Choice, DashboardPanel
from dsinga.cluster.dashboard.records import RunRecord

NOTHING = "no run with sites:<br>server groups that average their params"
# The heading of each column, and the format of its numbers.
COLUMNS = {
    "run": ("Run", ""), "site": ("Site", ""), "step": ("Step", "0,0"), "age": ("Age, steps", "0,0"),
    "sent": ("Sent", "0.0 b"), "share": ("Link in use", "0%"),
}  # fmt: skip


class Site(NamedTuple):
    """A site's progress: step, steps since it averaged, bytes sent, and share of time in which its link was used."""

    step: int
    age: int
    sent: int
    share: float


def sites_of(record: RunRecord) -> dict[int, Site]:
    """Read the figures of a run's sites, by server group, from the last two events of its servers."""
    if not record.sites:
        return {}
    (begun, before), (now, servers) = record.sites[0], record.sites[-1]
    sites = {}
    for group in sorted({int(server[0]) for server in servers}):
        step, age, sent, used = zip(*(server[1:] for server in servers if server[0] == group), strict=True)
        used_before = max((server[4] for server in before if server[0] == group), default=max(used))
        share = (max(used) - used_before) / max(now - begun, 1e-6)  # less than 0 if servers restarted
        sites[group] = Site(int(min(step)), int(max(age)), int(sum(sent)), min(1.0, max(0.0, share)))
    return sites


@register("panel", "sites")
class SitePanel(DashboardPanel):
    """Draws a row for each site, with its progress and the use of its link."""

    def __init__(self, history: RunHistory, scheduler: Any, choose: Choice | None = None):
        super().__init__(history, "Sites", choose)
        self.source = ColumnDataSource({name: [] for name in COLUMNS}, name=self.title)
        columns = [
            TableColumn(field=name, title=title, **({"formatter": NumberFormatter(format=form)} if form else {}))
            for name, (title, form) in COLUMNS.items()
        ]
        self._table = DataTable(
            source=self.source, columns=columns, index_position=None, sizing_mode="stretch_both", row_height=22,
            visible=False,
        )  # fmt: skip
        self.root.children = [self._sentence, self._table]

    def draw(self, records: Sequence[RunRecord]) -> None:
        """Draw a row for each site of these runs."""
        names = labels(list(records))
        rows = [
            (names[record.run], str(group), *site) for record in records for group, site in sites_of(record).items()
        ]
        self.source.data = {name: [row[number] for row in rows] for number, name in enumerate(COLUMNS)}
        self._table.visible = bool(rows)
        self.say("" if rows else NOTHING if records else NO_RUN)

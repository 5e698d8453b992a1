"""Adds pages to the dashboard of a running scheduler: one for each panel, and one with all."""

from __future__ import annotations

import contextlib
import functools
import weakref
from collections.abc import Callable, Sequence
from typing import Any

from bokeh.models import Column, Row
from bokeh.server.tornado import BokehTornado
from distributed.dashboard.components.scheduler import BOKEH_THEME, env
from distributed.dashboard.core import BokehApplication
from distributed.dashboard.scheduler import template_variables
from tornado.ioloop import IOLoop

from dsinga.base.errors import UserError
from dsinga.base.registry import lookup, registered
from dsinga.cluster.dashboard.history import RunHistory
from dsinga.cluster.dashboard.line_panel import (
    LinePanel,
    byte_curves,
    loss_curves,
    metric_curves,
    speed_curves,
    staleness_curves,
)
from dsinga.cluster.dashboard.panel import DashboardPanel
from dsinga.cluster.dashboard.records import RunRecord
from dsinga.cluster.dashboard.run_panels import QueuePanel, TimePanel

# Milliseconds between two looks for news by a page that is open.
UPDATE_MS = 500


_over_time = functools.partial(LinePanel, over_time=True)
_logarithmic = functools.partial(LinePanel, logarithmic=True)
NO_METRICS = "no run with metrics besides the loss"
NO_STALENESS = "no run with several worker groups:<br>synchronous runs have no stale gradients"

# By name, a function of the history, the scheduler, and a function that chooses the runs, by default the newest.
PANELS: dict[str, Callable[..., DashboardPanel]] = {
    "loss": lambda history, _, choose=None: _logarithmic(history, "Loss", loss_curves, "loss", choose=choose),
    "metrics": lambda history, _, choose=None: _logarithmic(
        history, "Metrics", metric_curves, "metric", has_choice=True, nothing=NO_METRICS, choose=choose
    ),
    "speed": lambda history, _, choose=None: _over_time(
        history, "Speed", speed_curves, "samples per second", choose=choose
    ),
    "time": lambda history, _, choose=None: TimePanel(history, choose),
    "staleness": lambda history, _, choose=None: _over_time(
        history, "Staleness of gradients", staleness_curves, "updates between pull and push", nothing=NO_STALENESS,
        choose=choose,
    ),
    "bytes": lambda history, _, choose=None: _over_time(
        history, "Bytes moved", byte_curves, "bytes per second", in_bytes=True, choose=choose
    ),
    "queue": QueuePanel,
}  # fmt: skip
ADDED: list[str] = []  # the panels of add-ons that are installed
for _name in registered("panel"):
    with contextlib.suppress(UserError):
        PANELS[_name] = lookup("panel", _name)
        ADDED.append(_name)


def panel_page(name: str, history: RunHistory, scheduler: Any, extra: Any, doc: Any) -> None:
    """Fill a page of the dashboard with one panel."""
    panel = PANELS[name](history, scheduler)
    _fill(doc, panel.root, [panel], f"dsinga: {panel.title}")


def all_page(history: RunHistory, scheduler: Any, extra: dict[str, Any], doc: Any) -> None:
    """Fill a page of the dashboard with all panels, for the runs chosen in its table."""
    queue = QueuePanel(history, scheduler)

    def choose() -> Sequence[RunRecord]:
        return queue.selected() or history.shown()

    panels = {name: make(history, scheduler, choose) for name, make in PANELS.items() if name != "queue"}
    panels["queue"] = queue
    rows = [["queue", "loss", "metrics"], ["speed", "time"], ["staleness", "bytes", *ADDED]]
    roots = [Row(*(panels[name].root for name in names), sizing_mode="stretch_both") for names in rows]

    def update_all(attr: str, old: Any, new: Any) -> None:
        for panel in panels.values():
            panel.update()

    queue.source.selected.on_change("indices", update_all)
    _fill(doc, Column(*roots, sizing_mode="stretch_both"), list(panels.values()), "dsinga: all panels")
    doc.template = env.get_template("simple.html")
    doc.template_variables.update(extra)


def _fill(doc: Any, root: Any, panels: Sequence[DashboardPanel], title: str) -> None:
    for panel in panels:
        panel.update()
    doc.add_root(root)
    # The document owns its panels, so that callbacks need not: they would be a cycle that lives on in Bokeh's server.
    doc.dsinga_panels = panels
    for panel in panels:
        doc.add_periodic_callback(functools.partial(_update, weakref.ref(panel)), UPDATE_MS)
    doc.theme = BOKEH_THEME
    doc.title = title


def _update(panel: weakref.ref[DashboardPanel]) -> None:
    alive = panel()
    if alive is not None:
        alive.update()


def add_pages(scheduler: Any, history: RunHistory) -> bool:
    """Add the pages to a scheduler's dashboard and menu; return False if it has no dashboard."""
    dashboard = next((app for app in scheduler.http_application.applications if isinstance(app, BokehTornado)), None)
    if dashboard is None:
        return False
    pages = {f"/individual-dsinga-{name}": functools.partial(panel_page, name, history) for name in PANELS}
    pages["/dsinga"] = functools.partial(all_page, history)
    variables = template_variables(scheduler)
    application = BokehApplication(pages, scheduler, prefix=dashboard.prefix, template_variables=variables)
    scheduler.http_application.add_application(application)
    application.initialize(IOLoop.current())
    application.start()
    # Dask's list of panels, which JupyterLab's extension reads, has the paths of the first application only.
    dashboard._applications.update(application._applications)
    variables["pages"].append("dsinga")
    variables["plots"] += [{"url": f"individual-dsinga-{name}", "name": f"dsinga {name}"} for name in PANELS]
    variables["plots"].sort(key=lambda plot: str(plot["name"]).lower())
    return True

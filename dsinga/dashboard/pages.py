"""The pages of the dashboard, one for each panel and one with all of them, and adding them to a running scheduler."""

from __future__ import annotations

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

from dsinga.dashboard.curves import byte_curves, loss_curves, metric_curves, speed_curves, staleness_curves
from dsinga.dashboard.history import RunHistory
from dsinga.dashboard.line_panel import LinePanel
from dsinga.dashboard.panel import Choice, DashboardPanel
from dsinga.dashboard.queue_panel import QueuePanel
from dsinga.dashboard.records import RunRecord
from dsinga.dashboard.site_panel import SitePanel
from dsinga.dashboard.time_panel import TimePanel

# Milliseconds between two looks for news by a page that is open.
UPDATE_MS = 500


def loss_panel(history: RunHistory, scheduler: Any, choose: Choice | None = None) -> DashboardPanel:
    """Return the panel of the loss."""
    return LinePanel(history, "Loss", loss_curves, "loss", logarithmic=True, choose=choose)


def metrics_panel(history: RunHistory, scheduler: Any, choose: Choice | None = None) -> DashboardPanel:
    """Return the panel of the other metrics, of which the user chooses one."""
    nothing = "no run with metrics besides the loss"
    return LinePanel(
        history, "Metrics", metric_curves, "metric", has_choice=True, nothing=nothing, logarithmic=True, choose=choose
    )


def speed_panel(history: RunHistory, scheduler: Any, choose: Choice | None = None) -> DashboardPanel:
    """Return the panel of samples a second."""
    return LinePanel(history, "Speed", speed_curves, "samples per second", over_time=True, choose=choose)


def time_panel(history: RunHistory, scheduler: Any, choose: Choice | None = None) -> DashboardPanel:
    """Return the panel of the time of an iteration."""
    return TimePanel(history, choose)


def staleness_panel(history: RunHistory, scheduler: Any, choose: Choice | None = None) -> DashboardPanel:
    """Return the panel of the staleness of gradients."""
    nothing = "no run with several worker groups:<br>synchronous runs have no stale gradients"
    label = "updates between pull and push"
    return LinePanel(
        history, "Staleness of gradients", staleness_curves, label, over_time=True, nothing=nothing, choose=choose
    )


def bytes_panel(history: RunHistory, scheduler: Any, choose: Choice | None = None) -> DashboardPanel:
    """Return the panel of bytes a second."""
    return LinePanel(
        history, "Bytes moved", byte_curves, "bytes per second", over_time=True, in_bytes=True, choose=choose
    )


def site_panel(history: RunHistory, scheduler: Any, choose: Choice | None = None) -> DashboardPanel:
    """Return the table of sites."""
    return SitePanel(history, choose)


def queue_panel(history: RunHistory, scheduler: Any, choose: Choice | None = None) -> DashboardPanel:
    """Return the table of runs."""
    return QueuePanel(history, scheduler)


PANELS: dict[str, Callable[..., DashboardPanel]] = {
    "loss": loss_panel,
    "metrics": metrics_panel,
    "speed": speed_panel,
    "time": time_panel,
    "staleness": staleness_panel,
    "bytes": bytes_panel,
    "sites": site_panel,
    "queue": queue_panel,
}


def panel_page(name: str, history: RunHistory, scheduler: Any, extra: Any, doc: Any) -> None:
    """Fill the document of the page with one panel."""
    panel = PANELS[name](history, scheduler)
    _fill(doc, panel.root, [panel], f"dsinga: {panel.title}")


def all_page(history: RunHistory, scheduler: Any, extra: dict[str, Any], doc: Any) -> None:
    """Fill the document of the page with all panels, which show the runs that are chosen in the table."""
    queue = QueuePanel(history, scheduler)

    def choose() -> Sequence[RunRecord]:
        return queue.selected() or history.shown()

    panels = {name: make(history, scheduler, choose) for name, make in PANELS.items() if name != "queue"}
    panels["queue"] = queue
    rows = [["queue", "loss", "metrics"], ["speed", "time"], ["staleness", "bytes", "sites"]]
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
    """Draw a panel anew, if there still is one."""
    alive = panel()
    if alive is not None:
        alive.update()


def add_pages(scheduler: Any, history: RunHistory) -> bool:
    """Add the pages to a scheduler's dashboard, and to its menu; return False where it has no dashboard."""
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

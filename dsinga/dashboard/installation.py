"""Adding the pages to the dashboard of a running scheduler."""

from __future__ import annotations

import functools
from typing import Any

from bokeh.server.tornado import BokehTornado
from distributed.dashboard.core import BokehApplication
from distributed.dashboard.scheduler import template_variables
from tornado.ioloop import IOLoop

from dsinga.dashboard.history import RunHistory
from dsinga.dashboard.pages import PANELS, all_page, panel_page


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

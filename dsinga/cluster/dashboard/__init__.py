"""Pages about the runs of dsinga in the dashboard of Dask's scheduler, and metrics for Prometheus.

The first run on a scheduler adds them, or ``dask scheduler --preload dsinga.cluster.dashboard``. Only this package
imports bokeh.
"""

from __future__ import annotations

import importlib.util
import logging
from typing import Any

from dsinga.cluster.dashboard.history import TOPIC, RunHistory

# What people learn who preload the pages into a scheduler without a dashboard.
NO_DASHBOARD = (
    "this scheduler has no dashboard, so that it has no pages of dsinga: install bokeh with "
    "pip install 'dsinga[dashboard]', and start the scheduler without --no-dashboard"
)

_log = logging.getLogger(__name__)


def install(scheduler: Any) -> RunHistory:
    """Add the history of runs, its pages and metrics to a scheduler; return the history.

    Call it on the scheduler's event loop. Pages need a dashboard, metrics prometheus-client.
    """
    history = scheduler.plugins.get(RunHistory.name)
    if history is not None:
        return history
    history = RunHistory()
    history.replay(scheduler.get_events(TOPIC))
    scheduler.add_plugin(history, name=history.name)
    if scheduler.http_application.applications:
        from dsinga.cluster.dashboard.pages import add_pages  # where bokeh is missing, Dask has no dashboard either

        add_pages(scheduler, history)
    if importlib.util.find_spec("prometheus_client"):
        from dsinga.cluster.dashboard.prometheus import collect_runs  # the package is an extra

        collect_runs(history, scheduler)
    return history


async def dask_setup(scheduler: Any) -> None:
    """Install the pages when a scheduler starts."""
    install(scheduler)
    if not scheduler.http_application.applications:
        _log.warning(NO_DASHBOARD)

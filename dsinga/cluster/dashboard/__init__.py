"""Pages about dsinga's runs in the dashboard of Dask's scheduler, and metrics for Prometheus.

They are added to a scheduler by the first run on it, or when it starts: ``dask scheduler --preload
dsinga.cluster.dashboard``. They show the runs of all clients of the scheduler, also those that have ended.

- ``/dsinga``: all panels; the rows that are selected in its table of runs (several with Ctrl) appear in the others.
- ``/individual-dsinga-loss``: loss by step, of training, validations and tests; logarithmic where it spans two decades.
  A job without ``disp_freq`` shows the losses of single batches.
- ``/individual-dsinga-metrics``: another metric, which the reader chooses.
- ``/individual-dsinga-speed``: samples per second of all worker groups, by the scheduler's clock.
- ``/individual-dsinga-time``: for each worker, milliseconds of an iteration in its last round: computing ("compute"),
  waiting for servers and other workers ("exchange"), waiting for records ("data").
- ``/individual-dsinga-staleness``: staleness of gradients by worker group, for asynchronous runs: how many updates by
  others come between the pull of the values and the update by their gradient. It is counted for each
  slice and averaged; about G - 1 for G groups of the same speed. An exchange with another server group is one update.
- ``/individual-dsinga-bytes``: bytes per second between processes, and within one process (passed without a copy).
- ``/individual-dsinga-sites``: for each site its step, the age in steps of the last outer gradients that it applied,
  the bytes sent, and the share of time in which its busiest link was in use.
- ``/individual-dsinga-queue``: runs that train, runs that wait for free threads, and the last ones that have ended.

A run has the same colour in all panels; a click on its name in a legend hides it. In Dask's own pages tasks have the
names ``train round``, ``evaluate``, ``exchange`` and ``start worker``.
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
    """Add the history of runs, its pages and metrics to a scheduler; return the history."""
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
    """Add the pages to a scheduler that starts with ``--preload``."""
    install(scheduler)
    if not scheduler.http_application.applications:
        _log.warning(NO_DASHBOARD)

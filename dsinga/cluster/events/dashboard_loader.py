"""A plugin of Dask's scheduler that puts dsinga's pages on its dashboard."""

from __future__ import annotations

import contextlib
import importlib
from typing import Any

from distributed.diagnostics.plugin import SchedulerPlugin


class DashboardLoader(SchedulerPlugin):
    """Installs :mod:`dsinga.dashboard`, which its name refers to: the cluster's modules do not import the pages."""

    name = "dsinga-dashboard-loader"
    idempotent = True

    async def start(self, scheduler: Any) -> None:
        """Install the pages. What is missing or wrong there, such as another version of bokeh, fails no run."""
        with contextlib.suppress(Exception):
            importlib.import_module("dsinga.dashboard").install(scheduler)

"""The runs that wait for Dask workers, or hold some, as the scheduler's queue of runs knows them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

# The name of the plugin (:class:`dsinga.cluster.queue.run_queue.RunQueue`).
QUEUE = "dsinga-queue"


def queued_runs(scheduler: Any) -> dict[str, Mapping[str, Any]]:
    """Return the records of the runs that wait for Dask workers or hold some, by name, the oldest first."""
    return dict(getattr(scheduler.plugins.get(QUEUE), "runs", {}))

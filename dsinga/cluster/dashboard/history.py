"""Keeps the history of the runs on a cluster, and their queue, for the dashboard: a plugin of Dask's scheduler."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from distributed.diagnostics.plugin import SchedulerPlugin

from dsinga.cluster.dashboard.records import Event, RunRecord

# The topic of the events.
TOPIC = "dsinga"
# The largest number of runs that are kept: older ones that have ended are forgotten.
MAX_RUNS = 100
# The number of colours, and so of runs that are shown at a time unless a user selects others.
SLOTS = 8


class RunHistory(SchedulerPlugin):
    """Records the runs on a cluster from their events, in bounded memory.

    ``runs`` has the records by the run's name, oldest first.
    """

    name = "dsinga-dashboard"
    idempotent = True

    def __init__(self) -> None:
        self.runs: dict[str, RunRecord] = {}
        self.version = 0

    def replay(self, events: Any) -> None:
        """Read earlier events, as (time, event)."""
        for when, event in events:
            self._read(event, when)

    def log_event(self, topic: str, msg: Any) -> None:
        """Read an event that a run publishes."""
        if topic == TOPIC:
            self._read(msg, time.time())

    def remove_client(self, scheduler: Any, client: str) -> None:
        """End the records of a client's runs after the client has gone."""
        for record in self.runs.values():
            if record.client == client and record.ended is None:
                record.end(time.time(), "lost")
                self.version += 1

    def shown(self) -> list[RunRecord]:
        """Return the runs to show: the newest of each colour, the oldest first."""
        newest = {record.slot: record for record in self.runs.values()}
        return sorted(newest.values(), key=lambda record: record.begun)

    def _read(self, event: Event, now: float) -> None:
        if not isinstance(event, Mapping) or "run" not in event or "event" not in event:
            return
        record = self.runs.get(event["run"])
        if record is None:
            record = self._add(event, now)
        if event["event"] == "round":
            record.read_round(event, now)
        elif event["event"] == "end":
            record.end(now, str(event.get("state", "done")), event.get("step"))
        self.version += 1

    def _add(self, event: Event, now: float) -> RunRecord:
        record = self.runs[event["run"]] = RunRecord(event, now, self._free_slot())
        ended = [run for run, record in self.runs.items() if record.ended is not None]
        for run in ended[: max(0, len(self.runs) - MAX_RUNS)]:
            del self.runs[run]
        return record

    def _free_slot(self) -> int:
        """Return the colour of a new run: the longest unused one, if possible of no running run."""
        newest = {record.slot: record for record in self.runs.values()}

        def rank(slot: int) -> tuple[bool, float]:
            record = newest.get(slot)
            return (False, -1.0) if record is None else (record.ended is None, record.begun)

        return min(range(SLOTS), key=rank)


def labels(records: list[RunRecord]) -> dict[str, str]:
    """Return each run's label: its job's name, and the run's name if jobs have the same name."""
    jobs = [record.job for record in records]
    return {
        record.run: record.job if jobs.count(record.job) == 1 else f"{record.job} {record.run[:4]}"
        for record in records
    }


def shortened(label: str, letters: int) -> str:
    """Shorten a label to at most ``letters`` letters, by cutting out its middle."""
    return label if len(label) <= letters else f"{label[: letters - 6]}…{label[-5:]}"


# The name of the plugin (:class:`dsinga.cluster.queue.run_queue.RunQueue`).
QUEUE = "dsinga-queue"


def queued_runs(scheduler: Any) -> dict[str, Mapping[str, Any]]:
    """Return the records of runs that wait for Dask workers or hold some, by name, oldest first."""
    return dict(getattr(scheduler.plugins.get(QUEUE), "runs", {}))

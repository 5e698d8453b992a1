"""Runs that stop in the middle until a test lets them go on, and the queue that they are in."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

from tests.support.observers import Silent

if TYPE_CHECKING:
    from distributed import Client

# Seconds that a test waits for something.
PATIENCE = 60


class Gate(Silent):
    """An observer that stops its run at step 10 until ``go`` is set, and keeps what it is told."""

    def __init__(self, *, opened: bool = False):
        self.reached, self.go, self.waited = threading.Event(), threading.Event(), threading.Event()
        self.sentences: list[str] = []
        if opened:
            self.go.set()

    def waiting(self, sentence: str) -> None:
        self.sentences.append(sentence)
        self.waited.set()

    def record(self, row: dict[str, Any]) -> None:
        if row["step"] == 10:
            self.reached.set()
            assert self.go.wait(PATIENCE)


def run_states(client: Client) -> dict[str, str]:
    """Return the state of each run of a cluster by the name of its job, in the order of their arrival."""

    def read(dask_scheduler: Any) -> dict[str, str]:  # in here, so that it is sent by value
        queue = dask_scheduler.plugins.get("dsinga-queue")
        return {record["job"]: record["state"] for record in queue.runs.values()} if queue else {}

    return client.run_on_scheduler(read)

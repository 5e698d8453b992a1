"""Observers of runs: one that ignores everything, one that acts at a row, one that keeps rows and acts on the way."""

from collections.abc import Callable
from typing import Any

from distributed import Client

from dsinga import cluster
from dsinga.api import roots
from dsinga.job import Job
from dsinga.loop.initial_state import RunOptions
from dsinga.loop.run_loop import TrainedParams

NEVER = 10**9


class Silent:
    """An observer that ignores everything."""

    def waiting(self, sentence: str) -> None: ...

    def begin(self, step: int) -> None: ...

    def record(self, row: dict[str, Any]) -> None: ...

    def progress(self, row: dict[str, Any]) -> None: ...


class AtRow(Silent):
    """An observer that calls a function once, at the first row of metrics after ``step`` steps."""

    def __init__(self, step: int, act: Callable[[], Any]):
        self._step, self._act = step, act
        self.acted = False

    def record(self, row: dict[str, Any]) -> None:
        if row["step"] >= self._step and not self.acted:
            self.acted = True
            self._act()


class Recorder(Silent):
    """An observer that keeps all rows, and calls a function once when ``step`` steps are done."""

    def __init__(self, step: int = NEVER, act: Callable[[], None] = lambda: None):
        self._step, self._act = step, act
        self.rows: list[dict[str, Any]] = []
        self.acted = False

    def record(self, row: dict[str, Any]) -> None:
        self.rows.append(row)

    def progress(self, row: dict[str, Any]) -> None:
        if row["step"] >= self._step and not self.acted:
            self.acted = True
            self._act()


def of_phase(rows: list[dict[str, Any]], phase: str) -> list[dict[str, Any]]:
    """Return the rows of a phase without their times."""
    return [{name: value for name, value in row.items() if name != "time"} for row in rows if row["phase"] == phase]


def train_observed(job: Job, client: Client, observer: Any, **options: Any) -> TrainedParams:
    """Train a job on the cluster of a client with an observer, and options of :class:`RunOptions`."""
    return cluster.train(job, client, observer, RunOptions(roots=roots(job, None), **options))

"""Takes the times of steps and recoveries while a job is trained."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from dsinga.extensions import Extension, LoopView
from dsinga.extensions.triggers import AtEnd
from dsinga.monitor import RECOVERY, read_metrics
from dsinga.testing.chaos.faults import CausedFault
from dsinga.training import Metrics


class Recovery(NamedTuple):
    """A row of the history about a recovery, and when the next new step was done, by ``time.monotonic``."""

    row: Mapping[str, Any]
    at: float


class RecoveryWatch(Extension):
    """Notes the steps of a run, and which time its rows count from; may stop the run after a time.

    Args:
        seconds: how long to train, 0 for all steps of the job.

    Attributes:
        step: how many steps are done.
        zero: the moment from which the "time" of rows counts, by ``time.monotonic``.
    """

    pauses = False

    def __init__(self, seconds: float = 0.0):
        self.trigger = AtEnd()
        self._seconds = seconds
        self._began = time.monotonic()
        self.zero = self._began
        self.step = 0

    def start(self, loop: LoopView) -> None:
        """Note when training begins."""
        self._began = time.monotonic()
        self.zero = self._began - loop.seconds

    def observe(self, loop: LoopView, sums: Metrics) -> None:
        """Count a step; stop when the time is over."""
        self.step = loop.step
        if self._seconds and not loop.stopped and time.monotonic() - self._began > self._seconds:
            loop.stop(f"{self._seconds:g} s are over")

    def run(self, loop: LoopView) -> None:
        """Do nothing."""


def read_recoveries(workspace: Path, zero: float) -> list[Recovery]:
    """Return the recoveries in the ``metrics.jsonl`` of a workspace, however its run has ended.

    ``zero`` is the moment from which the "time" of its rows counts.
    """
    path = workspace / "metrics.jsonl"
    rows = read_metrics(path).phase(RECOVERY) if path.exists() else ()
    return [Recovery(row, zero + row["time"]) for row in rows]


def seconds_to_next_step(faults: Sequence[CausedFault], recoveries: Sequence[Recovery]) -> dict[int, float]:
    """Return the seconds from each fault to the next new step, by the fault's number.

    Faults that no recovery followed are absent: they hit a Dask worker without a part of the run, or paused one for a
    time only. Two faults before one recovery both count up to that.
    """
    seconds = {}
    begin = 0.0
    for recovery in recoveries:
        for number, fault in enumerate(faults):
            if begin <= fault.at < recovery.at and not fault.failed:
                seconds[number] = recovery.at - fault.at
        begin = recovery.at
    return seconds

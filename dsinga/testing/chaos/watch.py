"""Takes the times of steps and recoveries while a job is trained."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from dsinga.extensions import Extension, LoopView
from dsinga.extensions.triggers import AtEnd
from dsinga.testing.chaos.faults import CausedFault
from dsinga.training import Metrics

RECOVERY = "recovery"  # the phase of the rows that say that a run has gone on after a loss


class Recovery(NamedTuple):
    """A row of the history about a recovery, and when it came: at the next new step, by ``time.monotonic``."""

    row: Mapping[str, Any]
    at: float


class RecoveryWatch(Extension):
    """Notes the steps of a run, and when rows of recoveries come; may stop the run after a time.

    Args:
        seconds: how long to train, 0 for all steps of the job.

    Attributes:
        step: how many steps are done.
        recoveries: those that the run has reported.
    """

    pauses = False

    def __init__(self, seconds: float = 0.0):
        self.trigger = AtEnd()
        self._seconds = seconds
        self._began = time.monotonic()
        self.step = 0
        self.recoveries: list[Recovery] = []

    def start(self, loop: LoopView) -> None:
        """Note when training begins."""
        self._began = time.monotonic()

    def observe(self, loop: LoopView, sums: Metrics) -> None:
        """Count a step; stop when the time is over."""
        self.step = loop.step
        if self._seconds and not loop.stopped and time.monotonic() - self._began > self._seconds:
            loop.stop(f"{self._seconds:g} s are over")

    def see_row(self, loop: LoopView, row: Mapping[str, Any]) -> None:
        """Note when a run has gone on after a loss."""
        if row.get("phase") == RECOVERY:
            self.recoveries.append(Recovery(row, time.monotonic()))

    def run(self, loop: LoopView) -> None:
        """Do nothing."""


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

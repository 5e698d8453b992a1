"""Runs several training steps in order; on a GPU the next is launched while one still computes."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from typing import NamedTuple

from dsinga.layers import Layer, Records
from dsinga.ops.interface import Ops, RepeatedIterations
from dsinga.training import Metrics


class Timing(NamedTuple):
    """How long a worker's training step took, and how many bytes it sent and received.

    Attributes:
        total: seconds of the whole iteration.
        data: seconds of waiting for records.
        exchange: seconds of waiting for servers and other workers.
        crossing: bytes to and from other processes.
        within: bytes handed over in this process, without a copy.
        update: the part of ``exchange`` in which the worker's thread computed updates.
    """

    total: float
    data: float
    exchange: float
    crossing: int = 0
    within: int = 0
    update: float = 0.0


class BegunStep(NamedTuple):
    """A training step that has read its batch: number, records and seconds of waiting."""

    step: int
    records: dict[str, Records]
    data_seconds: float


class Round:
    """Runs training steps in order and reports each; up to two may be running.

    Args:
        launch: launches a begun step if a graph can compute it; returns whether.
        captured: finishes the earliest launched step; None without launches.
    """

    def __init__(
        self, begin: Callable[[int], BegunStep], launch: Callable[[BegunStep], bool],
        captured: RepeatedIterations | None, compute: Callable[[BegunStep], tuple[Metrics | None, Timing]],
        report: Callable[[BegunStep, Metrics | None, Timing], None],
    ):  # fmt: skip
        self._begin, self._launch, self._captured, self._compute = begin, launch, captured, compute
        self._report = report
        self._running: BegunStep | None = None
        self._reported = 0.0

    def run(self, start: int, stop: int, seconds: float = math.inf) -> None:
        """Train from step ``start`` to ``stop`` - 1, beginning no step after ``seconds`` seconds."""
        self._reported = time.perf_counter()
        end = self._reported + seconds
        for step in range(start, stop):
            try:
                begun = self._begin(step)
            except Exception:
                self._end_running()  # what fails there has failed before
                raise
            is_launched = self._captured is not None and self._launch(begun)
            is_accepted = self._running is None or self._end_running()
            if is_launched and is_accepted:
                self._running = begun
            else:
                self._add(begun, *self._compute(begun))
            if self._reported >= end:
                break
        self._end_running()

    def _add(self, begun: BegunStep, metrics: Metrics | None, timing: Timing) -> None:
        self._report(begun, metrics, timing)
        self._reported = time.perf_counter()

    def _end_running(self) -> bool:
        """Report the step that is running; return False if it and the next must be repeated."""
        running, self._running = self._running, None
        if running is None:
            return True
        assert self._captured is not None
        metrics = self._captured.finish()
        if metrics is None:
            self._add(running, *self._compute(running))
            return False
        total = time.perf_counter() - self._reported
        self._add(running, metrics, Timing(total, running.data_seconds, 0.0, 0, 0, 0.0))
        return True


def send_ahead(
    read: Callable[[int], dict[str, Records]], layers: Mapping[str, Layer], ops: Ops, step: int
) -> dict[str, Records]:
    """Read a step's records, and start copying them to the device."""
    return {name: layers[name].send_ahead(records, ops) for name, records in read(step).items()}

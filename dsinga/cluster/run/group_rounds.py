"""Sends the rounds (several steps each) of one worker group to Dask ahead of time, and reads their reports."""

from __future__ import annotations

import collections
import itertools
import logging
from collections.abc import Callable, Sequence
from typing import NamedTuple

from distributed import Future

from dsinga.cluster.dask.run_tasks import RoundLength, steps_text
from dsinga.cluster.on_workers import tasks
from dsinga.cluster.run.cluster_run import ClusterRun
from dsinga.cluster.worker.config import RoundReport
from dsinga.engine.engine import StepReport
from dsinga.job import Job
from dsinga.training import Metrics, add_metrics
from dsinga.training.divergence import LEFT_OUT
from dsinga.training.metrics import add_blocks

_log = logging.getLogger(__name__)

# Rounds that are sent ahead, so that a worker finds its next round waiting when it ends one.
ROUNDS_AHEAD = 2


class Grain(NamedTuple):
    """A way to send iterations to Dask, as rounds or task graphs; it does not change the computed numbers.

    Attributes:
        submit_round: given (run, group, start, stop), submits the iterations ``start`` to ``stop`` - 1 of a worker
            group; returns the tasks of the reports, one a worker.
        check: raises JobError for a job that this grain cannot run.
        most_steps: the most iterations in a round; None for no limit.
    """

    submit_round: Callable[[ClusterRun, int, int, int], list[Future]]
    check: Callable[[Job], None]
    most_steps: int | None = None


def _submit_round(run: ClusterRun, group: int, start: int, stop: int) -> list[Future]:
    return run.workers.submit(tasks.train_round, group, steps_text(start, stop), start, stop)


ROUNDS = Grain(_submit_round, lambda job: None)


class GroupRounds:
    """Sends the rounds of a worker group, or of several synchronous ones, and reads their reports.

    Several groups report all their workers, in order; their metrics are added.

    Attributes:
        sent: the step after the last sent round.
        read_to: the step after the last round that was read.
        speed: steps a second in the last round, 0 before the first and after the last one.
    """

    def __init__(self, run: ClusterRun, grain: Grain, group: int, start: int, groups: int = 1):
        self._run, self._grain = run, grain
        self._groups = range(group, group + groups)
        topology = self._topology = run.config.topology
        self.group, self.sent, self.read_to = group, start, start
        self.speed = 0.0
        self.length = RoundLength(grain.most_steps, topology.groups * topology.workers)
        self._in_flight: collections.deque[list[Future]] = collections.deque()

    def submit_ahead(self, stop: int) -> bool:
        """Send rounds ahead, none beyond step ``stop``; return whether reports are still to come."""
        while self.sent < stop and len(self._in_flight) < ROUNDS_AHEAD:
            end = min(stop, self.sent + self.length.steps)
            rounds = [self._grain.submit_round(self._run, group, self.sent, end) for group in self._groups]
            self._in_flight.append([future for futures in rounds for future in futures])
            self.sent = end
        return bool(self._in_flight)

    @property
    def oldest(self) -> list[Future]:
        """The tasks of the oldest round in flight."""
        return self._in_flight[0]

    def read(self, reports: Sequence[RoundReport]) -> list[StepReport]:
        """Return a report of each step of the oldest round; adapt the length of later rounds."""
        self._in_flight.popleft()
        by_group = reports_by_group(reports, self._topology.workers)
        for group, of_group in zip(self._groups, by_group, strict=True):
            for step in of_group[0].skipped:
                _log.warning(LEFT_OUT, group, step)
        seconds = _seconds_per_step(reports)
        self.read_to += len(seconds)
        self.length.learn(seconds)
        self.speed = len(seconds) / sum(seconds)
        return [
            StepReport(
                add_metrics([self._metrics(of_group, number) for of_group in by_group]),
                _timing(reports, number, seconds[number]),
            )
            for number in range(len(seconds))
        ]

    def _metrics(self, reports: Sequence[RoundReport], number: int) -> Metrics:
        """Add up the metrics of a step of the workers of a group."""
        if self._topology.threads is None:
            return add_metrics([report.metrics[number] for report in reports])
        firsts = itertools.accumulate((report.blocks for report in reports), initial=0)
        return add_blocks({first: report.metrics[number] for first, report in zip(firsts, reports, strict=False)})


def reports_by_group(reports: Sequence[RoundReport], workers: int) -> list[list[RoundReport]]:
    """Divide the reports of synchronous groups of ``workers`` workers, which come together."""
    groups: list[list[RoundReport]] = []
    left = 0
    for report in reports:
        if not left:
            groups.append([])
            left = workers
        groups[-1].append(report)
        left -= report.blocks
    return groups


def _seconds_per_step(reports: Sequence[RoundReport]) -> list[float]:
    """Return the seconds of each step of a round, for the worker with the largest total.

    Workers drift by less than a step: maxima of single steps would overestimate the round.
    """
    slowest = max(reports, key=lambda report: sum(timing.total for timing in report.timings))
    return [timing.total for timing in slowest.timings]


def _timing(reports: Sequence[RoundReport], number: int, total: float) -> dict[str, float]:
    """Return a step's seconds by kind of work, and the sent bytes."""
    timings = [report.timings[number] for report in reports]
    compute = max(timing.total - timing.exchange - timing.data for timing in timings)
    data = max(timing.data for timing in timings)
    return {
        "total": total,
        "compute": compute,
        "data": data,
        "exchange": max(0.0, total - compute - data),
        "update": max(timing.update for timing in timings),
        "crossing": sum(timing.crossing for timing in timings),
        "within": sum(timing.within for timing in timings),
    }

"""The training loop: each worker group trains round after round; group 0 pauses to validate, test and checkpoint."""

from __future__ import annotations

import collections
import logging
import math
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

from dsinga.checkpoint import write_checkpoint
from dsinga.cluster import timetable
from dsinga.cluster.cluster_run import ClusterRun
from dsinga.cluster.grain import Grain
from dsinga.cluster.prepare import PreparedRun
from dsinga.cluster.supervision import TaskChain
from dsinga.errors import Diverged
from dsinga.job import Phase, to_text
from dsinga.training import Metrics, add_metrics, name_metrics
from dsinga.training.divergence import REMEDY, first_not_finite
from dsinga.worker.config import RoundReport
from dsinga.worker.param_slices import Arrays

_log = logging.getLogger(__name__)

Row = dict[str, Any]

# Rounds that are sent ahead, so that a partition finds its next round waiting when it ends one.
ROUNDS_AHEAD = 2
# Iterations whose timing is kept; all those of a long run would fill the memory of the driver.
TIMINGS_KEPT = 10_000


class Observer(Protocol):
    """Who is told how a run goes."""

    def begin(self, step: int) -> None:
        """Learn that everything has been checked and training is about to go on from ``step``."""

    def record(self, row: Row) -> None:
        """Take a row of the history: {"step", "phase": "train" | "val" | "test", "time", "loss", ...}."""

    def progress(self, row: Row) -> None:
        """Take the state of things after a round: {"step", "samples_per_second", "loss", ...}."""


class TrainingLoop:
    """A run from its first step to its last.

    Worker groups do not wait for each other. Group 0 is the one that is looked at: it validates, tests and writes
    checkpoints, of the params as its server group has them then, and ``step`` and the rows of training are its own. At
    the last step it does so when all groups have ended and all server groups agree.
    """

    def __init__(
        self,
        prepared: PreparedRun,
        run: ClusterRun,
        observer: Observer,
        workspace: Path | None,
        grain: Grain,
    ):
        self._prepared = prepared
        self._job = prepared.job
        self._cluster_run = run
        self._observer = observer
        self._workspace = workspace
        self._grain = grain
        everybody = prepared.topology.groups * prepared.topology.workers
        self._paces = [timetable.RoundLength(grain.most_steps, everybody) for _ in range(prepared.topology.groups)]
        self._speeds = [0.0] * prepared.topology.groups  # steps a second of those that are on their way
        self._since_display: list[Metrics] = []
        self._started = time.perf_counter()
        self._diverged = False
        self.step = 0
        self.timings: collections.deque[dict[str, float]] = collections.deque(maxlen=TIMINGS_KEPT)

    def run(self, begin: int) -> Arrays:
        """Train from step ``begin`` to the last one; return the params."""
        self.step, last = begin, self._job.train_steps
        if not begin:  # a resumed run has paused here before
            self._cluster_run.run_chains([self._pause()])
        together = timetable.all_begin(self._job, self._prepared.topology, begin)
        if begin < together:
            self._cluster_run.run_chains([self._lead(together)])
            self._cluster_run.join(together)
        if begin < last:
            others = [self._rounds(group, together, last) for group in range(1, self._prepared.topology.groups)]
            self._cluster_run.run_chains([self._lead(last), *others])
            self._cluster_run.synchronise()
            self._cluster_run.run_chains([self._pause()])
        return self._params(state=False)[0]

    def _lead(self, stop: int) -> TaskChain:
        """Train group 0 up to ``stop``, and pause on the way."""
        while self.step < stop:
            yield from self._rounds(0, self.step, min(stop, timetable.next_stop(self._job, self.step)))
            if self.step < self._job.train_steps:
                yield from self._pause()

    def _rounds(self, group: int, start: int, stop: int) -> TaskChain:
        """Train a group up to ``stop``, a round after the other."""
        pace = self._paces[group]
        flights: collections.deque[Any] = collections.deque()
        sent = start
        while sent < stop or flights:
            while sent < stop and len(flights) < ROUNDS_AHEAD:
                end = min(stop, sent + pace.steps)
                flights.append(self._grain.send_round(self._cluster_run, group, sent, end))
                sent = end
            reports = yield flights.popleft()
            for step in reports[0].skipped:
                _log.warning("the loss of group %d is not finite at step %d: the batch is left out", group, step)
            seconds = _seconds(reports)
            pace.learn(seconds)
            self._speeds[group] = len(seconds) / sum(seconds)
            if group == 0:
                self._landed(reports, seconds)
        if stop == self._job.train_steps:
            self._speeds[group] = 0.0
            self._cluster_run.leave(group)

    def _pause(self) -> TaskChain:
        """Validate, test, checkpoint, where due at the present step (SINGA's order)."""
        for phase, is_due, steps in (
            (Phase.kVal, timetable.validate_due, self._job.validate_steps),
            (Phase.kTest, timetable.test_due, self._job.test_steps),
        ):
            if is_due(self._job, self.step):
                by_partition = yield self._cluster_run.evaluate(phase, steps, self.step)
                self._record(phase, add_metrics([add_metrics(batch) for batch in zip(*by_partition, strict=True)]))
        if self._workspace and timetable.checkpoint_due(self._job, self.step):
            params, state = self._params()
            meta = {"job": to_text(self._job), "seed": self._job.seed, "topology": self._prepared.topology.describe()}
            write_checkpoint(self._workspace / "checkpoint", self.step, params, state, meta)

    def _params(self, state: bool = True) -> tuple[Arrays, dict[str, Arrays]]:
        """Return params, and updater's ``state``, as they stand; raise Diverged where a param is not finite."""
        params, slots = self._cluster_run.snapshot(self.step, state)
        lost = first_not_finite(params)
        if lost is not None:
            raise Diverged(f"param {lost!r} is not finite after {self.step} steps; {REMEDY}")
        return params, slots

    def _landed(self, reports: Sequence[RoundReport], seconds: Sequence[float]) -> None:
        """Take in a round of group 0: its metrics step by step, its timing."""
        for number, parts in enumerate(zip(*(report.metrics for report in reports), strict=True)):
            timings = [report.timings[number] for report in reports]
            own = max(timing.total - timing.exchange - timing.data for timing in timings)
            data, total = max(timing.data for timing in timings), seconds[number]
            self.timings.append(
                {
                    "total": total,
                    "compute": own,
                    "data": data,
                    "exchange": max(0.0, total - own - data),
                    "crossing": sum(timing.crossing for timing in timings),
                    "within": sum(timing.within for timing in timings),
                }
            )
            self.step += 1
            self._since_display.append(add_metrics(parts))
            if timetable.display_due(self._job, self.step):
                self._record(Phase.kTrain, add_metrics(self._since_display))
                self._since_display.clear()
        rows = self._prepared.config.readers[Phase.kTrain].batchsize
        latest_metrics = self._means(Phase.kTrain, add_metrics([part.metrics[-1] for part in reports]))
        self._observer.progress({"step": self.step, "samples_per_second": rows * sum(self._speeds), **latest_metrics})

    def _record(self, phase: Phase, metrics: Metrics) -> None:
        name = {Phase.kTrain: "train", Phase.kVal: "val", Phase.kTest: "test"}[phase]
        elapsed = round(time.perf_counter() - self._started, 3)
        means = self._means(phase, metrics)
        self._observer.record({"step": self.step, "phase": name, "time": elapsed, **means})
        if not self._diverged and not all(map(math.isfinite, means.values())):
            self._diverged = True
            _log.warning("the loss is no longer finite at step %d: %s", self.step, REMEDY)

    def _means(self, phase: Phase, metrics: Metrics) -> dict[str, float]:
        named = name_metrics(self._prepared.config.nets[phase].whole, metrics)
        return {name: total / count for name, (total, count) in named.items() if count}


def _seconds(reports: Sequence[RoundReport]) -> list[float]:
    """Return how long each step of a round took a group: its steps at the partition that took longest for them all.

    Not the longest of each step: who is served first begins the next step first, so the lengths of one step differ from
    partition to partition while those of many are the same.
    """
    slowest = max(reports, key=lambda report: sum(timing.total for timing in report.timings))
    return [timing.total for timing in slowest.timings]

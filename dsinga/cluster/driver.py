"""The driver of a training run: sends round after round, stops to validate, test and checkpoint."""

from __future__ import annotations

import collections
import logging
import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from distributed import Client

from dsinga.checkpoint import Checkpoint, latest, port, read_checkpoint, write_checkpoint
from dsinga.cluster import timetable
from dsinga.cluster.layout import Layout, lay_out
from dsinga.cluster.session import Arrays, Session, add_metrics
from dsinga.cluster.setup import RoundReport
from dsinga.errors import RunError, UserError
from dsinga.job import Job, Phase, to_text
from dsinga.net import NeuralNet
from dsinga.training import Metrics, initial_values, name_metrics

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


@dataclass
class Outcome:
    """What a run ends with: the params, the steps done, and the timings in seconds of the last iterations."""

    params: Arrays
    step: int
    net: NeuralNet
    batchsize: int
    timings: list[dict[str, float]]


def train(
    job: Job,
    client: Client,
    observer: Observer,
    *,
    workspace: Path | None = None,
    roots: Sequence[str] = (),
    resume: bool = False,
) -> Outcome:
    """Train ``job`` on the cluster of ``client`` from its first step, or from the last checkpoint if ``resume``.

    Raises UserError before training for bad input, RunError where a worker or server is lost on the way.
    """
    layout = lay_out(job, client, roots)
    begin = _resumed(layout, workspace) if resume else _fresh(job, layout, roots)
    observer.begin(begin.step)
    session = Session(client, layout.setup, layout.placement)
    course = _Course(layout, session, observer, workspace)
    try:
        session.start(layout.updater, begin.params, begin.state if resume else None, begin.step)
        params = course.run(begin)
    except RunError as error:
        session.close(str(error))
        raise RunError(f"{error}; {_way_on(workspace, course.step)}") from error
    except BaseException:
        session.close("the driver has ended the run")
        raise
    session.close()
    return Outcome(
        params, job.train_steps, layout.net, layout.setup.feeds[Phase.kTrain].batchsize, list(course.timings)
    )


def _fresh(job: Job, layout: Layout, roots: Sequence[str]) -> Checkpoint:
    values = initial_values(layout.net.params, job.seed)
    if job.checkpoint_path:
        values.update(port({name: array.shape for name, array in values.items()}, job.checkpoint_path, roots))
    return Checkpoint(0, values, {}, {})


def _resumed(layout: Layout, workspace: Path | None) -> Checkpoint:
    if workspace is None:
        raise UserError("resuming needs a workspace, the folder in which an earlier run has left checkpoints")
    path = latest(workspace / "checkpoint")
    if path is None:
        raise UserError(f"there is no checkpoint to resume from in {workspace}; train without --resume first")
    checkpoint = read_checkpoint(path)
    if checkpoint.step > layout.job.train_steps:
        wanted = layout.job.train_steps
        raise UserError(f"{path} is beyond the job's {wanted} train_steps; give train_steps: {checkpoint.step} or more")
    if checkpoint.meta["seed"] != layout.job.seed:
        raise UserError(
            f"{path} is of a run with seed: {checkpoint.meta['seed']}; resume with that seed, or start anew"
        )
    for name, param in layout.net.params.items():
        if name not in checkpoint.params or checkpoint.params[name].shape != param.shape:
            raise UserError(
                f"{path} does not fit the job: it has no param {name!r} of shape {param.shape}; resume with the job "
                "that wrote it, or name it as checkpoint_path to start anew from its params"
            )
    return checkpoint


def _way_on(workspace: Path | None, step: int) -> str:
    path = latest(workspace / "checkpoint") if workspace else None
    if path is None:
        return f"{step} steps were done and no checkpoint was written (set checkpoint_freq to have some)"
    return f"{step} steps were done; go on from {path} with --resume"


class _Course:
    """A run from its first step to its last."""

    def __init__(self, layout: Layout, session: Session, observer: Observer, workspace: Path | None):
        self._layout = layout
        self._job = layout.job
        self._session = session
        self._observer = observer
        self._workspace = workspace
        self._pace = timetable.Pace()
        self._since_display: list[Metrics] = []
        self._started = time.perf_counter()
        self._diverged = False
        self.step = 0
        self.timings: collections.deque[dict[str, float]] = collections.deque(maxlen=TIMINGS_KEPT)

    def run(self, begin: Checkpoint) -> Arrays:
        """Train from ``begin`` to the last step; return the params."""
        self.step = begin.step
        if not self.step:  # a resumed run has paused here before
            self._pause()
        while self.step < self._job.train_steps:
            self._advance(timetable.next_stop(self._job, self.step))
            self._pause()
        return self._session.snapshot(self.step)[0]

    def _pause(self) -> None:
        """Validate, test, checkpoint, where due at the present step (SINGA's order)."""
        for phase, is_due, steps in (
            (Phase.kVal, timetable.validate_due, self._job.validate_steps),
            (Phase.kTest, timetable.test_due, self._job.test_steps),
        ):
            if is_due(self._job, self.step):
                self._record(phase, self._session.evaluate(phase, steps, self.step))
        if self._workspace and timetable.checkpoint_due(self._job, self.step):
            params, state = self._session.snapshot(self.step)
            meta = {"job": to_text(self._job), "seed": self._job.seed, "topology": self._layout.topology.describe()}
            write_checkpoint(self._workspace / "checkpoint", self.step, params, state, meta)

    def _advance(self, stop: int) -> None:
        """Train up to ``stop``, a round after the other."""
        flights: collections.deque[Any] = collections.deque()
        sent = self.step
        while sent < stop or flights:
            while sent < stop and len(flights) < ROUNDS_AHEAD:
                end = min(stop, sent + self._pace.steps)
                flights.append(self._session.round(sent, end))
                sent = end
            self._landed(self._session.reports(flights.popleft()))

    def _landed(self, reports: Sequence[RoundReport]) -> None:
        """Take in a round: its metrics step by step, its timing."""
        seconds = []
        for number, parts in enumerate(zip(*(report.metrics for report in reports), strict=True)):
            timings = [report.timings[number] for report in reports]
            # The mean, not the largest: who is served first begins the next step first, so the lengths of one step
            # differ from partition to partition while those of many steps are the same.
            seconds.append(sum(timing.total for timing in timings) / len(timings))
            own = max(timing.total - timing.exchange - timing.data for timing in timings)
            data = max(timing.data for timing in timings)
            self.timings.append(
                {"total": seconds[-1], "compute": own, "data": data, "exchange": max(0.0, seconds[-1] - own - data)}
            )
            self.step += 1
            self._since_display.append(add_metrics(parts))
            if timetable.display_due(self._job, self.step):
                self._record(Phase.kTrain, add_metrics(self._since_display))
                self._since_display.clear()
        self._pace.learn(seconds)
        rows = self._layout.setup.feeds[Phase.kTrain].batchsize
        latest_metrics = self._means(Phase.kTrain, add_metrics([part.metrics[-1] for part in reports]))
        self._observer.progress(
            {"step": self.step, "samples_per_second": rows * len(seconds) / sum(seconds), **latest_metrics}
        )

    def _record(self, phase: Phase, metrics: Metrics) -> None:
        name = {Phase.kTrain: "train", Phase.kVal: "val", Phase.kTest: "test"}[phase]
        elapsed = round(time.perf_counter() - self._started, 3)
        means = self._means(phase, metrics)
        self._observer.record({"step": self.step, "phase": name, "time": elapsed, **means})
        if not self._diverged and not all(map(math.isfinite, means.values())):
            self._diverged = True
            _log.warning("the loss is no longer finite at step %d: lower the learning rate, or clip", self.step)

    def _means(self, phase: Phase, metrics: Metrics) -> dict[str, float]:
        named = name_metrics(self._layout.setup.nets[phase].whole, metrics)
        return {name: total / count for name, (total, count) in named.items() if count}

"""The training loop: worker groups train round after round; the first one pauses where an extension runs."""

from __future__ import annotations

import collections
import logging
import math
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from dsinga.cluster.events.run_events import RunEvents
from dsinga.cluster.placing.prepare import PreparedRun
from dsinga.cluster.run.checkpoints import Checkpoints
from dsinga.cluster.run.grain import Grain
from dsinga.cluster.run.group_rounds import ROUNDS_AHEAD, GroupRounds, StepReport
from dsinga.cluster.run.recovery import RecoverableRun
from dsinga.cluster.run.snapshots import RunSnapshot
from dsinga.cluster.run.training_view import TrainingView
from dsinga.cluster.run.worker_groups import WorkerGroups
from dsinga.errors import RunError, UserError
from dsinga.extensions import Extension, ExtensionRunner
from dsinga.job import Phase
from dsinga.loop.cancellation import CANCELLED, Cancellation
from dsinga.loop.loop_state import describe_way_on, read_rate_factors
from dsinga.monitor import Row
from dsinga.worker.param_slices import Arrays

_log = logging.getLogger(__name__)

# Steps whose timing is kept; all those of a long run would fill the memory of the driver.
TIMINGS_KEPT = 10_000


class Observer(Protocol):
    """Something that is told how a run goes."""

    def waiting(self, sentence: str) -> None:
        """Learn that the run waits for Dask workers which other runs hold: after a second, then every five minutes."""

    def begin(self, step: int) -> None:
        """Learn that everything has been checked and training is about to go on from ``step``."""

    def record(self, row: Row) -> None:
        """Take a row of the history: {"step", "phase": "train" | "val" | "test", "time", "loss", ...}."""

    def progress(self, row: Row) -> None:
        """Take the state of things after a round: {"step", "samples_per_second", "loss", ...}."""


class TrainingLoop:
    """A run from its first step to its last.

    Worker groups do not wait for each other. Extensions see group 0: it pauses at the steps that their triggers name,
    with the params as its server group has them then. At the end they run when all groups have ended and all server
    groups agree.

    Where Dask workers are lost, the run goes on from its last snapshot (:mod:`dsinga.cluster.run.recovery`); reports of
    steps that were seen already are dropped, so that extensions see each step once.
    """

    def __init__(
        self,
        prepared: PreparedRun,
        run: RecoverableRun,
        observer: Observer,
        workspace: Path | None,
        grain: Grain,
        extensions: Sequence[Extension],
        started: float,
        cancellation: Cancellation,
        saved: Callable[[], None] | None = None,
        check_workspace: Callable[[], None] | None = None,
    ):
        self._job = prepared.job
        self._prepared = prepared
        self._run = run
        self._observer = observer
        self._workspace = workspace
        self._grain = grain
        self._cancellation = cancellation
        folder = workspace / "checkpoint" if workspace else None
        self._checkpoints = Checkpoints(prepared, folder, saved, check_workspace) if folder else None
        self._events = RunEvents(prepared, run.client, lambda method: run.cluster_run.ask_servers(method))
        self.view = TrainingView(prepared, run, self._show_row, workspace, started)
        self._extensions = ExtensionRunner(extensions, self.view)
        self._groups: WorkerGroups | None = None  # from the beginning of training on
        self._in_training = False
        self._unseen: collections.deque[StepReport] = collections.deque()  # of the last round that was read
        self._pause_seconds = self._checkpoint_seconds = 0.0  # of the longest pause, and of the last checkpoint
        self.unsaved = ""  # why the last checkpoint could not be written
        self.timings: collections.deque[dict[str, float]] = collections.deque(maxlen=TIMINGS_KEPT)

    def run(self, begin: int, state: Mapping[str, Any]) -> Arrays:
        """Train from step ``begin`` to the last one, or until an extension stops; return the params.

        ``state`` is that of the loop in the checkpoint from which the run goes on, empty for a new run.
        """
        failure: BaseException | None = None
        self._events.begin(begin)
        try:
            return self._run_to_end(begin, state)
        except BaseException as error:
            failure = error
            raise
        finally:
            self._events.end(self.view.step, self.view.stopped, failure)
            self._extensions.close(failure)
            del failure  # its traceback refers to this frame

    def _run_to_end(self, begin: int, state: Mapping[str, Any]) -> Arrays:
        self.view.step = begin
        self.view.rate_factors = read_rate_factors(state)
        self.view.metrics = {**state.get("metrics", {})}
        try:
            self._extensions.start(state.get("extensions", {}))
            if not begin:  # a resumed run has paused here before
                self._pause()
            if begin < self._job.train_steps and not (begin and self.view.stopped):
                self._train(begin)
            self._extensions.finish()
        except Exception as error:
            self._end_by_failure(error)
            raise
        return self.view.returned_params or self.view.snapshot(state=False)[0]

    def _train(self, begin: int) -> None:
        """Train all worker groups; extensions pause group 0."""
        self._in_training = True
        self._cancellation.ends_in_order = self._workspace is not None  # where a checkpoint can be written
        self._groups = WorkerGroups(
            self._prepared, self._run, self._grain, self.view, self._events, self._show_restarts, begin
        )
        self._train_first_group(self._groups)
        self._run.do(self._groups.finish)
        if self._prepared.topology.groups > 1:
            self._extensions.forget_runs()  # the params are those of all groups now
        self._pause(last=True)
        self._in_training = self._cancellation.ends_in_order = False

    def _train_first_group(self, groups: WorkerGroups) -> None:
        """Train group 0 to its last step, unless it is stopped before, and pause on the way."""
        last = self._job.train_steps
        while self.view.step < last and not self.view.stopped:
            self._train_until_pause(groups, min(self._extensions.next_pause(self.view.step) or last, last))
            if self.view.step < last:
                self._pause()

    def _train_until_pause(self, groups: WorkerGroups, stop: int) -> None:
        """Train group 0 up to ``stop``, or to the end of its rounds in flight if an extension wants that."""
        while groups.send(stop):
            if self.view.step < stop:
                self._run.snapshots.add_loop(self.view.step, self._state)
            self._read_round(groups)
            if self.view.step < stop:
                self._move(groups)
            if self.view.stopped or self._extensions.wants_pause():
                stop = max(groups.first.sent, self.view.step)

    def _move(self, groups: WorkerGroups) -> None:
        """Move to other Dask workers at the end of the rounds in flight, where that is due."""
        rounds = groups.first
        seconds_left = (self._job.train_steps - self.view.step) / (rounds.speed or math.inf)
        reason = self._run.wants_to_move(seconds_left)
        if not reason:
            return
        while groups.send(0):
            self._read_round(groups)
        if rounds is groups.first:  # else the run was started again meanwhile
            self._run.move(reason, self.view.step, self._state())
            self._show_restarts(0.0, 0)

    def _read_round(self, groups: WorkerGroups) -> None:
        """Wait for a round of group 0, and show its steps to the extensions."""
        by_worker, reports = groups.read()
        if self._cancellation.event.is_set():
            self.view.stop(CANCELLED, resumable=True)
        if not reports:
            return
        self._show_restarts(sum(report.timing["total"] for report in reports[1:]), 0)
        self._unseen.extend(reports)
        self.view.seconds_to_stop = self._estimate_seconds_to_stop(groups.first)
        batchsize = self._prepared.config.readers[Phase.kTrain].batchsize
        self.view.samples_per_second = batchsize * groups.speed
        self._show_steps()
        self._show_progress(reports[-1])
        self._events.round(0, by_worker)

    def _show_restarts(self, since: float, group: int) -> None:
        """Show the restarts that have brought a group, ``since`` seconds ago, beyond the step where it stood."""
        for restart in [restart for restart in self._run.restarts if (restart.group or 0) == group]:
            self._run.restarts.remove(restart)
            seconds = time.perf_counter() - since - restart.noticed_at
            row = self.view.recovery_row(restart, seconds)
            _log.warning(
                "%s; started again from step %d, computed %d steps again: %.1f s until the next new step",
                restart.lost, restart.step, row["steps_again"], seconds,
            )  # fmt: skip
            with self.view.running_on_cluster():
                self._observer.record(row)

    def _show_steps(self) -> None:
        while self._unseen:
            report = self._unseen.popleft()
            self.timings.append(report.timing)
            self.view.step += 1
            self._extensions.observe(report.metrics)

    def _estimate_seconds_to_stop(self, rounds: GroupRounds) -> float:
        """Return how long it would take to end in order after one more round."""
        coming = ROUNDS_AHEAD + 1
        seconds = coming * rounds.length.seconds + self._checkpoint_seconds
        next_pause = self._extensions.next_pause(self.view.step)
        pauses_before = next_pause is not None and next_pause <= rounds.sent + coming * rounds.length.steps
        return seconds + (self._pause_seconds if pauses_before else 0.0)

    def _show_progress(self, report: StepReport) -> None:
        metrics = self.view.means("train", report.metrics)
        row = {**self.view.position, "samples_per_second": self.view.samples_per_second, **metrics}
        self._events.progress(row)
        with self.view.running_on_cluster():
            self._observer.progress(row)

    def _show_row(self, row: Row) -> None:
        self._events.record(row)
        with self.view.running_on_cluster():
            self._observer.record(row)
        self._extensions.show_row(row)

    def _pause(self, last: bool = False) -> None:
        """Run the extensions that are due while group 0 stands still, then write the checkpoint that one has asked for.

        If an extension has stopped training, the checkpoint is written at the last pause.
        """
        view, started = self.view, time.perf_counter()
        view.paused = True
        is_complete = last and (view.step == view.train_steps or not view.resumable)
        self._extensions.pause(at_end=is_complete)
        if last or not view.stopped:
            if view.checkpoint_wanted or (last and not is_complete):
                self._write_checkpoint()
            view.checkpoint_wanted = False
        view.paused = False
        self._pause_seconds = max(self._pause_seconds, time.perf_counter() - started)

    def _write_checkpoint(self) -> None:
        if self._checkpoints is None:
            return
        started = time.perf_counter()
        params, slots = self.view.snapshot(state=True)
        snapshot = RunSnapshot(self.view.step, params, slots, self._state())
        with self.view.running_on_cluster():
            try:
                self._checkpoints.write(snapshot)
                self.unsaved = ""
            except RunError as error:  # a full disk does not end a run of many hours: the next write may succeed
                _log.warning("%s; training goes on", error)
                self.unsaved = str(error)
        self._run.keep(snapshot)
        self._checkpoint_seconds = time.perf_counter() - started

    def _state(self) -> dict[str, Any]:
        """Return the state of the loop for a checkpoint."""
        factors = {str(step): factor for step, factor in self.view.rate_factors.items()}
        return {"extensions": self._extensions.states(), "rate_factors": factors, "metrics": dict(self.view.metrics)}

    def save_snapshot(self) -> None:
        """Write the newest snapshot as a checkpoint, if there is none of its step: the run cannot go on."""
        if self._checkpoints is not None:
            self._checkpoints.write_newer(self._run.snapshots.newest)

    def _end_by_failure(self, error: Exception) -> None:
        """If an extension raised ``error``, write a checkpoint and add the step and its path to the error.

        A UserError is raised again, with step and checkpoint in its message; other errors get a note.
        """
        failed = self._extensions.failing
        if failed is None or error is self.view.cluster_error:
            return
        where = f"extension {failed.name} failed at step {self.view.step}"
        self._extensions.drop(failed)
        try:
            self._save_what_is_done()
        except Exception as second:
            error.add_note(f"no checkpoint could be written: {second!r}")
        where = f"{where}; {describe_way_on(self._workspace, self.view.step)}"
        if isinstance(error, UserError):
            raise UserError(f"{error} ({where})") from error
        error.add_note(where)

    def _save_what_is_done(self) -> None:
        """Read the rounds in flight and write a checkpoint, so that a run can resume from this step."""
        if self._workspace is None or self._groups is None or not self._in_training:
            return
        self.view.stop("an extension failed", resumable=True)
        self._show_steps()
        while self._groups.send(0):
            self._read_round(self._groups)
        self._pause(last=True)

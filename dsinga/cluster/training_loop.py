"""The training loop: worker groups train round after round; the first one pauses where an extension runs."""

from __future__ import annotations

import collections
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from dsinga.advice import how_to_resume, job_field
from dsinga.checkpoint import latest, remove_old_checkpoints, write_checkpoint
from dsinga.cluster.cancellation import CANCELLED, Cancellation
from dsinga.cluster.cluster_run import ClusterRun
from dsinga.cluster.events.run_events import RunEvents
from dsinga.cluster.grain import Grain
from dsinga.cluster.group_rounds import ROUNDS_AHEAD, GroupRounds, StepReport
from dsinga.cluster.prepare import PreparedRun
from dsinga.cluster.supervision import TaskChain
from dsinga.cluster.training_view import TrainingView
from dsinga.errors import RunError, UserError
from dsinga.extensions import Extension, ExtensionRunner
from dsinga.extensions.best_value import BAD_STATE, checked_number
from dsinga.job import Phase, redact_job, to_text
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
    """

    def __init__(
        self,
        prepared: PreparedRun,
        run: ClusterRun,
        observer: Observer,
        workspace: Path | None,
        grain: Grain,
        extensions: Sequence[Extension],
        started: float,
        cancellation: Cancellation,
        saved: Callable[[], None] | None = None,
    ):
        self._job = prepared.job
        self._prepared = prepared
        self._cluster_run = run
        self._observer = observer
        self._workspace = workspace
        self._grain = grain
        self._cancellation = cancellation
        self._saved = saved
        self._events = RunEvents(prepared, run)
        self.view = TrainingView(prepared, run, self._show_row, workspace, started)
        self._extensions = ExtensionRunner(extensions, self.view)
        self._groups: list[GroupRounds] = []
        self._unseen: collections.deque[StepReport] = collections.deque()  # of the last round that was read
        self._in_training = False
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
        """Train all worker groups; group 0 trains alone during the warm-up."""
        self._in_training = True
        self._cancellation.ends_in_order = self._workspace is not None  # where a checkpoint can be written
        topology, last = self._prepared.topology, self._job.train_steps
        together = topology.common_start(begin, last)
        self._groups = [
            GroupRounds(self._cluster_run, self._grain, group, together if group else begin)
            for group in range(topology.groups)
        ]
        if begin < together:
            self._train_first_group(together)
            self._cluster_run.join(self.view.step)
        for rounds in self._groups[1:]:
            self._cluster_run.chains.add(self._train_other_group(rounds))
        self._train_first_group(last)
        self._cluster_run.leave(0)
        self._cluster_run.chains.finish()
        self._cluster_run.synchronise()
        if topology.groups > 1:
            self._extensions.forget_runs()  # the params are those of all groups now
        self._pause(last=True)
        self._in_training = self._cancellation.ends_in_order = False

    def _train_first_group(self, stop: int) -> None:
        """Train group 0 up to ``stop``, unless it is stopped before, and pause on the way."""
        while self.view.step < stop and not self.view.stopped:
            self._train_until_pause(min(self._extensions.next_pause(self.view.step) or stop, stop))
            if self.view.step < self._job.train_steps:
                self._pause()

    def _train_until_pause(self, stop: int) -> None:
        """Train group 0 up to ``stop``, or to the end of its rounds in flight if an extension wants that."""
        rounds = self._groups[0]
        while rounds.send(stop):
            self._read_round(rounds)
            if self.view.stopped or self._extensions.wants_pause():
                stop = rounds.sent

    def _train_other_group(self, rounds: GroupRounds) -> TaskChain:
        """Train a group that no extension sees, until training ends."""
        while rounds.send(rounds.sent if self.view.stopped else self._job.train_steps):
            reports = yield rounds.next_futures()
            rounds.read(reports)
            self._events.round(rounds.group, reports)
        rounds.speed = 0.0
        self._cluster_run.leave(rounds.group)

    def _read_round(self, rounds: GroupRounds) -> None:
        """Wait for a round of group 0, and show its steps to the extensions."""
        by_worker = self._cluster_run.chains.wait(rounds.next_futures())
        reports = rounds.read(by_worker)
        self._unseen.extend(reports)
        self.view.seconds_to_stop = self._estimate_seconds_to_stop(rounds)
        batchsize = self._prepared.config.readers[Phase.kTrain].batchsize
        self.view.samples_per_second = batchsize * sum(rounds.speed for rounds in self._groups)
        self._show_steps()
        self._show_progress(reports[-1])
        self._events.round(rounds.group, by_worker)
        if self._cancellation.event.is_set():
            self.view.stop(CANCELLED, resumable=True)

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
        if self._workspace is None:
            return
        started = time.perf_counter()
        params, slots = self.view.snapshot(state=True)
        meta = {
            "job": to_text(redact_job(self._job)),
            "seed": self._job.seed,
            "topology": self._prepared.topology.describe(),
        }
        factors = {str(step): factor for step, factor in self.view.rate_factors.items()}
        loop = {"extensions": self._extensions.states(), "rate_factors": factors, "metrics": self.view.metrics}
        with self.view.running_on_cluster():
            folder = self._workspace / "checkpoint"
            try:
                write_checkpoint(folder, self.view.step, params, slots, meta, loop)
                remove_old_checkpoints(folder, self._job.checkpoint_keep)
                if self._saved is not None:
                    self._saved()
                self.unsaved = ""
            except RunError as error:  # a full disk does not end a run of many hours: the next write may succeed
                _log.warning("%s; training goes on", error)
                self.unsaved = str(error)
        self._checkpoint_seconds = time.perf_counter() - started

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
        if self._workspace is None or not self._in_training:
            return
        self.view.stop("an extension failed", resumable=True)
        self._show_steps()
        while self._groups[0].send(0):
            self._read_round(self._groups[0])
        self._pause(last=True)


def read_rate_factors(state: Mapping[str, Any]) -> dict[int, float]:
    """Return the factors of the learning rate, by the step from which each applies, from the state of a loop."""
    return {int(step): factor for step, factor in state.get("rate_factors", {}).items()}


def check_loop_state(path: Path, state: Mapping[str, Any]) -> None:
    """Raise UserError unless ``state``, of the checkpoint ``path``, has the types of a training loop's state.

    Checkpoints of format 1 have no checksum by which a change of it would have been noticed.
    """
    try:
        for value in [*read_rate_factors(state).values(), *state.get("metrics", {}).values()]:
            checked_number(value)
        for name, parts in state.get("extensions", {}).items():
            if any(not isinstance(parts.get(part, {}), dict) for part in ("extension", "trigger")):
                raise TypeError(f"the state of the extension {name[:40]} is not an object")
    except BAD_STATE as error:
        raise UserError(
            f"{path / 'checkpoint.json'} is damaged: its loop has {type(error).__name__}: {str(error)[:200]}; "
            "resume from an earlier checkpoint"
        ) from None


def describe_way_on(workspace: Path | None, step: int) -> str:
    """Return a text that says how to resume a run that has ended after ``step`` steps."""
    path = latest(workspace / "checkpoint") if workspace else None
    if path is None:
        some = job_field("checkpoint_freq", "100")
        return f"{step} steps were done and no checkpoint was written; have some with {some}"
    return f"{step} steps were done; go on from {path} with {how_to_resume()}"

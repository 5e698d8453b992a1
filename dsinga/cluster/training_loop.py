"""The training loop: worker groups train round after round; the first one pauses where an extension runs."""

from __future__ import annotations

import collections
import logging
import math
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from dsinga.checkpoint import latest_step, remove_old_checkpoints, write_checkpoint
from dsinga.cluster.cancellation import CANCELLED, Cancellation
from dsinga.cluster.cluster_run import ClusterRun
from dsinga.cluster.events.run_events import RunEvents
from dsinga.cluster.grain import Grain
from dsinga.cluster.group_rounds import ROUNDS_AHEAD, GroupRounds, StepReport
from dsinga.cluster.loop_state import describe_way_on, read_rate_factors
from dsinga.cluster.prepare import PreparedRun
from dsinga.cluster.recovery import RecoverableRun
from dsinga.cluster.snapshots import RunSnapshot
from dsinga.cluster.supervision import TaskChain
from dsinga.cluster.training_view import TrainingView
from dsinga.errors import RunError, UserError, WorkerLost
from dsinga.extensions import Extension, ExtensionRunner
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

    Where Dask workers are lost, the run goes on from its last snapshot (:mod:`dsinga.cluster.recovery`); reports of
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
    ):
        self._job = prepared.job
        self._prepared = prepared
        self._run = run
        self._observer = observer
        self._workspace = workspace
        self._grain = grain
        self._cancellation = cancellation
        self._saved = saved
        self._events = RunEvents(prepared, run)
        self.view = TrainingView(prepared, run, self._show_row, workspace, started)
        self._extensions = ExtensionRunner(extensions, self.view)
        self._groups: list[GroupRounds] = []
        self._warms_up = False  # whether group 0 trains alone
        self._together = 0  # the step at which all groups train
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
        self._together = self._prepared.topology.common_start(begin, self._job.train_steps)
        self._run.connect(self._restart, self._catch_up, self._steps_read, self._go_on, self._restart_groups)
        self._restart(begin)
        self._train_first_group()
        self._run.do(self._finish_groups)
        if self._prepared.topology.groups > 1:
            self._extensions.forget_runs()  # the params are those of all groups now
        self._pause(last=True)
        self._in_training = self._cancellation.ends_in_order = False

    def _restart(self, step: int) -> None:
        """Begin the rounds of all groups at ``step``, at which a generation of the run has started."""
        run, lengths = self._run.run, [rounds.length for rounds in self._groups]
        self._groups = [
            GroupRounds(run, self._grain, group, max(step, self._together) if group else step)
            for group in range(self._prepared.topology.groups)
        ]
        for rounds, length in zip(self._groups, lengths, strict=False):
            rounds.length = length
        self._warms_up = step < self._together
        if not self._warms_up:
            self._start_other_groups()

    def _steps_read(self) -> list[int] | None:
        """Return the step up to which reports of each group were read; None while not all of them train."""
        return None if self._warms_up else [rounds.read_to for rounds in self._groups]

    def _go_on(self, restarting: Collection[int]) -> None:
        """Let the groups that are not ``restarting`` go on with their rounds in flight."""
        for rounds in self._groups[1:]:
            if rounds.group not in restarting:
                self._run.run.chains.add(self._train_other_group(rounds))

    def _restart_groups(self, steps: Mapping[int, int]) -> None:
        """Begin the rounds of some groups at the steps from which they have started again."""
        for group, step in steps.items():
            rounds = GroupRounds(self._run.run, self._grain, group, step)
            rounds.length, self._groups[group] = self._groups[group].length, rounds
            if group:
                self._run.run.chains.add(self._train_other_group(rounds))

    def _start_other_groups(self) -> None:
        self._go_on(())

    def _finish_groups(self, run: ClusterRun) -> None:
        """Let the other groups end, when group 0 has ended, and let all server groups agree."""
        if self._warms_up:  # group 0 was stopped before the others began
            self._join(run)
        run.leave(0)
        run.chains.finish()
        run.synchronise()

    def _join(self, run: ClusterRun) -> None:
        """End the warm-up."""
        run.join(self.view.step)
        self._warms_up = False
        self._start_other_groups()

    def _train_first_group(self) -> None:
        """Train group 0 to its last step, unless it is stopped before, and pause on the way."""
        last = self._job.train_steps
        while self.view.step < last and not self.view.stopped:
            self._train_until_pause(min(self._extensions.next_pause(self.view.step) or last, last))
            if self.view.step < last:
                self._pause()

    def _train_until_pause(self, stop: int) -> None:
        """Train group 0 up to ``stop``, or to the end of its rounds in flight if an extension wants that."""
        while self._send(stop):
            if self.view.step < stop:
                self._run.snapshots.add_loop(self.view.step, self._state)
            self._read_round()
            if self.view.step < stop:
                self._move()
            if self.view.stopped or self._extensions.wants_pause():
                stop = max(self._groups[0].sent, self.view.step)

    def _move(self) -> None:
        """Move to other Dask workers at the end of the rounds in flight, where that is due."""
        rounds = self._groups[0]
        seconds_left = (self._job.train_steps - self.view.step) / (rounds.speed or math.inf)
        reason = self._run.wants_to_move(seconds_left)
        if not reason:
            return
        while self._send(0):
            self._read_round()
        if rounds is self._groups[0]:  # else the run was started again meanwhile
            self._run.move(reason, self.view.step, self._state())
            self._show_restarts(0.0)

    def _catch_up(self) -> None:
        """Train group 0, which was started again, to the step at which it had stood."""
        while self._send(self.view.step):
            self._read_round()
        self._show_restarts(0.0)

    def _send(self, stop: int) -> bool:
        """Send rounds of group 0, none beyond ``stop``; return whether reports of any are still to come."""
        while True:
            try:
                rounds, run = self._groups[0], self._run.run
                if self._warms_up and rounds.read_to >= self._together:
                    self._join(run)
                if rounds.sent < stop and self._in_training:
                    exact = self._prepared.topology.groups == 1
                    self._run.snapshots.request(run, rounds.sent if exact else rounds.read_to)
                return rounds.send(min(stop, self._together) if self._warms_up else stop)
            except WorkerLost as loss:
                self._run.recover(loss)

    def _train_other_group(self, rounds: GroupRounds) -> TaskChain:
        """Train a group that no extension sees, until training ends."""
        while rounds.send(rounds.sent if self.view.stopped else self._job.train_steps):
            reports = yield rounds.oldest
            seconds = sum(report.timing["total"] for report in rounds.read(reports)[1:])
            self._show_restarts(seconds, rounds.group)
            self._events.round(rounds.group, reports)
        rounds.speed = 0.0
        self._show_restarts(0.0, rounds.group)
        self._run.run.leave(rounds.group)

    def _read_round(self) -> None:
        """Wait for a round of group 0, and show its steps to the extensions, except those that they have seen.

        Where Dask workers are lost, the run starts again instead.
        """
        rounds = self._groups[0]
        try:
            by_worker = self._run.run.chains.wait(rounds.oldest)
        except WorkerLost as loss:
            self._run.recover(loss)
            return
        seen = self.view.step + len(self._unseen) - rounds.read_to
        reports = rounds.read(by_worker)
        self._run.snapshots.reach(rounds.read_to)
        self._run.collect_snapshot()
        if self._cancellation.event.is_set():
            self.view.stop(CANCELLED, resumable=True)
        reports = reports[max(0, seen) :]
        if not reports:
            return
        self._show_restarts(sum(report.timing["total"] for report in reports[1:]))
        self._unseen.extend(reports)
        self.view.seconds_to_stop = self._estimate_seconds_to_stop(rounds)
        batchsize = self._prepared.config.readers[Phase.kTrain].batchsize
        self.view.samples_per_second = batchsize * sum(rounds.speed for rounds in self._groups)
        self._show_steps()
        self._show_progress(reports[-1])
        self._events.round(rounds.group, by_worker)

    def _show_restarts(self, since: float, group: int = 0) -> None:
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
        if self._workspace is None:
            return
        started = time.perf_counter()
        params, slots = self.view.snapshot(state=True)
        snapshot = RunSnapshot(self.view.step, params, slots, self._state())
        with self.view.running_on_cluster():
            try:
                self._write(snapshot)
                self.unsaved = ""
            except RunError as error:  # a full disk does not end a run of many hours: the next write may succeed
                _log.warning("%s; training goes on", error)
                self.unsaved = str(error)
        self._run.snapshots.replace(snapshot)
        self._checkpoint_seconds = time.perf_counter() - started

    def _state(self) -> dict[str, Any]:
        """Return the state of the loop for a checkpoint."""
        factors = {str(step): factor for step, factor in self.view.rate_factors.items()}
        return {"extensions": self._extensions.states(), "rate_factors": factors, "metrics": dict(self.view.metrics)}

    def _write(self, snapshot: RunSnapshot) -> None:
        """Write a snapshot to the workspace as a checkpoint."""
        assert self._workspace is not None
        meta = {
            "job": to_text(redact_job(self._job)),
            "seed": self._job.seed,
            "topology": self._prepared.topology.describe(),
        }
        folder = self._workspace / "checkpoint"
        params, state = snapshot.params, dict(snapshot.state or {})
        write_checkpoint(folder, snapshot.step, params, state, meta, dict(snapshot.loop or {}))
        remove_old_checkpoints(folder, self._job.checkpoint_keep)
        if self._saved is not None:
            self._saved()

    def save_snapshot(self) -> None:
        """Write the newest snapshot as a checkpoint, if there is none of its step: the run cannot go on."""
        newest = self._run.snapshots.newest
        if self._workspace is None or newest.loop is None or newest.state is None:
            return
        if latest_step(self._workspace / "checkpoint") < newest.step:
            self._write(newest)

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
        while self._send(0):
            self._read_round()
        self._pause(last=True)

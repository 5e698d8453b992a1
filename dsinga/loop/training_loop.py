"""Defines TrainingLoop, which runs rounds of steps and pauses for extensions (callbacks)."""

from __future__ import annotations

import collections
import contextlib
import logging
import math
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from dsinga.base.arrays import ParamArrays, first_not_finite
from dsinga.base.errors import Diverged, RunError, UserError
from dsinga.engine.engine import Engine, Restart, Snapshot, StepReport
from dsinga.extensions import Extension, ExtensionRunner
from dsinga.extensions.extension import RescuedParams
from dsinga.job import Phase
from dsinga.loop.cancellation import CANCELLED, Cancellation
from dsinga.loop.checkpoints import Checkpoints, read_rate_factors, records_state, resume_hint
from dsinga.loop.view import Observer, ObserverWatcher, TrainingView
from dsinga.monitor import Row
from dsinga.training import Metrics, create_updater

_log = logging.getLogger(__name__)

# Steps whose timing is kept; all those of a long run would fill the memory of the driver.
TIMINGS_KEPT = 10_000


class TrainingLoop:
    """Trains to the last step: lets an engine compute steps, and runs extensions between them.

    Extensions see worker group 0. Each step is seen once, even if the engine computes it again.

    Args:
        checkpoints: writes checkpoints; None for a run without a workspace.
        cancellation: the request to end the run.
        started: when training was requested, by the clock.
    """

    def __init__(
        self,
        engine: Engine,
        observer: Observer,
        extensions: Sequence[Extension],
        workspace: Path | None,
        checkpoints: Checkpoints | None,
        cancellation: Cancellation,
        started: float,
        clock: Callable[[], float] = time.perf_counter,
    ):
        self._engine, self._observer = engine, observer
        self._job = engine.job
        self._workspace, self._checkpoints = workspace, checkpoints
        self._cancellation, self._clock = cancellation, clock
        self.view = TrainingView(engine, self._show_row, workspace, started, clock)
        self._extensions = ExtensionRunner([ObserverWatcher(observer), *extensions], self.view)
        self.kept = next((extension for extension in extensions if isinstance(extension, RescuedParams)), None)
        self._in_training, self._begin = False, 0
        self._unseen: collections.deque[StepReport] = collections.deque()  # of the last round that was read
        self._pause_seconds = self._checkpoint_seconds = 0.0  # of the longest pause, and of the last checkpoint
        self._newest: Snapshot | None = None  # when training failed
        self.unsaved = ""  # why the last checkpoint could not be written
        self.timings: collections.deque[Mapping[str, float]] = collections.deque(maxlen=TIMINGS_KEPT)

    @property
    def step(self) -> int:
        """How many steps the loop has seen."""
        return self.view.step

    @property
    def stopped(self) -> str:
        """Why training ends early, else ""."""
        return self.view.stopped

    @property
    def resumable(self) -> bool:
        """Whether training has stopped so that the run can resume here."""
        return self.view.resumable and self.view.step < self.view.train_steps

    def run(self, begin: int, state: Mapping[str, Any]) -> ParamArrays:
        """Train from step ``begin`` to the last, or until an extension stops it; return the params."""
        failure: BaseException | None = None
        try:
            self._run_to_end(begin, state)
            return self._end_params()
        except BaseException as error:
            failure = error
            self._rescue(error)
            raise
        finally:
            self._extensions.close(failure)
            del failure  # its traceback refers to this frame

    def _run_to_end(self, begin: int, state: Mapping[str, Any]) -> None:
        self.view.step = self._begin = begin
        self.view.rate_factors = read_rate_factors(state)
        self.view.metrics = {**state.get("metrics", {})}
        try:
            self.view.paused = True
            self._extensions.start(state.get("extensions", {}))
            self.view.paused = False
            self._pause(runs=not begin)  # at the beginning of a resumed run they have run before
            if begin < self._job.train_steps and not (begin and self.view.stopped):
                self._train()
            self.view.paused = self.view.has_ended = True
            self._extensions.finish()
        except Exception as error:
            self._end_by_failure(error)
            if isinstance(error, RunError) and self._checkpoints is not None:
                self._newest = self._engine.newest  # the extensions, whose state it has, are closed next
            raise

    def _keep(self, kept: RescuedParams, end: Snapshot) -> None:
        net, view = self._engine.nets[Phase.kTrain], self.view
        kept.keep(end.step, end.params, end.state or {}, net, view.returned_params, view.remarks[-1:])

    def _rescue(self, error: BaseException) -> None:
        kept, end = self.kept, None
        if kept is None or kept.params is not None or isinstance(error, Diverged):
            return
        waits = isinstance(error, KeyboardInterrupt) and not self._cancellation.event.is_set()
        for waits_now in (True, False) if waits else (False,):  # a further interrupt ends the wait
            with contextlib.suppress(Exception, KeyboardInterrupt):  # it must not hide why the run has ended
                end = self._engine.rescue(waits_now)
                break
        if end is not None and end.step > self._begin and not first_not_finite(end.params):
            self._extensions.return_params()
            self._keep(kept, end)

    def resume_hint(self) -> str:
        """Advise how to resume the ended run."""
        kept = self.kept
        if kept is None or not kept.hint:
            return resume_hint(self._workspace, self.step)
        return resume_hint(self._workspace, kept.step, kept.hint)

    def _end_params(self) -> ParamArrays:
        view, kept = self.view, self.kept
        has_state = kept is not None and create_updater(self._job.updater).has_state
        state = view.returned_state or (view.last_state() if has_state else {})
        params = view.returned_params or view.last_params()
        if kept is not None:
            self._keep(kept, Snapshot(view.step, params, state))
        return params

    def _train(self) -> None:
        self._in_training = True
        self._cancellation.ends_in_order = self._workspace is not None or self.kept is not None
        if self.kept is not None and self._workspace is None:
            self._cancellation.ending = self.kept.sentence
        last = self._job.train_steps
        self._engine.start(self.view.step, self)
        while self.view.step < last and not self.view.stopped:
            self._train_until_pause(min(self._extensions.next_pause(self.view.step) or last, last))
            if self.view.step < last:
                self._pause()
        self._engine.finish()
        if self._engine.groups > 1:
            self._extensions.forget_runs()  # the params are those of all groups now
        self._pause(last=True)
        self._in_training = self._cancellation.ends_in_order = False

    def _train_until_pause(self, stop: int) -> None:
        """Train up to step ``stop``, or until an extension needs a pause."""
        while self._engine.step < stop:
            self._read_round(stop)
            if self.view.stopped or self._extensions.wants_pause():
                stop = max(self._engine.sent, self.view.step)

    def _read_round(self, stop: int) -> None:
        reports = self._engine.train(stop)
        if self._cancellation.event.is_set():
            self.view.stop(CANCELLED, resumable=True)
        if not reports:
            return
        self._unseen.extend(reports)
        self.view.seconds_to_stop = self._estimate_seconds_to_stop()
        self.view.samples_per_second = self._engine.samples_per_second
        self._show_steps(stop)
        metrics = self.view.means("train", reports[-1].metrics)
        self._extensions.show_progress(
            {**self.view.position, "samples_per_second": self.view.samples_per_second, **metrics}
        )

    def show_restart(self, restart: Restart, seconds: float) -> None:
        """Add a restart to the history; it took ``seconds`` until the run had caught up."""
        row = self.view.recovery_row(restart, seconds)
        _log.warning(
            "%s; started again from step %d, computed %d steps again: %.1f s until the next new step",
            restart.lost, restart.step, row["steps_again"], seconds,
        )  # fmt: skip
        with self.view.running():
            self._observer.record(row)

    def _show_steps(self, stop: int | None = None) -> None:
        """Show newly trained steps to the extensions, up to ``stop``."""
        while self._unseen:
            look = self._extensions.next_look(self.view.step) or math.inf
            steps: list[Metrics] = []
            while self._unseen and self.view.step < look:
                report = self._unseen.popleft()
                self.timings.append(report.timing)
                self.view.step += report.steps
                steps.append(report.metrics)
            self.view.paused = self.view.step == stop
            self._extensions.observe(steps)
        self.view.paused = False

    def _estimate_seconds_to_stop(self) -> float:
        reached, seconds = self._engine.reach()
        next_pause = self._extensions.next_pause(self.view.step)
        pauses_before = next_pause is not None and next_pause <= reached
        return seconds + self._checkpoint_seconds + (self._pause_seconds if pauses_before else 0.0)

    def _show_row(self, row: Row) -> None:
        self._extensions.show_row(row)

    def _pause(self, last: bool = False, runs: bool = True) -> None:
        """Run the due extensions while training is paused, then write a requested checkpoint."""
        view, started = self.view, self._clock()
        view.paused = True
        is_complete = last and (view.step >= view.train_steps or not view.resumable)
        if runs:
            self._extensions.pause(at_end=is_complete)
        if last or not view.stopped:
            if view.checkpoint_wanted or (last and not is_complete):
                self._write_checkpoint()
            view.checkpoint_wanted = False
        if not last and not view.stopped and view.step < view.train_steps:
            self._extensions.go_on()
        view.paused = False
        self._pause_seconds = max(self._pause_seconds, self._clock() - started)

    def _write_checkpoint(self) -> None:
        if self._checkpoints is None:
            return
        started = self._clock()
        params, slots = self.view.snapshot()
        snapshot = Snapshot(self.view.step, params, slots, self.state())
        with self.view.running():
            try:
                self._checkpoints.write(snapshot)
                self.unsaved = ""
            except RunError as error:  # a full disk does not end a run of many hours: the next write may succeed
                _log.warning("%s; training goes on", error)
                self.unsaved = str(error)
        self._engine.keep(snapshot)
        self._checkpoint_seconds = self._clock() - started

    def state(self) -> dict[str, Any]:
        """Return the state of loop and engine for a checkpoint."""
        factors = {str(step): factor for step, factor in self.view.rate_factors.items()}
        state = {"extensions": self._extensions.states(), "rate_factors": factors, "metrics": dict(self.view.metrics)}
        if not self._job.experience:
            state["records"] = records_state(self._engine.batchsize, self._job.record_offset)
        engine = self._engine.state()
        return {**state, "engine": engine} if engine else state

    def save_snapshot(self) -> None:
        """Write the newest state of a failed run as a checkpoint."""
        newest = self._newest or self._engine.newest
        if self._checkpoints is not None and newest is not None:
            self._checkpoints.write_newer(newest)

    def _end_by_failure(self, error: Exception) -> None:
        """Write a checkpoint after an extension has failed, and say in its error where it is."""
        failed = self._extensions.failing
        if failed is None or failed.is_part_of_run or error is self.view.run_error:
            return
        where = f"extension {failed.name} failed at step {self.view.step}"
        self._extensions.drop(failed)
        try:
            self._save_what_is_done()
        except Exception as second:
            error.add_note(f"no checkpoint could be written: {second!r}")
        self._rescue(error)
        where = f"{where}; {self.resume_hint()}"
        if isinstance(error, UserError):
            is_built_in = type(failed).__module__.startswith("dsinga.")  # whose name says nothing about the fault
            raise UserError(f"{error} ({self.resume_hint() if is_built_in else where})") from error
        error.add_note(where)

    def _save_what_is_done(self) -> None:
        if self._workspace is None or not self._in_training:
            return
        self.view.stop("an extension failed", resumable=True)
        self._show_steps()
        self._train_until_pause(max(self._engine.sent, self.view.step))
        self._pause(last=True)

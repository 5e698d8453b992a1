"""Shows extensions the run that they belong to, and observers its progress."""

from __future__ import annotations

import contextlib
import logging
import math
import weakref
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from dsinga.base.arrays import ParamArrays, first_not_finite
from dsinga.base.errors import Diverged, UserError
from dsinga.base.registry import nearest
from dsinga.engine.engine import Engine, Restart
from dsinga.extensions.extension import LoopView, Watcher
from dsinga.extensions.standard import ASKED_BY
from dsinga.job.enums import PHASES
from dsinga.loop.initial_state import put_params
from dsinga.monitor import RECOVERY, Row
from dsinga.training import Metrics, create_updater
from dsinga.training.divergence import REMEDY
from dsinga.training.updater import factor_at

_log = logging.getLogger(__name__)


class Observer(Protocol):
    """Receives the rows of metrics and the progress of a run, for instance to display them."""

    def waiting(self, sentence: str) -> None:
        """Learn that the run waits for Dask workers of other runs."""

    def begin(self, step: int) -> None:
        """Learn that all checks have passed, and training begins at ``step``."""

    def record(self, row: Row) -> None:
        """Receive a row of the history: {"step", "phase": "train" | "val" | "test", "time", "loss", ...}."""

    def progress(self, row: Row) -> None:
        """Receive the progress after a round of steps: {"step", "samples_per_second", "loss", ...}."""


class ObserverWatcher(Watcher):
    """Sends the rows and progress of a run to an observer."""

    def __init__(self, observer: Observer):
        super().__init__()
        self._observer = observer

    def see_row(self, loop: LoopView, row: Mapping[str, Any]) -> None:
        """Pass on a row of the history."""
        self._observer.record(dict(row))

    def see_progress(self, loop: LoopView, row: Mapping[str, Any]) -> None:
        """Pass on the progress after a round."""
        self._observer.progress(dict(row))


class TrainingView(LoopView):
    """The run as its extensions see it: their requests are kept here for the training loop.

    The training loop sets ``step``, ``paused`` and speeds, and carries out ``stopped``, ``resumable`` and
    ``checkpoint_wanted``. ``run_error`` is an exception of the run, not of an extension.
    """

    def __init__(
        self,
        engine: Engine,
        show_row: Callable[[Row], None],
        workspace: Path | None,
        started: float,
        clock: Callable[[], float],
    ):
        self._engine = engine
        # Weak, because the loop refers to this view: a run's memory is given back without the garbage collector.
        self._show_row = weakref.WeakMethod(show_row)
        self._clock, self._asked = clock, started
        self._started = clock()
        self._not_finite: set[str] = set()  # the metrics of which a warning has told
        self.job = engine.job
        self.step = 0
        self.train_steps = engine.job.train_steps
        self.metrics: dict[str, float] = {}
        self.rate_factors: dict[int, float] = {}
        self.workspace = workspace
        self.stopped = ""
        self.resumable = False
        self.checkpoint_wanted = False
        self.paused = self.has_ended = False
        self.pauses_cheaply = engine.pauses_cheaply
        self.returned_params: ParamArrays | None = None
        self.returned_state: Mapping[str, ParamArrays] | None = None
        self.remarks: list[str] = []
        self._returned: str | None = None  # the remark about the returned params
        self.run_error: BaseException | None = None
        self.seconds_to_stop = self.samples_per_second = 0.0

    @property
    def seconds(self) -> float:
        return self._clock() - self._asked

    @property
    def rate_factor(self) -> float:
        return factor_at(sorted(self.rate_factors.items()), self.step)

    @property
    def learning_rate(self) -> float:
        return self._engine.learning_rate(self.step) * self.rate_factor

    @property
    def position(self) -> Row:
        """Where a row of the history is in training: its columns "step" and, if counted, "epoch"."""
        epochs = self._engine.epochs
        return {"step": self.step} | ({"epoch": epochs.at(self.step)} if epochs else {})

    def evaluate(self, phase: str, batches: int | None = None) -> dict[str, float]:
        self._check_paused("evaluate")
        if phase == "train" or PHASES.get(phase) not in self._engine.phases:
            remedy = f"; give it {ASKED_BY[phase]}" if phase in ASKED_BY else ", which is 'val' or 'test'"
            raise UserError(f"the job has no phase {phase!r} to evaluate{remedy}")
        count = batches or (self.job.validate_steps if phase == "val" else self.job.test_steps)
        with self.running():
            sums = self._engine.evaluate(PHASES[phase], count)
        try:
            with self.running():
                self._engine.write_outputs(PHASES[phase], count)
        except UserError:  # a file that cannot be written; the run itself could go on, so a checkpoint is worth writing
            self.run_error = None
            raise
        return self.means(phase, sums)

    def params(self) -> dict[str, np.ndarray]:
        self._check_paused("params")
        if self.has_ended and self.returned_params is not None:
            return {name: array.copy() for name, array in self.returned_params.items()}
        with self.running():
            return self._finite(self._engine.params())

    def updater_state(self) -> dict[str, dict[str, np.ndarray]]:
        self._check_paused("updater_state")
        return self.snapshot()[1] if create_updater(self.job.updater).has_state else {}

    def set_params(
        self, params: Mapping[str, np.ndarray], state: Mapping[str, Mapping[str, np.ndarray]] | None = None
    ) -> None:
        self._check_paused("set_params")
        values = self.params()
        for name in params.keys() - values.keys():
            raise UserError(f"the param {name!r} cannot be set: the net has no such param{nearest(name, values)}")
        put_params(values, params)
        slots = None if state is None else {name: dict(arrays) for name, arrays in state.items()}
        if self.has_ended:
            self.return_params(values, "the params are those that an extension has set after the last step", -1)
            self.returned_state = slots or self.returned_state
            return
        obstacle = "several worker groups train" if self._engine.groups > 1 else ""
        if self.job.updater.ema_conf is not None:
            obstacle = "averages of the params are kept (use_ema, ema_conf)"
        if obstacle:
            raise UserError(f"params cannot be set during training while {obstacle}; set them before or after it")
        with self.running():
            self._engine.set_params(values, slots)

    def last_params(self) -> ParamArrays:
        """Return the params at the end, unless one is not finite (Diverged)."""
        with self.running():
            return self._finite(self._engine.last_params())

    def last_state(self) -> dict[str, ParamArrays]:
        """Return the optimizer's state at the end, by param and slot."""
        with self.running():
            return self._engine.last_state()

    def snapshot(self) -> tuple[ParamArrays, dict[str, ParamArrays]]:
        """Copy the params and the updater's state; raise Diverged if they are not finite."""
        with self.running():
            params, slots = self._engine.snapshot()
            return self._finite(params), slots

    def _finite(self, params: ParamArrays) -> ParamArrays:
        name = first_not_finite(params)
        if name is not None:
            raise Diverged(f"param {name!r} is not finite after {self.step} steps; {REMEDY}")
        return params

    def recovery_row(self, restart: Restart, seconds: float) -> Row:
        """Return the row of the history for a restart that took ``seconds``."""
        noticed = restart.noticed_at - self._started
        return {
            **self.position,
            "phase": RECOVERY,
            "time": round(noticed + seconds, 3),
            "lost": restart.lost,
            "noticed": round(noticed, 3),
            "steps_again": self.step - restart.step if restart.steps_again is None else restart.steps_again,
            "seconds": round(seconds, 3),
            "generation": restart.generation,
            **({} if restart.group is None else {"group": restart.group}),
        }

    def means(self, phase: str, sums: Metrics) -> dict[str, float]:
        return self._engine.means(phase, sums)

    def record(self, phase: str, metrics: Mapping[str, float]) -> None:
        elapsed = round(self._clock() - self._started, 3)
        means = {name: float(value) for name, value in metrics.items()}
        self.metrics.update({f"{phase}/{name}": mean for name, mean in means.items()})
        show_row = self._show_row()
        if show_row is not None:
            show_row({**self.position, "phase": phase, "time": elapsed, **means})
        self._warn_of({name: value for name, value in means.items() if not math.isfinite(value)}, phase)

    def _warn_of(self, values: Mapping[str, float], phase: str) -> None:
        losses = [name for name in values if name.rpartition("/")[2] == "loss"]
        name = "loss" if losses else next((f"{phase}/{name}" for name in values), "loss")
        if not values or name in self._not_finite or "loss" in self._not_finite:
            return
        self._not_finite.add(name)
        if losses:
            _log.warning("the loss is no longer finite at step %d: %s", self.step, REMEDY)
        else:
            _log.warning(
                "%s is %g at step %d, but the loss is finite: the metric is not defined for these records, as roc_auc "
                "is not where all are of one class; give records for which it is, or leave it out",
                name,
                values[name.partition("/")[2]],
                self.step,
            )

    def stop(self, reason: str, *, resumable: bool = False) -> None:
        if not self.stopped:
            self.stopped, self.resumable = reason, resumable

    def set_rate_factor(self, from_step: int, factor: float) -> None:
        self._check_paused("set_rate_factor")
        if from_step < self.step or not factor >= 0:
            raise UserError(
                f"set_rate_factor takes a step of at least {self.step}, which is done, and a factor of at least 0, not "
                f"{from_step} and {factor}"
            )
        self.rate_factors[from_step] = float(factor)
        with self.running():
            self._engine.set_rate_factors(self.rate_factors)

    def write_checkpoint(self) -> None:
        self.checkpoint_wanted = True

    def return_params(self, params: Mapping[str, np.ndarray], remark: str, step: int | None = None) -> None:
        if self._returned is not None:
            self.remarks.remove(self._returned)
            if not remark.startswith(self._returned):
                remark = f"{remark}; they replace those that another extension returned"
        self.returned_params, self.returned_step, self._returned = dict(params), step, remark
        self.remarks.append(remark)

    def remark(self, sentence: str) -> None:
        self.remarks.append(sentence)

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        """Mark exceptions in the context as the run's, not an extension's."""
        try:
            yield
        except BaseException as error:
            self.run_error = error
            raise

    def _check_paused(self, method: str) -> None:
        if not self.paused:
            raise UserError(f"{method}() is for extensions that pause training: leave pauses = True, call it in run()")

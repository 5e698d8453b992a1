"""The view of a run on a cluster that the extensions of its training loop have."""

from __future__ import annotations

import contextlib
import logging
import math
import time
import weakref
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import numpy as np

from dsinga.cluster.inference.inference import output_layers, write_outputs
from dsinga.cluster.placing.prepare import PreparedRun
from dsinga.cluster.run.recovery import RecoverableRun
from dsinga.cluster.run.restarts import Restart
from dsinga.errors import Diverged, UserError
from dsinga.extensions import LoopView
from dsinga.extensions.checks import ASKED_BY
from dsinga.job import Phase
from dsinga.job.phases import PHASES
from dsinga.layers.composed_metrics import figures
from dsinga.monitor import RECOVERY, Row
from dsinga.training import Metrics, add_metrics, name_metrics
from dsinga.training.divergence import REMEDY, first_not_finite
from dsinga.training.updater import factor_at
from dsinga.worker.batch_reader import epoch_at
from dsinga.worker.param_slices import Arrays

_log = logging.getLogger(__name__)


class TrainingView(LoopView):
    """A view of a run on a cluster, for its extensions.

    The training loop sets ``step``, ``seconds_to_stop`` and ``samples_per_second``, carries out ``stopped``,
    ``resumable`` and ``checkpoint_wanted``, and sets ``paused`` while group 0 stands still. ``show_row``, a method of
    the loop, is called with each row. ``cluster_error`` is an exception that the run has raised, and not an extension.
    """

    def __init__(
        self,
        prepared: PreparedRun,
        run: RecoverableRun,
        show_row: Callable[[Row], None],
        workspace: Path | None,
        started: float,
    ):
        self._prepared, self._run = prepared, run
        # Weak, because the loop refers to this view: a run's memory is given back without the garbage collector.
        self._show_row = weakref.WeakMethod(show_row)
        self._asked = started
        self._started = time.perf_counter()
        self._diverged = False
        self.job = prepared.job
        self.step = 0
        self.train_steps = prepared.job.train_steps
        self.metrics: dict[str, float] = {}
        self.rate_factors: dict[int, float] = {}
        self.workspace = workspace
        self.stopped = ""
        self.resumable = False
        self.checkpoint_wanted = False
        self.paused = False
        self.returned_params: Arrays | None = None
        self.remarks: list[str] = []
        self.cluster_error: BaseException | None = None
        self.seconds_to_stop = self.samples_per_second = 0.0

    @property
    def seconds(self) -> float:
        return time.perf_counter() - self._asked

    @property
    def rate_factor(self) -> float:
        return factor_at(sorted(self.rate_factors.items()), self.step)

    @property
    def learning_rate(self) -> float:
        return float(self._prepared.config.updater.rate(self.step)) * self.rate_factor

    @property
    def position(self) -> Row:
        """The columns of a row that say where training stands: "step" and, if the job has epochs, "epoch"."""
        epoch = self._prepared.epoch
        return {"step": self.step} | ({"epoch": epoch_at(self.step, epoch)} if epoch else {})

    def evaluate(self, phase: str, batches: int | None = None) -> dict[str, float]:
        self._check_paused("evaluate")
        if PHASES.get(phase) not in self._prepared.config.nets or phase == "train":
            remedy = f"; give it {ASKED_BY[phase]}" if phase in ASKED_BY else ", which is 'val' or 'test'"
            raise UserError(f"the job has no phase {phase!r} to evaluate{remedy}")
        job = self._prepared.job
        count = batches or (job.validate_steps if phase == "val" else job.test_steps)
        with self.running_on_cluster():
            by_worker = self._run.do(lambda run: run.chains.wait(run.evaluate(PHASES[phase], count, self.step)))
        if PHASES[phase] is Phase.kTest:
            self._write_outputs(count)
        return self.means(phase, add_metrics([add_metrics(batch) for batch in zip(*by_worker, strict=True)]))

    def _write_outputs(self, batches: int) -> None:
        """Write the files of the output layers of the test net, of as many batches, 0 for all records."""
        config = self._prepared.config
        net = config.nets[Phase.kTest].whole
        if not output_layers(net):
            return
        try:
            with self.running_on_cluster():
                params = self._run.do(lambda run: run.snapshot(self.step, False)[0])
                write_outputs(self._prepared.job, self._run.client, net, config.readers[Phase.kTest], params, batches)
        except UserError:  # a file that cannot be written; the run itself could go on, so a checkpoint is worth writing
            self.cluster_error = None
            raise

    def params(self) -> dict[str, np.ndarray]:
        self._check_paused("params")
        return self.snapshot(state=False)[0]

    def snapshot(self, state: bool) -> tuple[Arrays, dict[str, Arrays]]:
        """Return params, and the updater's ``state``, as they stand; raise Diverged where a param is not finite."""
        with self.running_on_cluster():
            params, slots = self._run.do(lambda run: run.snapshot(self.step, state))
            name = first_not_finite(params)
            if name is not None:
                raise Diverged(f"param {name!r} is not finite after {self.step} steps; {REMEDY}")
        return params, slots

    def recovery_row(self, restart: Restart, seconds: float) -> Row:
        """Return the row of a restart that has lasted for some seconds; "time" and "noticed" are on the same clock."""
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
        named = name_metrics(self._prepared.config.nets[PHASES.get(phase, Phase.kTrain)].whole, sums)
        return {name: figure for name, figure in figures(named).items() if not isinstance(figure, list)}

    def record(self, phase: str, metrics: Mapping[str, float]) -> None:
        elapsed = round(time.perf_counter() - self._started, 3)
        means = {name: float(value) for name, value in metrics.items()}
        self.metrics.update({f"{phase}/{name}": mean for name, mean in means.items()})
        show_row = self._show_row()
        if show_row is not None:
            show_row({**self.position, "phase": phase, "time": elapsed, **means})
        if not self._diverged and not all(map(math.isfinite, means.values())):
            self._diverged = True
            _log.warning("the loss is no longer finite at step %d: %s", self.step, REMEDY)

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
        with self.running_on_cluster():
            self._run.do(lambda run: self._run.set_rate_factors(run, self.step, self.rate_factors))

    def write_checkpoint(self) -> None:
        self.checkpoint_wanted = True

    def return_params(self, params: Mapping[str, np.ndarray], remark: str) -> None:
        self.returned_params = dict(params)
        self.remarks.append(remark)

    @contextlib.contextmanager
    def running_on_cluster(self) -> Iterator[None]:
        """Remember an exception raised within as one of the run, which no extension is to blame for."""
        try:
            yield
        except BaseException as error:
            self.cluster_error = error
            raise

    def _check_paused(self, method: str) -> None:
        if not self.paused:
            raise UserError(f"{method}() is for extensions that pause training: leave pauses = True, call it in run()")

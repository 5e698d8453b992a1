"""SimulatedLoop: a training loop that trains nothing, to run extensions in a test."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from dsinga.checkpoint import separate_arrays
from dsinga.checkpoint.tensors import insert_arrays
from dsinga.extensions import AtEnd, Display, Evaluation, EverySteps, Extension, ExtensionRunner, LoopView
from dsinga.job import Job
from dsinga.layers.composed_metrics import figures
from dsinga.training import Metrics

# Returns the metrics of a phase at a step: ("val", 20) -> {"loss": 0.3}.
MetricsOf = Callable[[str, int], Mapping[str, float]]


class SimulatedLoop(LoopView):
    """A run whose metrics are a function of phase and step, and whose param "w" (3,) is the number of steps done.

    It shows training metrics every 5 steps, validates every 10, and runs extensions as a run on a cluster does. A step
    takes a second of its clock and trains on one record.

    Args:
        extensions: the extensions to run.
        metrics_of: the metrics.
        train_steps: how many steps the run has.
        checkpoint_freq: how many steps there are between checkpoints.
        workspace: a folder for files of the extensions.

    Attributes:
        rows: the history.
        rate_factors: by how much the learning rate is multiplied, by the first step at which it is.
        checkpoints: what checkpoints hold of the loop, by step.
        result: the param "w" that the run returns.
    """

    def __init__(
        self,
        extensions: Sequence[Extension],
        metrics_of: MetricsOf,
        train_steps: int = 200,
        checkpoint_freq: int = 7,
        workspace: Path | None = None,
    ):
        standard: list[Extension] = [
            Display(EverySteps(5) | AtEnd()),
            Evaluation(EverySteps(10) | AtEnd(), "val"),
        ]
        self._metrics_of, self._checkpoint_freq = metrics_of, checkpoint_freq
        self._extensions = ExtensionRunner([*standard, *extensions], self)
        self.job = Job(name="simulated", train_steps=train_steps)
        self.step, self.train_steps = 0, train_steps
        self.metrics: dict[str, float] = {}
        self.workspace = workspace
        self.stopped, self.resumable, self.seconds_to_stop = "", False, 3.0
        self.samples_per_second = 1.0
        self.rows: list[dict[str, Any]] = []
        self.rate_factors: dict[int, float] = {}
        self.checkpoints: dict[int, dict[str, Any]] = {}
        self.checkpoint_wanted = False
        self.result = np.zeros(3)
        self.remarks: list[str] = []

    def run(self, checkpoint: Mapping[str, Any] | None = None) -> SimulatedLoop:
        """Run from the first step, or from a checkpoint of another run; return this object."""
        failure: BaseException | None = None
        try:
            self._run_to_end(checkpoint)
        except BaseException as error:
            failure = error
            raise
        finally:
            self._extensions.close(failure)
        return self

    def _run_to_end(self, checkpoint: Mapping[str, Any] | None) -> None:
        begin = checkpoint or {"step": 0, "rows": [], "rate_factors": {}, "extensions": {}, "metrics": {}}
        self.step, self.rows, self.metrics = begin["step"], [*begin["rows"]], {**begin["metrics"]}
        self.rate_factors = {int(step): factor for step, factor in begin["rate_factors"].items()}
        self._extensions.start(begin["extensions"])
        if not self.step:
            self._extensions.pause()
        if self.step < self.train_steps and not self.stopped:
            self._train()
        self.result = self.params()["w"]
        self._extensions.finish()

    def _train(self) -> None:
        while self.step < self.train_steps and not self.stopped:
            next_pause = self._extensions.next_pause(self.step) or self.train_steps
            next_checkpoint = self.step + self._checkpoint_freq - self.step % self._checkpoint_freq
            self._train_until(min(next_pause, next_checkpoint, self.train_steps))
            if self.step < self.train_steps:
                self._extensions.pause()
                if not self.stopped:
                    self._write_checkpoint()
        self._extensions.pause(at_end=not self.resumable)
        self._write_checkpoint(always=True)

    def _train_until(self, stop: int) -> None:
        while self.step < stop and not (self.stopped or self._extensions.wants_pause()):
            self.step += 1
            self._extensions.observe({name: (value, 1) for name, value in self._metrics_of("train", self.step).items()})

    def _write_checkpoint(self, always: bool = False) -> None:
        if always or self.checkpoint_wanted or self.step % self._checkpoint_freq == 0:
            factors = {str(step): factor for step, factor in self.rate_factors.items()}
            state = {"step": self.step, "rate_factors": factors, "metrics": self.metrics}
            data, arrays = separate_arrays(copy.deepcopy({**state, "extensions": self._extensions.states()}))
            self.checkpoints[self.step] = insert_arrays(json.loads(json.dumps(data)), arrays) | {"rows": [*self.rows]}
        self.checkpoint_wanted = False

    @property
    def seconds(self) -> float:
        """The step: each takes a second."""
        return float(self.step)

    @property
    def rate_factor(self) -> float:
        """The factor that holds at this step."""
        return next((self.rate_factors[s] for s in sorted(self.rate_factors, reverse=True) if s <= self.step), 1.0)

    @property
    def learning_rate(self) -> float:
        """The job's base rate times the factor that holds at this step."""
        return self.job.updater.learning_rate.base_lr * self.rate_factor

    def evaluate(self, phase: str, batches: int | None = None) -> dict[str, float]:
        """Return the metrics of the phase."""
        return {**self._metrics_of(phase, self.step)}

    def params(self) -> dict[str, np.ndarray]:
        """Return the param."""
        return {"w": np.full(3, self.step, np.float32)}

    def means(self, phase: str, sums: Metrics) -> dict[str, float]:
        """Return the means."""
        return figures(sums)

    def record(self, phase: str, metrics: Mapping[str, float]) -> None:
        """Add a row to ``rows``."""
        row = {"step": self.step, "phase": phase, "time": self.seconds, **metrics}
        self.metrics.update({f"{phase}/{name}": value for name, value in metrics.items()})
        self.rows.append(row)
        self._extensions.show_row(row)

    def stop(self, reason: str, *, resumable: bool = False) -> None:
        """End the run."""
        if not self.stopped:
            self.stopped, self.resumable = reason, resumable

    def set_rate_factor(self, from_step: int, factor: float) -> None:
        """Add a factor to ``rate_factors``."""
        assert from_step >= self.step, "a rate cannot be changed for steps that are done"
        self.rate_factors[from_step] = factor

    def write_checkpoint(self) -> None:
        """Add a checkpoint of this step to ``checkpoints``."""
        self.checkpoint_wanted = True

    def return_params(self, params: Mapping[str, np.ndarray], remark: str) -> None:
        """Let the run return these params."""
        self.result = params["w"]
        self.remarks.append(remark)

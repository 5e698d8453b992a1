"""SimulatedLoop: runs extensions in a training loop that trains nothing, for their tests."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from dsinga.checkpoint.tensor_files import insert_arrays, separate_arrays
from dsinga.engine.engine import Engine, Snapshot, StepReport
from dsinga.extensions import AtEnd, Checkpointing, Display, Evaluation, EverySteps, Extension
from dsinga.job import Job, Phase
from dsinga.loop.cancellation import Cancellation
from dsinga.loop.checkpoints import Checkpoints
from dsinga.loop.training_loop import TrainingLoop
from dsinga.training import Metrics

# Returns the metrics of a phase at a step: ("val", 20) -> {"loss": 0.3}.
MetricsOf = Callable[[str, int], Mapping[str, float]]

NAMES = {Phase.kTrain: "train", Phase.kVal: "val", Phase.kTest: "test"}


class SimulatedLoop:
    """Runs extensions in a simulated training run, with metrics from a function of yours.

    The loop shows training metrics every 5 steps, validates every 10, and runs extensions in the real training loop.

    >>> from dsinga.extensions import EarlyStopping
    >>> from dsinga.testing import SimulatedLoop
    >>> stop = EarlyStopping("val/loss", patience=2)
    >>> SimulatedLoop([stop], lambda phase, step: {"loss": abs(step - 50)}).run().step
    70

    Args:
        metrics_of: the metrics.
        checkpoint_freq: steps between checkpoints.
        workspace: folder for files of the extensions.

    Attributes:
        rows: the history.
        checkpoints: what checkpoints hold of the loop, by step.
        result: the param "w" at the end.
        view: what the extensions see.
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
            Checkpointing(EverySteps(checkpoint_freq) | AtEnd()),
        ]
        self._engine = _SimulatedEngine(metrics_of, train_steps)
        self.rows: list[dict[str, Any]] = []
        self.checkpoints: dict[int, dict[str, Any]] = {}
        self._loop = TrainingLoop(
            self._engine, self, [*standard, *extensions], workspace, _Checkpoints(self), Cancellation(), 0.0,
            self._engine.clock,
        )  # fmt: skip
        self.view = self._loop.view
        self.result = np.zeros(3)

    def run(self, checkpoint: Mapping[str, Any] | None = None) -> SimulatedLoop:
        """Run from the first step, or from another run's checkpoint; return this object."""
        begin = checkpoint or {"step": 0, "rows": []}
        self._engine.steps = begin["step"]
        self.rows = [*begin["rows"]]
        self.result = self._loop.run(begin["step"], begin)["w"]
        return self

    @property
    def step(self) -> int:
        """The number of steps done."""
        return self._loop.step

    @property
    def stopped(self) -> str:
        """Why the run has ended early, "" if it has not."""
        return self._loop.stopped

    @property
    def remarks(self) -> list[str]:
        """The messages of the extensions."""
        return self.view.remarks

    @property
    def rate_factors(self) -> dict[int, float]:
        """The factors of the learning rate that extensions set, by their first step."""
        return self.view.rate_factors

    def waiting(self, sentence: str) -> None:
        """Do nothing, because the run waits for nothing."""

    def begin(self, step: int) -> None:
        """Do nothing, because :meth:`run` begins the run."""

    def record(self, row: dict[str, Any]) -> None:
        """Add a row of metrics to ``rows``."""
        self.rows.append(row)

    def progress(self, row: dict[str, Any]) -> None:
        """Ignore a report of progress."""


class _SimulatedEngine(Engine):
    """An engine that only counts steps."""

    def __init__(self, metrics_of: MetricsOf, train_steps: int):
        self.job, self.nets = Job(name="simulated", train_steps=train_steps), {}
        self._metrics_of = metrics_of
        self.steps = 0

    @property
    def step(self) -> int:
        return self.steps

    @property
    def samples_per_second(self) -> float:
        return 1.0

    def clock(self) -> float:
        return float(self.step)

    @property
    def phases(self) -> list[Phase]:
        return list(NAMES)

    def train(self, stop: int) -> list[StepReport]:
        self.steps += 1
        return [StepReport(self.evaluate(Phase.kTrain, 1))]

    def evaluate(self, phase: Phase, batches: int) -> Metrics:
        return {name: (value, 1) for name, value in self._metrics_of(NAMES[phase], self.step).items()}

    def params(self) -> dict[str, np.ndarray]:
        return {"w": np.full(3, self.step, np.float32)}

    def snapshot(self) -> tuple[dict[str, np.ndarray], dict[str, dict[str, np.ndarray]]]:
        return self.params(), {}

    def reach(self) -> tuple[int, float]:
        return self.step + 1, 3.0

    def learning_rate(self, step: int) -> float:
        return self.job.updater.learning_rate.base_lr

    def set_rate_factors(self, factors: Mapping[int, float]) -> None:
        """Do nothing, because the loop has the factors."""


class _Checkpoints(Checkpoints):
    """Keeps the loop's checkpoints in memory, as if read from a file."""

    def __init__(self, loop: SimulatedLoop):
        self._loop = loop

    def write(self, snapshot: Snapshot) -> None:
        data, arrays = separate_arrays(copy.deepcopy({"step": snapshot.step, **(snapshot.loop or {})}))
        state = insert_arrays(json.loads(json.dumps(data)), arrays)
        self._loop.checkpoints[snapshot.step] = {**state, "rows": [*self._loop.rows]}

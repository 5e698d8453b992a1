"""The extensions that every run has: rows of training, tests and checkpoints as often as the job says, functions."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from fractions import Fraction
from typing import Any

import numpy as np

from dsinga.extensions.best_value import checked_number
from dsinga.extensions.extension import Extension, LoopView, State
from dsinga.extensions.triggers import AtEnd, EveryEpoch, EverySteps, Trigger
from dsinga.job import Job, Phase, training_phases
from dsinga.monitor import NOT_METRICS
from dsinga.training import Metrics, add_metrics

# How many rows of training a run has whose job does not say how often.
DEFAULT_DISPLAYS = 100


class Display(Extension):
    """Adds the means of the training metrics since its last run to the history."""

    pauses = False  # it looks at reports only
    phase = "train"

    def __init__(self, trigger: Trigger):
        self.trigger = trigger
        self._sums: Metrics = {}

    def observe(self, loop: LoopView, sums: Metrics) -> None:
        """Add up the metrics."""
        self._sums = add_metrics([self._sums, sums])

    def run(self, loop: LoopView) -> None:
        """Add a row, and begin anew."""
        sums, self._sums = self._sums, {}  # before another extension sees the row, and may fail
        loop.record("train", loop.means("train", sums))

    def state_dict(self) -> State:
        """Return the sums since the last row."""
        return {"sums": {name: list(metric) for name, metric in self._sums.items()}}

    def load_state(self, state: State) -> None:
        """Go on from these sums."""
        self._sums = {
            name: (checked_number(total), checked_number(count))
            for name, (total, count) in state.get("sums", {}).items()
        }


class Evaluation(Extension):
    """Evaluates a phase and adds its metrics to the history.

    Args:
        trigger: when.
        phase: "val" or "test".
        batches: how many batches it is; by default as the job says, or all records if it does not say.
    """

    def __init__(self, trigger: Trigger, phase: str, batches: int | None = None):
        self.trigger, self.phase, self._batches = trigger, phase, batches

    def run(self, loop: LoopView) -> None:
        """Evaluate the phase with the params of this step."""
        assert self.phase is not None
        loop.record(self.phase, loop.evaluate(self.phase, self._batches))


class Checkpointing(Extension):
    """Writes a checkpoint of the run to its workspace, if it has one."""

    def __init__(self, trigger: Trigger):
        self.trigger = trigger

    def run(self, loop: LoopView) -> None:
        """Ask for a checkpoint of this step."""
        loop.write_checkpoint()


class FunctionExtension(Extension):
    """Calls ``function(step, metrics)`` for each row of the history, with metrics such as {"val/loss": 0.3}.

    It is made of a plain function among the extensions of ``dsinga.train``. A function that returns True, and nothing
    else, ends training. Training pauses at ``rows``, the trigger of rows of training, so that it ends at the step of
    the row.
    """

    def __init__(self, function: Callable[[int, dict[str, float]], object], rows: Trigger):
        self.trigger = rows
        self._function = function

    @property
    def name(self) -> str:
        """The function's name."""
        return getattr(self._function, "__name__", type(self._function).__name__)

    def see_row(self, loop: LoopView, row: Mapping[str, Any]) -> None:
        """Call the function, and end training if it returns True."""
        metrics = {f"{row['phase']}/{name}": value for name, value in row.items() if name not in NOT_METRICS}
        result = self._function(row["step"], metrics)
        if isinstance(result, (bool, np.bool_)) and result:
            loop.stop(f"the function {self.name} has returned True")

    def run(self, loop: LoopView) -> None:
        """Do nothing: the function has been called for each row."""


def create_standard(job: Job, epoch: Fraction | None) -> list[Extension]:
    """Return the extensions that ``disp_freq``, ``validate_freq``, ``test_freq`` and ``checkpoint_freq`` ask for."""
    display_freq = job.disp_freq or (0 if epoch else max(1, job.train_steps // DEFAULT_DISPLAYS))
    extensions: list[Extension] = [Display(_singa_trigger(display_freq, job.disp_after, epoch))]
    phases = training_phases(job)
    if Phase.kVal in phases:
        extensions.append(Evaluation(_singa_trigger(job.validate_freq, job.validate_after, epoch), "val"))
    if Phase.kTest in phases:
        extensions.append(Evaluation(_singa_trigger(job.test_freq, job.test_after, epoch), "test"))
    # The params before the first step are not worth a checkpoint.
    checkpoint_after = job.checkpoint_after or job.checkpoint_freq
    extensions.append(Checkpointing(_singa_trigger(job.checkpoint_freq, checkpoint_after)))
    return extensions


def _singa_trigger(freq: int, after: int, epoch: Fraction | None = None) -> Trigger:
    """Return SINGA's rule; beyond it, everything is done once more at the end, and without a frequency every epoch."""
    if freq:
        return EverySteps(freq, after) | AtEnd()
    return EveryEpoch(epoch) | AtEnd() if epoch else AtEnd()

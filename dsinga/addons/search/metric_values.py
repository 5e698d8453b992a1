"""Extensions (callbacks) for a search's runs: keep a metric's values, end a run at its rung."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any, NamedTuple

from dsinga.extensions import ExtensionLike
from dsinga.extensions.best_value import BestValue
from dsinga.extensions.extension import Extension, LoopView, State
from dsinga.extensions.triggers import OnMetric


class Rung(NamedTuple):
    """A part of a run, after which runs are compared: the first ``steps`` of ``total`` steps.

    Runs with another total are compared after the same share.
    """

    steps: int
    total: int

    def is_done(self, step: int, train_steps: int) -> bool:
        """Return whether ``step`` of a run of ``train_steps`` reaches the end of this rung."""
        return step * self.total >= self.steps * train_steps


class MetricValues(Extension):
    """Keeps the values of a metric, with the steps at which it was recorded.

    Args:
        mode: "min" or "max": whether lower or higher values are better; "auto" goes by the metric's name.
        rung: the part of the run after which it pauses, with a checkpoint.

    Attributes:
        values: (step, value) for each row that has the metric.
        score: the value at the step of the returned params, the last value at the last step; None if unknown.
    """

    def __init__(self, monitor: str, mode: str = "auto", rung: Rung | None = None):
        self.best = BestValue(monitor, mode)
        self.values: list[tuple[int, float]] = []
        self.trigger = OnMetric(monitor, self.best)
        self.pauses = rung is not None  # a run ends at the very step of the value; else it only looks at rows
        self.has_paused = False
        self.score: float | None = None
        self.fault = ""
        self._rung = rung

    @property
    def name(self) -> str:
        """The name in checkpoints, in parentheses, so that a run resumed without a search does not miss it."""
        return "(search)"

    def start(self, loop: LoopView) -> None:
        """End a resumed run at once if its rung is done already."""
        self._pause_at_rung(loop)

    def see_row(self, loop: LoopView, row: Mapping[str, Any]) -> None:
        """Store the metric if a row of the history has it."""
        phase, _, name = self.best.monitor.partition("/")
        if row["phase"] == phase and name in row:
            self._add(row["step"], float(row[name]))

    def _add(self, step: int, value: float) -> None:
        self.values.append((step, value))
        self.best.update(value)

    def run(self, loop: LoopView) -> None:
        """Pause the run if its rung is done."""
        self._pause_at_rung(loop)

    def _pause_at_rung(self, loop: LoopView) -> None:
        if self._rung is None or not self.values or loop.stopped or loop.step >= loop.train_steps:
            return
        if self._rung.is_done(self.values[-1][0], loop.train_steps):
            self.has_paused = True
            loop.stop("its rung of the search is done", resumable=True)

    def finish(self, loop: LoopView) -> None:
        """Note the score, after extensions that return params."""
        at, monitor = loop.returned_step, self.best.monitor
        self.score = next((value for step, value in reversed(self.values) if at in (None, step)), None)
        if self.score is None and at is not None:
            self.fault = f"{monitor} is not known for the params that are returned; let KeepBest monitor {monitor}"

    def state_dict(self) -> State:
        """Return the values so far, for a checkpoint."""
        return {"values": [[step, value] for step, value in self.values]}

    def load_state(self, state: State) -> None:
        """Restore the values of a resumed run."""
        self.values, self.best.value = [], None
        for step, value in state.get("values", []):
            self._add(int(step), float(value))


def copied(extension: ExtensionLike) -> ExtensionLike:
    """Copy an extension for one run, because extensions keep state; functions are returned unchanged."""
    return copy.deepcopy(extension) if isinstance(extension, Extension) else extension

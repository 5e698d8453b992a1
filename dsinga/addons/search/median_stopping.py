"""Extensions (callbacks) of the runs of a search: keep a metric's values, and stop runs worse than others' median."""

from __future__ import annotations

import bisect
import math
import statistics
import threading
from collections.abc import Mapping, Sequence
from typing import Any

from dsinga.extensions.best_value import BestValue
from dsinga.extensions.extension import Extension, LoopView, State
from dsinga.extensions.triggers import OnMetric

# How many runs must be complete before any is ended, so that the median of a few does not decide.
COMPLETE_RUNS = 5


class MetricValues(Extension):
    """Keeps the values of a metric, with the steps at which it was recorded.

    Args:
        monitor: the metric, by phase and name: "val/loss".
        mode: "min" or "max": whether lower or higher values are better; "auto" goes by the metric's name.

    Attributes:
        values: (step, value) for each row that has the metric.
        best: the best value so far.
    """

    pauses = False  # it only looks at rows

    def __init__(self, monitor: str, mode: str = "auto"):
        self.best = BestValue(monitor, mode)
        self.values: list[tuple[int, float]] = []
        self.trigger = OnMetric(monitor, self.best)

    def see_row(self, loop: LoopView, row: Mapping[str, Any]) -> None:
        """Keep the metric of a row that has it."""
        phase, _, name = self.best.monitor.partition("/")
        if row["phase"] == phase and name in row:
            self._add(row["step"], float(row[name]))

    def _add(self, step: int, value: float) -> None:
        self.values.append((step, value))
        self.best.update(value)

    def run(self, loop: LoopView) -> None:
        """Do nothing: the row has been seen."""

    def state_dict(self) -> State:
        """Return the values so far."""
        return {"values": [[step, value] for step, value in self.values]}

    def load_state(self, state: State) -> None:
        """Restore the values of the run that is resumed."""
        self.values, self.best.value = [], None
        for step, value in state.get("values", []):
            self._add(int(step), float(value))


class MedianRule:
    """The median stopping rule, for the runs of one search.

    A run is to end at a step if the best value that it has had so far is worse than the median, over the runs that
    are complete, of the mean of their values up to that step. (Golovin et al., Google Vizier: A Service for Black-Box
    Optimization, KDD 2017, section 3.2.1.) Runs that the rule has ended are not complete. So what it says depends on
    the values of the complete runs and of the run itself only, not on how far other runs have come.

    Its methods may be called from several threads.

    Args:
        complete_runs: how many runs must be complete before any is ended.
    """

    def __init__(self, complete_runs: int = COMPLETE_RUNS):
        self._least = complete_runs
        self._complete: list[tuple[list[int], list[float]]] = []  # steps of a run, and the mean up to each
        self._lock = threading.Lock()

    def add(self, values: Sequence[tuple[int, float]]) -> None:
        """Add a complete run: the steps at which its metric was recorded, rising, and the values."""
        total, means = 0.0, []
        for count, (_, value) in enumerate(values, start=1):
            total += value
            means.append(total / count)
        if means and math.isfinite(total):
            with self._lock:
                self._complete.append(([step for step, _ in values], means))

    def median(self, step: int) -> tuple[float, int] | None:
        """Return the median at a step and the number of runs in it; None where too few are complete."""
        with self._lock:
            means = [means[count - 1] for steps, means in self._complete if (count := bisect.bisect(steps, step))]
        return (statistics.median(means), len(means)) if len(means) >= self._least else None


class MedianStopping(MetricValues):
    """Ends a run of a search by the :class:`MedianRule`, and tells the rule the values of a run that is complete.

    Attributes:
        reason: why it has ended the run, "" if it has not.
    """

    pauses = True  # a run ends at the very step of the value

    def __init__(self, rule: MedianRule, monitor: str, mode: str = "auto"):
        super().__init__(monitor, mode)
        self._rule = rule
        self.reason = ""

    def start(self, loop: LoopView) -> None:
        """End a resumed run at once if it was ended before."""
        if self.reason:
            loop.stop(self.reason)

    def run(self, loop: LoopView) -> None:
        """Compare the best value so far with the median."""
        median = self._rule.median(loop.step)
        if median is None or loop.stopped or loop.step >= loop.train_steps or not self._is_worse(median[0]):
            return
        best = "not a number" if self.best.value is None else f"{self.best.value:.4g}"
        text = f"worse than the median {median[0]:.4g} of {median[1]} complete runs"
        self.reason = f"{self.best.monitor} was {best} at best, {text}"
        loop.stop(self.reason)

    def _is_worse(self, median: float) -> bool:
        best = self.best.value
        if best is None:  # all values were NaN
            return True
        return best < median if self.best.higher else best > median

    def finish(self, loop: LoopView) -> None:
        """Add a run that is complete to those that others are compared with."""
        if not self.reason:
            self._rule.add(self.values)

    def state_dict(self) -> State:
        """Return the values so far, and why the run was ended."""
        return {**super().state_dict(), "reason": self.reason}

    def load_state(self, state: State) -> None:
        """Restore the values and the reason of the run that is resumed."""
        super().load_state(state)
        self.reason = state.get("reason", "")

"""The extension that adds rows of training to the history."""

from __future__ import annotations

from dsinga.extensions.best_value import checked_number
from dsinga.extensions.extension import Extension, State
from dsinga.extensions.loop_view import LoopView
from dsinga.extensions.triggers import Trigger
from dsinga.training import Metrics, add_metrics


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

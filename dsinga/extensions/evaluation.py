"""The extension that validates or tests."""

from __future__ import annotations

from dsinga.extensions.extension import Extension
from dsinga.extensions.loop_view import LoopView
from dsinga.extensions.triggers import Trigger


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

"""The extension that returns the best params of a run instead of the last ones."""

from __future__ import annotations

import numpy as np

from dsinga.checkpoint import Checkpoint, export_safetensors
from dsinga.extensions.best_value import checked_number
from dsinga.extensions.extension import Extension, LoopView, State
from dsinga.extensions.triggers import WhenBest
from dsinga.job import MonitorMode
from dsinga.job.component import Settings, required, setting
from dsinga.job.limits import NonNegative
from dsinga.registry import register

BEST_FILE = "best.safetensors"


@register("extension", kKeepBest=2)
class KeepBest(Extension):
    """Keeps the params with the best value of a metric, and makes them the result of the run.

    At the end they are written to ``best.safetensors`` in the workspace, too. The checkpoints hold the params of their
    own step, for a bit-exact resume.
    """

    class Conf(Settings):
        """Settings of kKeepBest."""

        monitor: str = required("the name of a metric, by phase and name, as in 'val/loss'")
        min_delta: NonNegative = setting(0.0, "by how much a value must be better than the best to replace it")
        mode: MonitorMode = setting(
            MonitorMode.auto,
            "whether lower ('min') or higher ('max') values are better; 'auto' goes by the metric's name",
        )

    settings: Conf

    def set_up(self) -> None:
        """Run whenever the metric is better than ever before."""
        self.trigger = WhenBest(self.settings.monitor, self.settings.mode.name, self.settings.min_delta)
        self._monitor = self.trigger.monitor
        self._best: State = {}

    def run(self, loop: LoopView) -> None:
        """Keep the params of this step."""
        self._best = {"step": loop.step, "value": loop.metrics[self._monitor], "params": loop.params()}

    def finish(self, loop: LoopView) -> None:
        """Return the best params instead of the last, and write them to the workspace."""
        if not self._best:
            return
        step, value, params = self._best["step"], self._best["value"], self._best["params"]
        loop.return_params(
            params, f"the params are those after {step} steps, with the best {self._monitor}: {value:.4g}"
        )
        if loop.workspace is not None:
            export_safetensors(Checkpoint(step, params, {}, {}), loop.workspace / BEST_FILE)

    def state_dict(self) -> State:
        """Return the best params, with their step and value."""
        return self._best

    def load_state(self, state: State) -> None:
        """Take the best params; raises KeyError or TypeError where they are none."""
        if state:
            checked_number(state["step"])
            checked_number(state["value"])
            if not all(isinstance(array, np.ndarray) for array in state["params"].values()):
                raise TypeError("params are not arrays")
        self._best = state

"""The extension that ends training when a metric no longer improves."""

from __future__ import annotations

from dsinga.extensions.best_value import metric_name
from dsinga.extensions.extension import Extension, State
from dsinga.extensions.loop_view import LoopView
from dsinga.extensions.plateau import Plateau
from dsinga.extensions.triggers import OnMetric
from dsinga.registry import register


@register("extension", "kEarlyStopping")
class EarlyStopping(Extension):
    """Ends training once ``patience`` values of a metric in a row have brought no improvement.

    Prechelt, Early Stopping - But When?, in Neural Networks: Tricks of the Trade (1998).

    Args:
        monitor: the metric, by phase and name: "val/loss".
        patience: how many values without improvement are too many.
        min_delta: by how much a value must be better than the best to be an improvement.
        mode: "min" or "max": whether lower or higher values are better; "auto" goes by the metric's name.
    """

    def __init__(self, monitor: str, patience: int = 5, min_delta: float = 0.0, mode: str = "auto"):
        self._monitor = metric_name(monitor)
        self._plateau = Plateau(monitor, patience, mode, min_delta)
        self.trigger = OnMetric(monitor, self._plateau.best)

    def start(self, loop: LoopView) -> None:
        """End a resumed run at once if its count of values without improvement has already reached patience."""
        self._stop_on_plateau(loop)

    def run(self, loop: LoopView) -> None:
        """Compare the newest value with the best."""
        self._plateau.update(loop.step, loop.metrics[self._monitor])
        self._stop_on_plateau(loop)

    def _stop_on_plateau(self, loop: LoopView) -> None:
        plateau = self._plateau
        if plateau.is_reached:
            best = "" if plateau.best.value is None else f" ({plateau.best.value:.4g} after {plateau.best_step} steps)"
            values = "value" if plateau.count == 1 else f"{plateau.count} values"
            loop.stop(f"{self._monitor} has not improved on its best{best} in the last {values}")

    def state_dict(self) -> State:
        """Return the best value and the count."""
        return self._plateau.state_dict()

    def load_state(self, state: State) -> None:
        """Take the best value and the count."""
        self._plateau.load_state(state)

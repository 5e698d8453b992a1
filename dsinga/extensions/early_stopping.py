"""The extension that ends training when a metric no longer improves."""

from __future__ import annotations

from dsinga.arguments import check_bool
from dsinga.extensions.best_value import Plateau, metric_name
from dsinga.extensions.extension import Extension, LoopView, State
from dsinga.extensions.keep_best import KeepBest
from dsinga.extensions.keras_names import checked_extension
from dsinga.extensions.triggers import OnMetric
from dsinga.registry import register


@register("extension", kEarlyStopping=1)
@checked_extension
class EarlyStopping(Extension):
    """Ends training once ``patience`` values of a metric in a row have brought no improvement.

    Prechelt, Early Stopping - But When?, in Neural Networks: Tricks of the Trade (1998).

    Args:
        monitor: the metric, by phase and name: "val/loss".
        patience: how many values without improvement are too many.
        min_delta: by how much a value must be better than the best to be an improvement.
        mode: "min" or "max": whether lower or higher values are better; "auto" goes by the metric's name.
        restore_best_weights: whether the params with the best value are the result, as :class:`KeepBest` does it.
    """

    def __init__(
        self,
        monitor: str = "val/loss",
        patience: int = 5,
        min_delta: float = 0.0,
        mode: str = "auto",
        restore_best_weights: bool = False,
    ):
        check_bool("restore_best_weights", restore_best_weights)
        self._monitor = metric_name(monitor)
        self._plateau = Plateau(monitor, patience, mode, min_delta)
        self.trigger = OnMetric(monitor, self._plateau.best)
        self._keep = KeepBest(monitor, min_delta, mode) if restore_best_weights else None

    def start(self, loop: LoopView) -> None:
        """End a resumed run at once if its count of values without improvement has already reached patience."""
        self._stop_on_plateau(loop)

    def run(self, loop: LoopView) -> None:
        """Compare the newest value with the best."""
        self._plateau.update(loop.step, loop.metrics[self._monitor])
        if self._keep is not None and self._plateau.best_step == loop.step:
            self._keep.run(loop)
        self._stop_on_plateau(loop)

    def finish(self, loop: LoopView) -> None:
        """Return the best params, if they are asked for."""
        if self._keep is not None:
            self._keep.finish(loop)

    def _stop_on_plateau(self, loop: LoopView) -> None:
        plateau = self._plateau
        if plateau.is_reached:
            best = "" if plateau.best.value is None else f" ({plateau.best.value:.4g} after {plateau.best_step} steps)"
            values = "value" if plateau.count == 1 else f"{plateau.count} values"
            loop.stop(f"{self._monitor} has not improved on its best{best} in the last {values}")

    def state_dict(self) -> State:
        """Return the best value and the count, with the best params if they are asked for."""
        return {**self._plateau.state_dict(), **({} if self._keep is None else {"keep": self._keep.state_dict()})}

    def load_state(self, state: State) -> None:
        """Take the best value and the count."""
        self._plateau.load_state(state)
        if self._keep is not None:
            self._keep.load_state(state.get("keep", {}))

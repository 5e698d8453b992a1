"""The extension that lowers the learning rate when a metric no longer improves."""

from __future__ import annotations

from dsinga.arguments import check_range, check_whole
from dsinga.errors import UserError
from dsinga.extensions.best_value import Plateau, checked_number, metric_name
from dsinga.extensions.extension import Extension, LoopView, State
from dsinga.extensions.keras_names import checked_extension
from dsinga.extensions.triggers import OnMetric
from dsinga.registry import register


@register("extension", kReduceOnPlateau=3)
@checked_extension
class ReduceOnPlateau(Extension):
    """Multiplies the learning rate by ``factor`` whenever ``patience`` values in a row have brought no improvement.

    The schedule of the job goes on; what it gives is multiplied, from the present step on, wherever params are updated.

    Args:
        monitor: the metric, by phase and name: "val/loss".
        factor: what the rate is multiplied by, between 0 and 1.
        patience: how many values without improvement are too many.
        min_delta: by how much a value must be better than the best to be an improvement.
        mode: "min" or "max": whether lower or higher values are better; "auto" goes by the metric's name.
        cooldown: how many values are not counted after the rate was lowered.
        min_factor: the product of all factors does not fall below this.
    """

    def __init__(
        self,
        monitor: str,
        factor: float = 0.1,
        patience: int = 3,
        min_delta: float = 0.0,
        mode: str = "auto",
        cooldown: int = 0,
        min_factor: float = 0.0,
    ):
        check_range("factor", factor, 0, 1)
        if factor in (0, 1):
            raise UserError(f"factor must be in (0, 1), not {factor}")
        check_whole("cooldown", cooldown, 0)
        check_range("min_factor", min_factor, 0)
        self._monitor = metric_name(monitor)
        self._factor, self._min_factor, self._cooldown = factor, min_factor, cooldown
        self._plateau = Plateau(monitor, patience, mode, min_delta)
        self.trigger = OnMetric(monitor, self._plateau.best)
        self._cooling = 0

    def run(self, loop: LoopView) -> None:
        """Compare the newest value with the best, and lower the rate of the steps to come on a plateau."""
        self._plateau.update(loop.step, loop.metrics[self._monitor])
        if self._cooling:
            self._cooling -= 1
            self._plateau.count = 0
        if not self._plateau.is_reached:
            return
        factor = max(loop.rate_factor * self._factor, self._min_factor)
        if factor < loop.rate_factor:
            loop.set_rate_factor(loop.step, factor)
        self._plateau.count, self._cooling = 0, self._cooldown

    def state_dict(self) -> State:
        """Return the best value, the count, and the rest of the cooldown."""
        return {**self._plateau.state_dict(), "cooling": self._cooling}

    def load_state(self, state: State) -> None:
        """Go on from these."""
        self._plateau.load_state(state)
        self._cooling = checked_number(state.get("cooling", 0))

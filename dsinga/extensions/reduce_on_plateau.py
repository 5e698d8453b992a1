"""The extension that lowers the learning rate when a metric no longer improves."""

from __future__ import annotations

from typing import Annotated

from dsinga.base.registry import register
from dsinga.extensions.best_value import Plateau, checked_number, metric_name
from dsinga.extensions.extension import Extension, LoopView, State
from dsinga.extensions.triggers import OnMetric
from dsinga.job import MonitorMode
from dsinga.job.component import Settings, required, setting
from dsinga.job.limits import Count, Natural, NonNegative, Range


@register("extension", kReduceOnPlateau=3)
class ReduceOnPlateau(Extension):
    """Multiplies the learning rate by ``factor`` whenever ``patience`` values in a row have brought no improvement.

    The schedule of the job goes on; what it gives is multiplied, from the present step on, wherever params are updated.
    """

    class Conf(Settings):
        """Settings of kReduceOnPlateau."""

        monitor: str = required("the name of a metric, by phase and name, as in 'val/loss'")
        factor: Annotated[float, Range(0, 1, open_low=True, open_high=True)] = setting(
            0.1, "what the rate is multiplied by"
        )
        patience: Count = setting(3, "after how many values in a row without improvement the rate is lowered")
        min_delta: NonNegative = setting(0.0, "by how much a value must be better than the best to be an improvement")
        mode: MonitorMode = setting(
            MonitorMode.auto,
            "whether lower ('min') or higher ('max') values are better; 'auto' goes by the metric's name",
        )
        cooldown: Natural = setting(0, "how many values are not counted after the rate was lowered")
        min_factor: NonNegative = setting(0.0, "the product of all factors does not fall below this")
        min_lr: NonNegative = setting(0.0, "the learning rate is not lowered below this")

    settings: Conf

    def set_up(self) -> None:
        """Run whenever the metric is recorded."""
        conf = self.settings
        self._monitor = metric_name(conf.monitor)
        self._plateau = Plateau(conf.monitor, conf.patience, conf.mode.name, conf.min_delta)
        self.trigger = OnMetric(conf.monitor, self._plateau.best)
        self._cooling = 0

    def run(self, loop: LoopView) -> None:
        """Compare the newest value with the best, and lower the rate of the steps to come on a plateau."""
        self._plateau.update(loop.step, loop.metrics[self._monitor])
        if self._cooling:
            self._cooling -= 1
            self._plateau.count = 0
        if not self._plateau.is_reached:
            return
        conf, base = self.settings, loop.learning_rate / loop.rate_factor if loop.rate_factor else 0.0
        factor = max(loop.rate_factor * conf.factor, conf.min_factor, conf.min_lr / base if base else 0.0)
        if factor < loop.rate_factor:
            loop.set_rate_factor(loop.step, factor)
        self._plateau.count, self._cooling = 0, self.settings.cooldown

    def state_dict(self) -> State:
        """Return the best value, the count, and the rest of the cooldown."""
        return {**self._plateau.state_dict(), "cooling": self._cooling}

    def load_state(self, state: State) -> None:
        """Go on from these."""
        self._plateau.load_state(state)
        self._cooling = checked_number(state.get("cooling", 0))

"""Early stopping, keeping the best params, lowering the learning rate on a plateau, and stopping on time."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator
from numbers import Real
from typing import Annotated, Any

import numpy as np

from dsinga.base.arguments import check_whole, checked
from dsinga.base.arrays import NamedParams
from dsinga.base.errors import UserError
from dsinga.base.registry import register
from dsinga.checkpoint import Checkpoint, export_safetensors
from dsinga.extensions.best_value import Plateau, checked_number, metric_name
from dsinga.extensions.extension import ARGUMENTS, Extension, LoopView, State
from dsinga.extensions.triggers import AtEnd, OnMetric, WhenBest
from dsinga.job import MonitorMode
from dsinga.job.component import Fault, Settings, required, setting
from dsinga.job.limits import Count, Natural, NonNegative, Positive, Range
from dsinga.reading.checked_job import names_of_training
from dsinga.training import Metrics

BEST_FILE = "best.safetensors"


@register("extension", kKeepBest=2)
class KeepBest(Extension):
    """Keeps the params with the best value of a metric, and makes them the result of the run.

    At the end it also writes them to ``best.safetensors`` in the workspace. Checkpoints keep the params of their own
    step.
    """

    class Conf(Settings):
        """Settings of kKeepBest."""

        monitor: str = required("the name of a metric, by phase and name, as in 'val/loss'")
        min_delta: NonNegative = setting(0.0, "the least improvement that counts")
        mode: MonitorMode = setting(
            MonitorMode.auto,
            "whether lower ('min') or higher ('max') values are better; 'auto' goes by the metric's name",
        )

    settings: Conf
    returns_params = True

    def set_up(self) -> None:
        """Run this extension at each new best value of the metric."""
        self.trigger = WhenBest(self.settings.monitor, self.settings.mode.name, self.settings.min_delta)
        self._monitor = self.trigger.monitor
        self._best: State = {}

    def run(self, loop: LoopView) -> None:
        """Copy the params of this step, which are the best so far."""
        self._best = {"step": loop.step, "value": loop.metrics[self._monitor], "params": loop.params()}

    def finish(self, loop: LoopView) -> None:
        """Make the best params the result of the run, and write them to the workspace."""
        if not self._best:
            what = "been NaN each time" if self._monitor in loop.metrics else "not been recorded"
            loop.remark(f"the params are those of the last step: {self._monitor} has {what}, so that none was the best")
            return
        step, value, params = self._best["step"], self._best["value"], self._best["params"]
        loop.return_params(
            params, f"the params are those after {step} steps, with the best {self._monitor}: {value:.4g}", step
        )
        if loop.workspace is not None:
            named = NamedParams(params, names_of_training(loop.job.neuralnet))
            export_safetensors(Checkpoint(step, named, {}, {}), loop.workspace / BEST_FILE)

    def state_dict(self) -> State:
        """Return the best params, their step and value, for a checkpoint."""
        return self._best

    def load_state(self, state: State) -> None:
        """Restore the best params from a checkpoint."""
        if state:
            checked_number(state["step"])
            checked_number(state["value"])
            if not all(isinstance(array, np.ndarray) for array in state["params"].values()):
                raise TypeError("params are not arrays")
        self._best = state


@register("extension", kEarlyStopping=1)
class EarlyStopping(Extension):
    """Ends training if a metric has not improved for ``patience`` values in a row.

    Prechelt, Early Stopping - But When? (1998).

    Examples:
        >>> from dsinga import nn
        >>> stop = nn.callbacks.EarlyStopping("val_loss", patience=3, restore_best_weights=True)
    """

    class Conf(Settings):
        """Settings of kEarlyStopping."""

        monitor: str = setting("val/loss", "the name of a metric, by phase and name, as in 'val/loss'")
        patience: Count = setting(5, "the number of values in a row without improvement after which training ends")
        min_delta: NonNegative = setting(0.0, "the least improvement that counts")
        mode: MonitorMode = setting(
            MonitorMode.auto,
            "whether lower ('min') or higher ('max') values are better; 'auto' goes by the metric's name",
        )
        restore_best_weights: bool = setting(
            False, "whether the params with the best value are the result, as KeepBest does it"
        )
        baseline: float | None = setting(None, "a value to beat: until then every value counts as no improvement")
        start_from_epoch: Natural = setting(0, "the number of first values that do not count")

    settings: Conf

    def set_up(self) -> None:
        """Run this extension whenever the metric is recorded."""
        conf = self.settings
        self._monitor = metric_name(conf.monitor)
        self._plateau = Plateau(conf.monitor, conf.patience, conf.mode.name, conf.min_delta, conf.baseline)
        self._values = 0  # that were seen
        self.trigger = OnMetric(conf.monitor, self._plateau.best)
        self._keep = KeepBest(conf.monitor, conf.min_delta, conf.mode.name) if conf.restore_best_weights else None
        self.returns_params = conf.restore_best_weights

    def start(self, loop: LoopView) -> None:
        """Stop a resumed run at once if it had already waited for ``patience`` values."""
        self._stop_on_plateau(loop)

    def run(self, loop: LoopView) -> None:
        """Compare the newest value with the best, and stop if there was no improvement for long."""
        self._values += 1
        if self._values <= self.settings.start_from_epoch:
            return
        self._plateau.update(loop.step, loop.metrics[self._monitor])
        if self._keep is not None and self._plateau.best_step == loop.step:
            self._keep.run(loop)
        self._stop_on_plateau(loop)

    def finish(self, loop: LoopView) -> None:
        """Make the best params the result of the run, if requested."""
        if self._keep is not None:
            self._keep.finish(loop)

    def _stop_on_plateau(self, loop: LoopView) -> None:
        plateau = self._plateau
        if plateau.is_reached:
            values = "value" if plateau.count == 1 else f"{plateau.count} values"
            if plateau.best.value is None:
                loop.stop(f"{self._monitor} has been NaN in the first {values}")
                return
            best = f" ({plateau.best.value:.4g} after {plateau.best_step} steps)"
            loop.stop(f"{self._monitor} has not improved on its best{best} in the last {values}")

    def state_dict(self) -> State:
        """Return the best value, the counts, and the best params if requested, for a checkpoint."""
        state = {**self._plateau.state_dict(), "values": self._values}
        return state if self._keep is None else {**state, "keep": self._keep.state_dict()}

    def load_state(self, state: State) -> None:
        """Restore the best value and the counts from a checkpoint."""
        self._plateau.load_state(state)
        self._values = checked_number(state.get("values", 0))
        if self._keep is not None:
            self._keep.load_state(state.get("keep", {}))


@register("extension", kStopBeyond=8)
class StopBeyond(Extension):
    """Ends training when a metric is above or below a value."""

    class Conf(Settings):
        """Settings of kStopBeyond."""

        monitor: str = setting("val/loss", "the name of a metric, by phase and name, as in 'val/loss'")
        above: float | None = setting(None, "the value above which the metric ends training")
        below: float | None = setting(None, "the value below which it does")

        def faults(self) -> Iterator[Fault]:
            """Yield a fault if no bound is given, or if every value would end training."""
            if self.above is None and self.below is None:
                yield Fault("extension kStopBeyond needs above, as in above: 0.99, or below, as in below: 0.1")
            elif self.above is not None and self.below is not None and self.above < self.below:
                text = f"above is {self.above:g} and below {self.below:g}, so that every value ends training"
                yield Fault(f"{text}; give an above that is not less", "above")

    settings: Conf

    def set_up(self) -> None:
        """Run this extension whenever the metric is recorded."""
        self._monitor = metric_name(self.settings.monitor)
        self.trigger = OnMetric(self.settings.monitor)

    def run(self, loop: LoopView) -> None:
        """Stop if the newest value is beyond a bound."""
        value, above, below = loop.metrics[self._monitor], self.settings.above, self.settings.below
        if above is not None and value > above:
            loop.stop(f"{self._monitor} is {value:.4g}, above {above:g}")
        elif below is not None and value < below:
            loop.stop(f"{self._monitor} is {value:.4g}, below {below:g}")


@register("extension", kReduceOnPlateau=3)
class ReduceOnPlateau(Extension):
    """Multiplies the learning rate by ``factor`` if a metric has not improved for ``patience`` values in a row.

    The job's schedule continues; its rates are multiplied.
    """

    class Conf(Settings):
        """Settings of kReduceOnPlateau."""

        monitor: str = required("the name of a metric, by phase and name, as in 'val/loss'")
        factor: Annotated[float, Range(0, 1, open_low=True, open_high=True)] = setting(
            0.1, "what the rate is multiplied by"
        )
        patience: Count = setting(
            3, "the number of values in a row without improvement after which the rate is lowered"
        )
        min_delta: NonNegative = setting(0.0, "the least improvement that counts")
        mode: MonitorMode = setting(
            MonitorMode.auto,
            "whether lower ('min') or higher ('max') values are better; 'auto' goes by the metric's name",
        )
        cooldown: Natural = setting(0, "how many values are not counted after the rate was lowered")
        min_factor: NonNegative = setting(0.0, "the product of all factors does not fall below this")
        min_lr: NonNegative = setting(0.0, "the learning rate is not lowered below this")

    settings: Conf

    def set_up(self) -> None:
        """Run this extension whenever the metric is recorded."""
        conf = self.settings
        self._monitor = metric_name(conf.monitor)
        self._plateau = Plateau(conf.monitor, conf.patience, conf.mode.name, conf.min_delta)
        self.trigger = OnMetric(conf.monitor, self._plateau.best)
        self._cooling = 0

    def run(self, loop: LoopView) -> None:
        """Compare the newest value with the best, and lower the rate on a plateau."""
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
        """Return the best value, the count, and the remaining cooldown, for a checkpoint."""
        return {**self._plateau.state_dict(), "cooling": self._cooling}

    def load_state(self, state: State) -> None:
        """Restore the best value, the count, and the cooldown from a checkpoint."""
        self._plateau.load_state(state)
        self._cooling = checked_number(state.get("cooling", 0))


LETTERS = {"s": 1, "m": 60, "h": 3600, "d": 86400}
WORDS = {"sec": 1, "second": 1, "min": 60, "minute": 60, "hour": 3600, "day": 86400}
UNITS = LETTERS | WORDS | {f"{word}s": seconds for word, seconds in WORDS.items()}
PART = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([a-z]+)\s*")
# Time that is left unused beyond what rounds and checkpoints took so far: a share of all the time, and a maximum.
MARGIN_SHARE, MARGIN_SECONDS = 0.05, 30.0


@functools.partial(checked, instead=ARGUMENTS)
def ReduceLROnPlateau(
    monitor: str = "val_loss",
    factor: float = 0.1,
    patience: int = 10,
    verbose: Any = 0,
    mode: str = "auto",
    min_delta: float = 1e-4,
    cooldown: int = 0,
    min_lr: float = 0.0,
) -> ReduceOnPlateau:
    """Return an extension that lowers the learning rate if a metric stops improving, with Keras's defaults.

    Keras counts the last value of a cooldown; ReduceOnPlateau does not. ``verbose`` has no effect.
    """
    check_whole("cooldown", cooldown, 0)
    return ReduceOnPlateau(
        monitor, factor, patience, min_delta, mode, cooldown=max(0, cooldown - 1), min_lr=min_lr, verbose=verbose
    )


@register("extension", kStopOnTime=4)
class StopOnTime(Extension):
    """Ends training before a given time is over, with a checkpoint to resume from.

    Time counts from the call of ``dsinga.train``. A twentieth of it, at most 30 seconds, is kept as margin. Final
    actions of the job, such as a last test, are left to the resumed run.

    In Python ``time`` may also be a number of seconds.
    """

    class Conf(Settings):
        """Settings of kStopOnTime."""

        time: str | None = setting(None, "a text such as '2h', '90 min' or '1h 30m', in place of seconds")
        seconds: Positive | None = setting(None, "after how many seconds training ends")

        def faults(self) -> Iterator[Fault]:
            """Yield a fault unless exactly one limit is given."""
            if (self.seconds is None) == (self.time is None):
                yield Fault(
                    'extension kStopOnTime needs either seconds, as in seconds: 7200, or time, as in time: "2h"'
                )

    settings: Conf
    pauses = False  # it looks at the clock only

    def __init__(self, time: float | str | None = None, seconds: float | None = None, **settings: Any):
        super().__init__(str(time) if isinstance(time, Real) else time, seconds, **settings)

    def set_up(self) -> None:
        """Compute when to stop, and the margin."""
        self.trigger = AtEnd()
        self._seconds = self.settings.seconds or parse_seconds(self.settings.time)
        self._margin = min(MARGIN_SHARE * self._seconds, MARGIN_SECONDS)

    def observe(self, loop: LoopView, sums: Metrics) -> None:
        """Stop training while there is enough time left for a checkpoint."""
        if not loop.stopped and loop.seconds + loop.seconds_to_stop + self._margin >= self._seconds:
            loop.stop(f"its time of {self._seconds:g} s is nearly over", resumable=True)

    def run(self, loop: LoopView) -> None:
        """Do nothing: :meth:`observe` checks the time after each step."""


def parse_seconds(time: Any) -> float:
    """Return the seconds in a number or a text such as "1h 30m". Raises UserError for others."""
    seconds = _sum_parts(time) if isinstance(time, str) else float(time) if isinstance(time, Real) else 0.0
    if not seconds > 0:
        raise UserError(f'{time!r} is no time to stop after; give seconds above 0, or a text such as "2h" or "90 min"')
    return seconds


def _sum_parts(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        pass
    parts = PART.findall(text.lower())
    if PART.sub("", text.lower()) or not all(unit in UNITS for _, unit in parts):
        return 0.0
    return sum(float(number) * UNITS[unit] for number, unit in parts)

"""Learning-rate schedules (SINGA's LRGenerator), and the decay of averages of params."""

from __future__ import annotations

import contextlib
import itertools
import math
from abc import ABC, abstractmethod
from bisect import bisect_right
from collections.abc import Callable, Iterator
from typing import Any

from dsinga.base.errors import UserError
from dsinga.base.registry import is_user_code, register
from dsinga.job import EMAConf, LRGenConf
from dsinga.job.component import Configured, Fault, Settings, error_note, required, resolve, setting
from dsinga.job.functions import find_function
from dsinga.job.limits import Count, Natural, NonNegative, Positive, Unit

Rate = Callable[[int], float]


def schedule(conf: LRGenConf) -> Rate:
    """Return a job's learning rate as a function of the step, counted from 0.

    Register your own by ``@register("schedule", "name")``: a subclass of :class:`Schedule`, or a function that maps the
    LRGenConf to a function of the step. A user's rate must be finite and at least 0.
    """
    with error_note("in the schedule of the learning rate"):
        rate: Rate = resolve(conf)(conf)
        if not callable(rate):
            message = f"schedule {conf.type_name!r} must return a function of the step, not {rate!r}"
            raise conf.error(message, "user_type")
        if is_user_code(rate):
            rate = _checked(rate, conf)
            rate(0)
    if conf.start_step or conf.minimum_lr is not None:
        rate = _bounded(rate, conf)
    return _warmed_up(rate, conf) if conf.warmup_steps else rate


def _checked(rate: Rate, conf: LRGenConf) -> Rate:
    """Check each rate of a user's schedule: JobError unless it is finite and at least 0."""
    least = 0.0 if conf.minimum_lr is None else -math.inf

    return lambda step: _number(rate(step), f"schedule {conf.type_name!r}", step, conf, least)


def _number(value: Any, what: str, step: int, conf: LRGenConf, least: float = 0.0) -> float:
    """Check a rate from user code: JobError unless it is a finite number of at least ``least``."""
    with contextlib.suppress(TypeError, ValueError):  # a number of JAX or PyTorch, too
        number = float(value)
        if math.isfinite(number) and number >= least:
            return number
    raise conf.error(f"{what} gives {value!r} at step {step}; a rate is at least 0 and finite", "user_type")


def _bounded(rate: Rate, conf: LRGenConf) -> Rate:
    """Keep the rate at base_lr before start_step, and at minimum_lr or above afterwards (cxxnet's UpdaterParam)."""
    start, base, least = conf.start_step, conf.base_lr, conf.minimum_lr or 0.0
    return lambda step: base if step < start else max(rate(step), least)


def half_cosine(share: float) -> float:
    """Return (1 + cos(pi·share)) / 2, which falls from 1 to 0."""
    return (1.0 + math.cos(math.pi * share)) / 2.0


def _warmed_up(rate: Rate, conf: LRGenConf) -> Rate:
    """Put a linear warm-up before a schedule: from warmup_lr to the schedule's first rate in warmup_steps.

    At step t of n, the rate is warmup_lr + (rate(0) - warmup_lr)·t / n.
    """
    count, low, high = conf.warmup_steps, conf.warmup_lr, rate(0)
    return lambda step: low + (high - low) * step / count if step < count else rate(step - count)


class Schedule(Configured, ABC):
    """Base class of schedules: the learning rate as a function of the step, counted from 0.

    A subclass may declare settings as ``Conf``; the job's are then in ``settings``.

    >>> import dsinga
    >>> from dsinga.job import Settings, required
    >>> from dsinga.job.limits import Count
    >>> from dsinga.training import Schedule
    >>> @dsinga.register("schedule", "Triangle")  # nn.SGD(nn.Triangle(0.1, half_steps=20))
    ... class Triangle(Schedule):
    ...     class Conf(Settings):
    ...         half_steps: Count = required("the number of steps from zero to base_lr, and back")
    ...
    ...     def __call__(self, step):
    ...         return self.base * abs((step / self.settings.half_steps + 1) % 2 - 1)

    A job names it ``learning_rate { user_type: "Triangle" base_lr: 0.1 triangle_conf { half_steps: 20 } }``.
    """

    conf: LRGenConf

    def __init__(self, conf: LRGenConf):
        super().__init__(conf)
        self.base = conf.base_lr

    @abstractmethod
    def __call__(self, step: int) -> float:
        """Return the learning rate at a step."""


@register("schedule", kFixed=0)
class Fixed(Schedule):
    """A constant learning rate: base_lr at every step."""

    def __call__(self, step: int) -> float:
        return self.base


@register("schedule", kFunction=12)
class FunctionOfStep(Schedule):
    """A learning rate that a user's function of the step, from 0, returns; base_lr has no effect."""

    class Conf(Settings, name="FunctionOfStepConf", field="function_conf"):
        """Settings of kFunction."""

        function: str = required('the function: "module:function", or a name by dsinga.register("function", ...)')

    settings: Conf

    def __init__(self, conf: LRGenConf):
        super().__init__(conf)
        try:
            self.function = find_function(self.settings.function)
        except UserError as error:
            raise self.settings.error(str(error), "function") from error.__cause__

    def __call__(self, step: int) -> float:
        return _number(self.function(step), f"the function {self.settings.function!r}", step, self.conf)


@register("schedule", kInverseT=1)
class InverseT(Schedule):
    """A rate that falls as base / (1 + step / final_lr)."""

    class Conf(Settings):
        """Settings of kInverseT."""

        final_lr: Positive = required("the number of steps after which the rate is half of base_lr")

    settings: Conf

    def __call__(self, step: int) -> float:
        return self.base / (1.0 + step / self.settings.final_lr)


@register("schedule", kInverse=2)
class Inverse(Schedule):
    """A rate that falls by a power: base·(1 + gamma·⌊step / change_freq⌋)^(-pow); cxxnet's polydecay."""

    class Conf(Settings, needed=True):
        """Settings of kInverse."""

        gamma: NonNegative = setting(1.0, "what each change adds to the base of the power")
        pow: NonNegative = setting(0.0, "the negative of the exponent")
        change_freq: Count = setting(1, "every how many steps the rate changes")

    settings: Conf

    def __call__(self, step: int) -> float:
        conf = self.settings
        rate: float = self.base * (1.0 + conf.gamma * (step // conf.change_freq)) ** -conf.pow
        return rate


@register("schedule", kExponential=3)
class Exponential(Schedule):
    """An exponential fall: base·gamma^(step / change_freq), without rounding; cxxnet's expdecay."""

    class Conf(Settings):
        """Settings of kExponential."""

        change_freq: Count = required("the number of steps in which the rate is multiplied by gamma")
        gamma: Positive = setting(0.5, "what the rate is multiplied by every change_freq steps")

    settings: Conf

    def __call__(self, step: int) -> float:
        return self.base * self.settings.gamma ** (step / self.settings.change_freq)


@register("schedule", kLinear=4)
class Linear(Schedule):
    """A linear change from base to final_lr at step change_freq: (1 - r)·base + r·final_lr, r = step / change_freq.

    After change_freq the rate may fall below 0.
    """

    class Conf(Settings):
        """Settings of kLinear."""

        change_freq: Count = required("the number of steps from base_lr to final_lr")
        final_lr: NonNegative = required("the rate after change_freq steps")

    settings: Conf

    def __call__(self, step: int) -> float:
        freq, final = self.settings.change_freq, self.settings.final_lr
        return (1.0 - step / freq) * self.base + step / freq * final


@register("schedule", kStep=5)
class Step(Schedule):
    """A rate that is multiplied by gamma every change_freq steps: base·gamma^⌊step / change_freq⌋; cxxnet's factor."""

    class Conf(Settings):
        """Settings of kStep."""

        gamma: NonNegative = setting(1.0, "what the rate is multiplied by at each change")
        change_freq: Count = required("every how many steps the rate changes")

    settings: Conf

    def __call__(self, step: int) -> float:
        return self.base * self.settings.gamma ** (step // self.settings.change_freq)


@register("schedule", kFixedStep=6)
class FixedStep(Schedule):
    """A rate from a table: step_lr[i] of the last step[i] <= step, step_lr[0] before step[0].

    base_lr has no effect.
    """

    class Conf(Settings):
        """Settings of kFixedStep."""

        step: list[Natural] = required("the steps from which the rates of step_lr hold, in rising order")
        step_lr: list[NonNegative] = required("the rates, as many as step has")

        def faults(self) -> Iterator[Fault]:
            if not self.step or len(self.step) != len(self.step_lr):
                counts = f"{len(self.step)} step and {len(self.step_lr)} step_lr"
                yield Fault(f"fixedstep_conf needs as many step as step_lr, at least one of each; it has {counts}")
            for item, (before, after) in enumerate(itertools.pairwise(self.step), start=1):
                if after <= before:
                    yield Fault(f"the steps of fixedstep_conf must rise; {after} follows {before}", "step", item)

    settings: Conf

    def __call__(self, step: int) -> float:
        return self.settings.step_lr[max(bisect_right(self.settings.step, step) - 1, 0)]


@register("schedule", kCosine=7)
class Cosine(Schedule):
    """A fall by half a cosine to alpha·base: base·(alpha + (1 - alpha)·(1 + cos(pi·r)) / 2), r = step / change_freq.

    Loshchilov and Hutter, SGDR: Stochastic Gradient Descent with Warm Restarts (2017), without restarts: r stays 1,
    as in Keras. PyTorch's CosineAnnealingLR rises again after that.
    """

    class Conf(Settings):
        """Settings of kCosine."""

        change_freq: Count = required("the number of steps from base_lr to the last rate")
        alpha: Unit = setting(0.0, "the last rate, as a share of base_lr")

    settings: Conf

    def __call__(self, step: int) -> float:
        alpha, share = self.settings.alpha, min(step / self.settings.change_freq, 1.0)
        return self.base * (alpha + (1.0 - alpha) * half_cosine(share))


def decay_at(conf: EMAConf | None, step: int) -> float | None:
    """Return the decay d at ``step`` of the averages of params, a = d·a + (1 - d)·w; None if they skip the step.

    The averages are in the updater's state, in the slot ``EMA_SLOT``. The first update has d = 0, which copies the
    params. Later d is ``decay`` or, with ``warmup``, min(decay, 1 - (1 + t)^(-2/3)) for the t-th, counted from 0, as in
    timm and diffusers.
    """
    if conf is None or (step + 1) % conf.every:
        return None
    count = (step + 1) // conf.every - 1
    if not count:
        return 0.0
    return float(min(conf.decay, 1.0 - (1.0 + count) ** (-2 / 3))) if conf.warmup else conf.decay

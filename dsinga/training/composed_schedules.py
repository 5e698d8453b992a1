"""Learning-rate schedules of several parts: polynomial, cosine restarts, one cycle, and sequences."""

from __future__ import annotations

import itertools
from bisect import bisect_right
from collections.abc import Iterator
from typing import Annotated

from dsinga.base.registry import register
from dsinga.job import LRGenConf, UpdaterConf
from dsinga.job.component import Fault, Settings, required, setting
from dsinga.job.limits import Count, Fraction, NonNegative, Positive, Range, Unit
from dsinga.training.schedules import Rate, Schedule, half_cosine, schedule

AtLeastOne = Annotated[float, Range(1)]


@register("schedule", kPolynomial=8)
class Polynomial(Schedule):
    """A polynomial fall from base to final_lr: (base - final_lr)·(1 - r)^power + final_lr, r = step / change_freq.

    r is at most 1. It is Keras' PolynomialDecay and, with final_lr 0, PyTorch's PolynomialLR.
    """

    class Conf(Settings):
        """Settings of kPolynomial."""

        change_freq: Count = required("the number of steps from base_lr to final_lr")
        final_lr: NonNegative = setting(0.0, "the rate from step change_freq on")
        power: Positive = setting(1.0, "the exponent: 1 for a line")

    settings: Conf

    def __call__(self, step: int) -> float:
        conf = self.settings
        left = 1.0 - min(step / conf.change_freq, 1.0)
        return float((self.base - conf.final_lr) * left**conf.power + conf.final_lr)


@register("schedule", kCosineRestarts=9)
class CosineRestarts(Schedule):
    """Cosine annealing with restarts: half a cosine from base to alpha·base in change_freq steps, again and again.

    Loshchilov and Hutter, SGDR: Stochastic Gradient Descent with Warm Restarts (2017). The rate in period i, counted
    from 0, is base·(alpha + (1 - alpha)·m_mul^i·(1 + cos(pi·r)) / 2). The period lasts change_freq·t_mul^i steps; r is
    the share that has passed. With the defaults it is PyTorch's CosineAnnealingWarmRestarts; Keras' CosineDecayRestarts
    has t_mul 2.
    """

    class Conf(Settings, field="restarts_conf"):
        """Settings of kCosineRestarts."""

        change_freq: Count = required("the number of steps of the first period")
        t_mul: AtLeastOne = setting(1.0, "how many times longer each period is than the one before it")
        m_mul: Positive = setting(1.0, "what the height of the cosine is multiplied by in each period")
        alpha: Unit = setting(0.0, "the lowest rate, as a share of base_lr")

    settings: Conf

    def __call__(self, step: int) -> float:
        conf = self.settings
        period, share = self._position(step)
        height = (1.0 - conf.alpha) * conf.m_mul**period
        return float(self.base * (conf.alpha + height * half_cosine(share)))

    def _position(self, step: int) -> tuple[int, float]:
        """Return which period a step is in, and the share of the period that has passed."""
        length = float(self.settings.change_freq)
        if self.settings.t_mul == 1.0:
            return step // self.settings.change_freq, step % self.settings.change_freq / length
        start = 0.0
        for period in itertools.count():
            if step < start + length:
                return period, (step - start) / length
            start += length
            length *= self.settings.t_mul
        raise AssertionError


@register("schedule", kOneCycle=10)
class OneCycle(Schedule):
    """One cycle: half a cosine up from base / div_factor to base, and one down to base / (div_factor·final_div_factor).

    Smith and Topin, Super-Convergence (2019), as PyTorch's OneCycleLR with two phases. The rate is base at step
    pct_start·change_freq - 1, and lowest from step change_freq - 1. ``momentum_conf { one_cycle: true }`` moves the
    momentum the other way.
    """

    class Conf(Settings):
        """Settings of kOneCycle."""

        change_freq: Count = required("the number of steps of the cycle")
        pct_start: Fraction = setting(0.3, "the share of the steps in which the rate rises")
        div_factor: AtLeastOne = setting(25.0, "how many times the first rate goes into base_lr")
        final_div_factor: AtLeastOne = setting(1e4, "how many times the last rate goes into the first one")

    settings: Conf

    def __call__(self, step: int) -> float:
        conf = self.settings
        first = self.base / conf.div_factor
        low = first if step <= self._peak else first / conf.final_div_factor
        return low + (self.base - low) * self.share(step)

    @property
    def _peak(self) -> float:
        """The step, not always whole, at which the rate is highest."""
        return max(self.settings.pct_start * self.settings.change_freq - 1.0, 0.0)

    def share(self, step: int) -> float:
        """Return how high a step's rate is, from 0 (the lowest) to 1 (base_lr)."""
        last, peak = self.settings.change_freq - 1, self._peak
        if step <= peak:
            return half_cosine(1.0 - step / peak) if peak else 1.0
        return half_cosine(min((step - peak) / (last - peak), 1.0)) if last > peak else 0.0


@register("schedule", kSequential=11)
class SequentialSchedule(Schedule):
    """Several schedules, one after another; each counts its steps from its boundary.

    It is PyTorch's SequentialLR with the boundaries as milestones; base_lr has no effect.
    """

    class Conf(Settings, name="SequentialConf", needed=True):
        """Settings of kSequential."""

        schedule: list[LRGenConf] = setting([], "the schedules, at least one, each with its type and base_lr")
        boundary: list[Count] = setting([], "the steps at which the second and the further schedules begin")

        def faults(self) -> Iterator[Fault]:
            if not self.schedule or len(self.boundary) != len(self.schedule) - 1:
                text = f"{len(self.schedule)} schedule and {len(self.boundary)} boundary"
                yield Fault(f"sequential_conf needs one boundary less than it has schedules; it has {text}")
            for item, (before, after) in enumerate(itertools.pairwise(self.boundary), start=1):
                if after <= before:
                    text = f"the boundaries of sequential_conf must rise; {after} follows {before}"
                    yield Fault(text, "boundary", item)

    settings: Conf

    def __init__(self, conf: LRGenConf):
        super().__init__(conf)
        self._rates = [schedule(part) for part in self.settings.schedule]
        self._starts = [0, *self.settings.boundary]

    def __call__(self, step: int) -> float:
        part = bisect_right(self._starts, step) - 1
        return self._rates[part](step - self._starts[part])


def momentum_share(conf: UpdaterConf) -> Rate:
    """Return a function of the step: how far the momentum has moved from base to final, from 0 to 1.

    It is step / saturation_step, at most 1, as in cxxnet, or with ``one_cycle`` :meth:`OneCycle.share` of the learning
    rate.
    """
    moving, rate = conf.momentum_conf, conf.learning_rate
    assert moving is not None
    if not moving.one_cycle:
        if (end := moving.saturation_step) is None:
            raise moving.error("momentum_conf needs saturation_step: the step at which it is final_momentum")
        return lambda step: min(step / end, 1.0)
    if moving.saturation_step is not None:
        raise moving.error("gives one_cycle and saturation_step; leave one out", "saturation_step")
    if rate.type_name != "kOneCycle":
        raise moving.error("one_cycle needs learning_rate { type: kOneCycle }", "one_cycle")
    cycle, warmup = OneCycle(rate), rate.warmup_steps
    return lambda step: cycle.share(max(step - warmup, 0))

"""Learning-rate schedules (SINGA's LRGenerator): functions of the step."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable
from numbers import Real
from typing import Any

from dsinga.job import LRGenConf, Message
from dsinga.registry import register
from dsinga.training.resolve import error_note, resolve

Schedule = Callable[[int], float]


def schedule(conf: LRGenConf) -> Schedule:
    """Return the learning rate as a function of the step, counted from 0.

    A user's schedule is registered as ``@register("schedule", "name")``: a function (or class) that takes the LRGenConf
    and returns a function (or callable object) of the step. Raises JobError where the configuration of the type is
    missing or wrong, or a user's schedule does not return a finite number at step 0.
    """
    with error_note("in the schedule of the learning rate"):
        rate: Schedule = resolve(conf)(conf)
        if not callable(rate):
            message = f"schedule {conf.user_type!r} must return a function of the step, not {rate!r}"
            raise conf.error(message, "user_type")
        first: Any = rate(0)
    if not isinstance(first, Real) or not math.isfinite(first):
        raise conf.error(f"schedule {conf.user_type!r} gives {first!r} at step 0; it must give a number", "user_type")
    return _bounded(rate, conf) if conf.start_step or conf.minimum_lr is not None else rate


def _bounded(rate: Schedule, conf: LRGenConf) -> Schedule:
    """Return base_lr before start_step, and then ``rate``, but no less than minimum_lr (cxxnet's UpdaterParam)."""
    start, base, least = conf.start_step, conf.base_lr, conf.minimum_lr or 0.0
    return lambda step: base if step < start else max(rate(step), least)


def part(conf: LRGenConf, field: str) -> Any:
    """Return the message in ``field``; raise JobError where it is missing."""
    value = getattr(conf, field)
    if value is None:
        raise conf.error(f"learning rate {conf.type.name} needs {field} {{ ... }}", "type")
    return value


def positive(conf: Message, field: str) -> float:
    """Return the number in ``field``; raise JobError where it is zero or less."""
    value: float = getattr(conf, field)
    if value <= 0:
        raise conf.error(f"{field} must be greater than 0, not {value}", field)
    return value


@register("schedule", kFixed=0)
def fixed(conf: LRGenConf) -> Schedule:
    """Return base_lr at every step."""
    base = conf.base_lr
    return lambda step: base


@register("schedule", kInverseT=1)
def inverse_t(conf: LRGenConf) -> Schedule:
    """Return base / (1 + step / final_lr)."""
    base, final = conf.base_lr, positive(part(conf, "inverset_conf"), "final_lr")
    return lambda step: base / (1.0 + step / final)


@register("schedule", kInverse=2)
def inverse(conf: LRGenConf) -> Schedule:
    """Return base·(1 + gamma·⌊step / change_freq⌋)^(-pow)."""
    base, inv = conf.base_lr, part(conf, "inverse_conf")
    gamma, power, freq = inv.gamma, inv.pow, int(positive(inv, "change_freq"))
    if gamma < 0:
        raise inv.error(f"gamma must be 0 or more, not {gamma}", "gamma")
    return lambda step: base * (1.0 + gamma * (step // freq)) ** -power


@register("schedule", kExponential=3)
def exponential(conf: LRGenConf) -> Schedule:
    """Return base·gamma^(step / change_freq), where the division is not rounded."""
    base, exp = conf.base_lr, part(conf, "exponential_conf")
    freq, gamma = positive(exp, "change_freq"), positive(exp, "gamma")
    return lambda step: base * gamma ** (step / freq)


@register("schedule", kLinear=4)
def linear(conf: LRGenConf) -> Schedule:
    """Return (1 - r)·base + r·final_lr with r = step / change_freq; after change_freq it may fall below 0."""
    base, lin = conf.base_lr, part(conf, "linear_conf")
    freq, final = positive(lin, "change_freq"), lin.final_lr
    return lambda step: (1.0 - step / freq) * base + step / freq * final


@register("schedule", kStep=5)
def stepwise(conf: LRGenConf) -> Schedule:
    """Return base·gamma^⌊step / change_freq⌋."""
    base, steps = conf.base_lr, part(conf, "step_conf")
    freq, gamma = int(positive(steps, "change_freq")), steps.gamma
    return lambda step: base * gamma ** (step // freq)


@register("schedule", kFixedStep=6)
def fixed_step(conf: LRGenConf) -> Schedule:
    """Return step_lr[i] of the last step[i] <= step, step_lr[0] before step[0]; base_lr has no effect."""
    table = part(conf, "fixedstep_conf")
    steps, rates = list(table.step), list(table.step_lr)
    if not steps or len(steps) != len(rates):
        raise table.error(f"needs as many step_lr as step, at least one, not {len(rates)} and {len(steps)}", "step_lr")
    if any(first >= second for first, second in zip(steps, steps[1:], strict=False)):
        raise table.error(f"the steps must rise, not {steps}", "step")
    return lambda step: rates[max(bisect_right(steps, step) - 1, 0)]

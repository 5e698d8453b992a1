"""Learning rate schedules with the names of Keras, and schedules of the momentum."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ParamSpec, TypedDict, Unpack

from dsinga.base.components import built_in
from dsinga.base.errors import UserError
from dsinga.base.registry import find
from dsinga.job import ChangeMethod, LRGenConf, MomentumConf
from dsinga.nn.words.derived import Derived, derived_function, settings_field, type_fields
from dsinga.nn.words.keras_arguments import checked, configures, missing_names
from dsinga.nn.words.rates import Rate, component_fields, learning_rate_conf, of_settings

P = ParamSpec("P")


class ScheduleArguments(TypedDict, total=False):
    """Further keyword arguments of every schedule, explained by :func:`scheduled_rate`."""

    minimum_lr: float | None
    start_step: int
    warmup_steps: int
    warmup_lr: float


def scheduled_rate(
    type: str,
    initial_learning_rate: float,
    settings: Mapping[str, Any],
    *,
    minimum_lr: float | None = None,
    start_step: int = 0,
    warmup_steps: int = 0,
    warmup_lr: float = 0.0,
) -> LRGenConf:
    """Return the configuration of a schedule of any type, with the arguments that all schedules share.

    Args:
        initial_learning_rate: rate at the beginning.
        minimum_lr: least rate.
        start_step: step before which the rate is the initial one.
        warmup_steps: number of first steps, in which the rate rises to the initial one; the schedule follows.
        warmup_lr: rate at the beginning of these steps.
    """
    return LRGenConf(
        base_lr=initial_learning_rate,
        minimum_lr=minimum_lr,
        start_step=start_step,
        warmup_steps=warmup_steps,
        warmup_lr=warmup_lr,
        **component_fields("schedule", ChangeMethod, type, settings),
    )


def schedule(function: Callable[P, LRGenConf]) -> Callable[P, LRGenConf]:
    """Decorate a function that calls :func:`scheduled_rate` to check its arguments."""
    return configures(scheduled_rate, function)


class LearningRateSchedule:
    """Base class of users' schedules, as in Keras: ``__call__(self, step)`` returns the learning rate."""


@schedule
def ExponentialDecay(
    initial_learning_rate: float,
    decay_steps: int,
    decay_rate: float,
    staircase: bool = False,
    **common: Unpack[ScheduleArguments],
) -> LRGenConf:
    """Exponential decay of the learning rate: initial·decay_rate^(step / decay_steps) (kExponential, kStep).

    Args:
        decay_steps: number of steps in which the rate is multiplied by ``decay_rate``.
        decay_rate: what the rate is multiplied by.
        staircase: whether the exponent is rounded down.
    """
    settings = {"gamma": decay_rate, "change_freq": decay_steps}
    return scheduled_rate("kStep" if staircase else "kExponential", initial_learning_rate, settings, **common)


@schedule
def CosineDecay(
    initial_learning_rate: float,
    decay_steps: int,
    alpha: float = 0.0,
    warmup_target: float | None = None,
    **common: Unpack[ScheduleArguments],
) -> LRGenConf:
    """Half a cosine from the initial rate, or ``warmup_target``, down to ``alpha`` times that rate (kCosine).

    Args:
        decay_steps: number of steps from the highest rate to the last.
        alpha: last rate, as a share of the highest.
        warmup_target: rate reached by a rise in the first ``warmup_steps`` steps, as in Keras.

    Examples:
        >>> from dsinga import nn
        >>> rate = nn.CosineDecay(0.1, decay_steps=1000, warmup_steps=100)
        >>> optimizer = nn.SGD(rate)
    """
    settings = {"change_freq": decay_steps, "alpha": alpha}
    if warmup_target is None:
        return scheduled_rate("kCosine", initial_learning_rate, settings, **common)
    if "warmup_lr" in common:
        raise UserError("CosineDecay: other arguments say what warmup_lr is; leave warmup_lr out")
    common["warmup_lr"] = initial_learning_rate
    return scheduled_rate("kCosine", warmup_target, settings, **common)


@schedule
def CosineDecayRestarts(
    initial_learning_rate: float,
    first_decay_steps: int,
    t_mul: float = 2.0,
    m_mul: float = 1.0,
    alpha: float = 0.0,
    **common: Unpack[ScheduleArguments],
) -> LRGenConf:
    """Half a cosine from the initial rate down to ``alpha`` times that rate, again and again (kCosineRestarts).

    Args:
        first_decay_steps: number of steps of the first period.
        t_mul: how many times as long each period is as the one before.
        m_mul: factor of the cosine's height in each period.
        alpha: lowest rate, as a share of the initial one.
    """
    settings = {"change_freq": first_decay_steps, "t_mul": t_mul, "m_mul": m_mul, "alpha": alpha}
    return scheduled_rate("kCosineRestarts", initial_learning_rate, settings, **common)


@schedule
def PolynomialDecay(
    initial_learning_rate: float,
    decay_steps: int,
    end_learning_rate: float = 0.0,
    power: float = 1.0,
    **common: Unpack[ScheduleArguments],
) -> LRGenConf:
    """Polynomial decay of the learning rate: (initial - end)·(1 - step / decay_steps)^power + end (kPolynomial).

    Args:
        decay_steps: number of steps to ``end_learning_rate``.
        end_learning_rate: rate after these steps.
        power: exponent: 1 for a line.
    """
    settings = {"change_freq": decay_steps, "final_lr": end_learning_rate, "power": power}
    return scheduled_rate("kPolynomial", initial_learning_rate, settings, **common)


@schedule
def InverseTimeDecay(
    initial_learning_rate: float,
    decay_steps: float,
    decay_rate: float,
    staircase: bool = False,
    **common: Unpack[ScheduleArguments],
) -> LRGenConf:
    """Inverse-time decay of the learning rate: initial / (1 + decay_rate·step / decay_steps) (kInverseT, kInverse).

    Args:
        decay_steps: number of steps in which the divisor grows by ``decay_rate``; whole for a staircase.
        decay_rate: what the divisor grows by.
        staircase: whether step / decay_steps is rounded down.
    """
    if not staircase:
        return scheduled_rate("kInverseT", initial_learning_rate, {"final_lr": decay_steps / decay_rate}, **common)
    settings = {"gamma": decay_rate, "pow": 1.0, "change_freq": decay_steps}
    return scheduled_rate("kInverse", initial_learning_rate, settings, **common)


@checked
def PiecewiseConstantDecay(boundaries: Sequence[int], values: Sequence[float]) -> LRGenConf:
    """A learning rate of values[0] up to step boundaries[0], then values[1] up to boundaries[1], ... (kFixedStep).

    Args:
        boundaries: last step of each rate except the last rate, in rising order.
        values: rates, one more than there are boundaries.
    """
    if len(values) != len(boundaries) + 1:
        raise UserError(f"{len(boundaries)} boundaries need {len(boundaries) + 1} values, not {len(values)}")
    steps = [0, *(boundary + 1 for boundary in boundaries)]
    fields: dict[str, Any] = {"fixedstep_conf": {"step": steps, "step_lr": list(values)}}
    return LRGenConf(type=ChangeMethod.kFixedStep, **fields)


@schedule
def OneCycle(
    max_lr: float,
    total_steps: int,
    pct_start: float = 0.3,
    div_factor: float = 25.0,
    final_div_factor: float = 1e4,
    **common: Unpack[ScheduleArguments],
) -> LRGenConf:
    """PyTorch's OneCycleLR: half a cosine from max_lr / div_factor up to max_lr, and one down (kOneCycle).

    It ends with max_lr / (div_factor·final_div_factor). nn.OneCycleMomentum moves the momentum the other way.

    Args:
        max_lr: highest rate.
        total_steps: number of steps of the cycle.
        pct_start: share of the steps in which the rate rises.
        div_factor: highest rate divided by the first rate.
        final_div_factor: first rate divided by the last rate.
    """
    settings = {
        "change_freq": total_steps,
        "pct_start": pct_start,
        "div_factor": div_factor,
        "final_div_factor": final_div_factor,
    }
    return scheduled_rate("kOneCycle", max_lr, settings, **common)


@schedule
def SequentialSchedule(
    schedules: Sequence[Rate], boundaries: Sequence[int], **common: Unpack[ScheduleArguments]
) -> LRGenConf:
    """Several schedules one after the other, as PyTorch's SequentialLR and optax' join_schedules (kSequential).

    Args:
        schedules: schedules, or numbers.
        boundaries: steps at which each schedule after the first begins; each counts its steps from 0.
    """
    parts = [learning_rate_conf(rate) for rate in schedules]
    if not parts or len(boundaries) != len(parts) - 1:
        raise UserError(
            f"SequentialSchedule: {len(parts)} schedules and {len(boundaries)} boundaries; give one boundary less, the "
            "steps at which the second and the further schedules begin"
        )
    return scheduled_rate("kSequential", 0.01, {"schedule": parts, "boundary": boundaries}, **common)


@checked
def LinearMomentum(base_momentum: float, final_momentum: float, saturation_step: int) -> MomentumConf:
    """A momentum that moves in a line from ``base_momentum`` at step 0 to ``final_momentum`` at ``saturation_step``."""
    return MomentumConf(base_momentum=base_momentum, final_momentum=final_momentum, saturation_step=saturation_step)


@checked
def OneCycleMomentum(highest: float = 0.95, lowest: float = 0.85) -> MomentumConf:
    """A momentum for nn.OneCycle: ``lowest`` at the highest rate, and rising as the rate falls."""
    return MomentumConf(base_momentum=highest, final_momentum=lowest, one_cycle=True)


@checked
def Schedule(type: str, base_lr: float = 0.01, **fields: Any) -> LRGenConf:
    """A schedule of any type, by its name in jobs or a user's registered name.

    Args:
        type: name, such as "kLinear".
        base_lr: rate at the beginning.
        fields: further fields of ``learning_rate { }`` in a job, such as ``linear_conf={...}``.
    """
    names = type_fields(ChangeMethod, type) if find("schedule", type) else {"type": type}
    return LRGenConf(**names, base_lr=base_lr, **fields)


NAMES = {"change_freq": "decay_steps", "final_lr": "end_learning_rate"}  # of arguments by the setting


def schedule_function(name: str, type: str, cls: Any) -> Callable[..., LRGenConf]:
    """Make the function ``nn.NAME`` for a schedule class without a hand-written function."""

    def function(initial_learning_rate: float, **arguments: Any) -> LRGenConf:
        settings = {setting: arguments.pop(argument) for setting, argument in of_settings(cls, NAMES, arguments)}
        settings_field(name, cls.Conf, settings, NAMES)  # checks the settings
        return scheduled_rate(type, initial_learning_rate, settings, **arguments)

    first = inspect.signature(function).parameters["initial_learning_rate"]
    return schedule(derived_function(name, cls, function, [first], NAMES))


# Schedules of users and other distributions.
schedule_functions = Derived("schedule", schedule_function, lambda name, _: name not in built_in("schedule"), "Decay")

__getattr__ = missing_names(__name__, public="dsinga.nn.schedules", derived=lambda: schedule_functions)

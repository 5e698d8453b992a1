"""Schedules of the learning rate by the names of Keras, and a momentum that moves.

Of each schedule, ``minimum_lr`` is the least rate, and before ``start_step`` the rate is the initial one.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from dsinga.errors import UserError
from dsinga.job import ChangeMethod, LRGenConf, MomentumConf
from dsinga.nn.forms import Derived, Form, called_by_name, named, type_fields
from dsinga.nn.keras_arguments import checked
from dsinga.nn.keras_names import missing_names
from dsinga.registry import registered

Rate = float | LRGenConf | Mapping[str, Any]
Momentum = float | MomentumConf | Mapping[str, Any]


def learning_rate_conf(rate: Rate) -> LRGenConf:
    """Return the schedule: a constant for a number."""
    if isinstance(rate, LRGenConf):
        return rate
    if isinstance(rate, Mapping):
        return LRGenConf(**rate)
    if isinstance(rate, bool) or not isinstance(rate, (int, float)):
        raise UserError(f"learning_rate is a number or a schedule such as nn.ExponentialDecay(...), not {rate!r}")
    return LRGenConf(type="kFixed", base_lr=rate)  # type: ignore[arg-type]


@checked
def ExponentialDecay(
    initial_learning_rate: float,
    decay_steps: int,
    decay_rate: float,
    staircase: bool = False,
    minimum_lr: float | None = None,
    start_step: int = 0,
) -> LRGenConf:
    """Return the schedule initial·decay_rate^(step / decay_steps), the exponent rounded down with ``staircase``."""
    decay = {"gamma": decay_rate, "change_freq": decay_steps}
    bounds = {"minimum_lr": minimum_lr, "start_step": start_step}
    if staircase:
        return schedule("kStep", initial_learning_rate, step_conf=decay, **bounds)
    return schedule("kExponential", initial_learning_rate, exponential_conf=decay, **bounds)


@checked
def InverseTimeDecay(
    initial_learning_rate: float,
    decay_steps: float,
    decay_rate: float,
    staircase: bool = False,
    minimum_lr: float | None = None,
    start_step: int = 0,
) -> LRGenConf:
    """Return the schedule initial / (1 + decay_rate·step / decay_steps), the quotient rounded down with ``staircase``.

    The latter takes a whole number of ``decay_steps``.
    """
    bounds = {"minimum_lr": minimum_lr, "start_step": start_step}
    if staircase:
        stairs = {"gamma": decay_rate, "pow": 1.0, "change_freq": decay_steps}
        return schedule("kInverse", initial_learning_rate, inverse_conf=stairs, **bounds)
    return schedule("kInverseT", initial_learning_rate, inverset_conf={"final_lr": decay_steps / decay_rate}, **bounds)


@checked
def PiecewiseConstantDecay(boundaries: Sequence[int], values: Sequence[float]) -> LRGenConf:
    """Return the schedule values[0] up to step boundaries[0], then values[1] up to boundaries[1], ..."""
    if len(values) != len(boundaries) + 1:
        raise UserError(f"{len(boundaries)} boundaries need {len(boundaries) + 1} values, not {len(values)}")
    steps = [0, *(boundary + 1 for boundary in boundaries)]
    fields: dict[str, Any] = {"fixedstep_conf": {"step": steps, "step_lr": list(values)}}
    return LRGenConf(type=ChangeMethod.kFixedStep, **fields)


@checked
def LinearMomentum(base_momentum: float, final_momentum: float, saturation_step: int) -> MomentumConf:
    """Return a momentum that moves in a line from base_momentum at step 0 to final_momentum at ``saturation_step``."""
    return MomentumConf(base_momentum=base_momentum, final_momentum=final_momentum, saturation_step=saturation_step)


def momentum_fields(momentum: Momentum) -> dict[str, Any]:
    """Return the field of an updater for a number, or for a momentum that moves."""
    return {"momentum" if isinstance(momentum, int | float) else "momentum_conf": momentum}


@checked
def Schedule(type: str, base_lr: float = 0.01, **fields: Any) -> LRGenConf:
    """Return a schedule by its name in jobs, or a user's by its registered name, as ``learning_rate`` of a job."""
    if type in registered("schedule") and not type.startswith("k"):
        return LRGenConf(type="kUserChange", user_type=type, base_lr=base_lr, **fields)  # type: ignore[arg-type]
    return schedule(type, base_lr, **fields)


def schedule(kind: str, rate: float, **fields: Any) -> LRGenConf:
    """Return a built-in schedule by its name in jobs."""
    return LRGenConf(type=kind, base_lr=rate, **fields)  # type: ignore[arg-type]


# Arguments that Keras calls otherwise than schedules their settings.
ARGUMENTS = {"decay_steps": "change_freq"}


def schedule_function(name: str, type: str, cls: Any) -> Callable[..., LRGenConf]:
    """Return the function called ``name`` that makes schedules of a class."""
    form = Form(type, ARGUMENTS)

    def function(
        initial_learning_rate: float, minimum_lr: float | None = None, start_step: int = 0, **arguments: Any
    ) -> LRGenConf:
        bounds = {"minimum_lr": minimum_lr, "start_step": start_step}
        fields = {**type_fields(ChangeMethod, type), **bounds, **form.fields(cls.Conf, arguments)}
        return LRGenConf(base_lr=initial_learning_rate, **fields)

    first, *last, _ = inspect.signature(function).parameters.values()
    return called_by_name(named(function, name, form, cls, [first], last), cls)


# Those of further schedules: nn.CosineDecay of a class that is registered as kCosine.
schedule_functions = Derived(
    "schedule",
    schedule_function,
    otherwise=("kFixed", "kInverseT", "kInverse", "kExponential", "kLinear", "kStep", "kFixedStep"),
    suffix="Decay",
)

__getattr__ = missing_names(__name__, derived=schedule_functions)

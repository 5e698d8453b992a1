"""Schedules of the learning rate by the names of Keras, and a momentum that moves.

Of each schedule, ``minimum_lr`` is the least rate, and before ``start_step`` the rate is the initial one. In the first
``warmup_steps`` steps the rate rises in a line from ``warmup_lr`` to the initial one; the schedule begins after them.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from dsinga.base.errors import UserError
from dsinga.base.functions import name_of
from dsinga.base.registry import find
from dsinga.job import ChangeMethod, LRGenConf, MomentumConf
from dsinga.nn.words.function_specs import Derived, FunctionSpec, named, type_fields
from dsinga.nn.words.keras_arguments import checked, extended, missing_names

Rate = float | LRGenConf | Mapping[str, Any] | Callable[[int], float]
Momentum = float | MomentumConf | Mapping[str, Any]


def learning_rate_conf(rate: Rate) -> LRGenConf:
    """Return the schedule: a constant for a number, or a function of the step, from 0."""
    if isinstance(rate, LRGenConf):
        return rate
    if isinstance(rate, Mapping):
        return LRGenConf(**rate)
    if callable(rate) and not isinstance(rate, type):
        return LRGenConf(type="kFunction", function_conf={"function": name_of(rate)})  # type: ignore[arg-type, call-arg]
    if isinstance(rate, bool) or not isinstance(rate, (int, float)):
        raise UserError(f"learning_rate is a number or a schedule such as nn.ExponentialDecay(...), not {rate!r}")
    return LRGenConf(type="kFixed", base_lr=rate)  # type: ignore[arg-type]


def bounds(
    minimum_lr: float | None = None, start_step: int = 0, warmup_steps: int = 0, warmup_lr: float = 0.0
) -> dict[str, Any]:
    """Return the fields that every schedule sets.

    These are the least rate, the step before which the rate is the first, and the number of steps of the warm-up with
    the rate at its beginning.
    """
    return {"minimum_lr": minimum_lr, "start_step": start_step, "warmup_steps": warmup_steps, "warmup_lr": warmup_lr}


BOUNDS = inspect.signature(bounds).parameters


def schedule(function: Callable[..., dict[str, Any]]) -> Callable[..., LRGenConf]:
    """Turn a function that returns fields into one that returns a schedule and takes ``BOUNDS``, too."""
    return extended(function, BOUNDS, LRGenConf, bounds)


class LearningRateSchedule:
    """Base of schedules as in Keras: a class with ``__call__(self, step)``, whose objects are a learning rate."""


@schedule
def ExponentialDecay(
    initial_learning_rate: float, decay_steps: int, decay_rate: float, staircase: bool = False
) -> dict[str, Any]:
    """Return the schedule initial·decay_rate^(step / decay_steps), the exponent rounded down with ``staircase``."""
    kind, field = ("kStep", "step_conf") if staircase else ("kExponential", "exponential_conf")
    return {"type": kind, "base_lr": initial_learning_rate, field: {"gamma": decay_rate, "change_freq": decay_steps}}


@schedule
def CosineDecay(
    initial_learning_rate: float, decay_steps: int, alpha: float = 0.0, warmup_target: float | None = None
) -> dict[str, Any]:
    """Return half a cosine down to ``alpha`` times the rate at its beginning, in ``decay_steps`` steps.

    It begins at the initial rate, or, as in Keras, with a ``warmup_target`` there, to which the rate rises from the
    initial one in the first ``warmup_steps`` steps.
    """
    fields: dict[str, Any] = {"type": "kCosine", "cosine_conf": {"change_freq": decay_steps, "alpha": alpha}}
    return fields | (
        {"base_lr": initial_learning_rate}
        if warmup_target is None
        else {"base_lr": warmup_target, "warmup_lr": initial_learning_rate}
    )


@schedule
def InverseTimeDecay(
    initial_learning_rate: float, decay_steps: float, decay_rate: float, staircase: bool = False
) -> dict[str, Any]:
    """Return the schedule initial / (1 + decay_rate·step / decay_steps), the quotient rounded down with ``staircase``.

    The latter takes a whole number of ``decay_steps``.
    """
    stairs = {"gamma": decay_rate, "pow": 1.0, "change_freq": decay_steps}
    smooth = {"type": "kInverseT", "inverset_conf": {"final_lr": decay_steps / decay_rate}}
    return {"base_lr": initial_learning_rate, **({"type": "kInverse", "inverse_conf": stairs} if staircase else smooth)}


@checked
def PiecewiseConstantDecay(boundaries: Sequence[int], values: Sequence[float]) -> LRGenConf:
    """Return the schedule values[0] up to step boundaries[0], then values[1] up to boundaries[1], ..."""
    if len(values) != len(boundaries) + 1:
        raise UserError(f"{len(boundaries)} boundaries need {len(boundaries) + 1} values, not {len(values)}")
    steps = [0, *(boundary + 1 for boundary in boundaries)]
    fields: dict[str, Any] = {"fixedstep_conf": {"step": steps, "step_lr": list(values)}}
    return LRGenConf(type=ChangeMethod.kFixedStep, **fields)


@schedule
def OneCycle(
    max_lr: float, total_steps: int, pct_start: float = 0.3, div_factor: float = 25.0, final_div_factor: float = 1e4
) -> dict[str, Any]:
    """Return the schedule of PyTorch's OneCycleLR: half a cosine from max_lr / div_factor up to max_lr, and one down.

    It ends after ``total_steps`` with max_lr / (div_factor·final_div_factor); in the share ``pct_start`` of the steps
    it rises. :func:`OneCycleMomentum` moves the momentum the other way.
    """
    settings = {
        "change_freq": total_steps,
        "pct_start": pct_start,
        "div_factor": div_factor,
        "final_div_factor": final_div_factor,
    }
    return {"type": "kOneCycle", "base_lr": max_lr, "onecycle_conf": settings}


@schedule
def SequentialSchedule(schedules: Sequence[Rate], boundaries: Sequence[int]) -> dict[str, Any]:
    """Return several schedules, or numbers, one after another; from its boundary on, each counts its steps from 0.

    It is PyTorch's SequentialLR and optax' join_schedules: the second begins at step boundaries[0].
    """
    parts = [learning_rate_conf(rate) for rate in schedules]
    if not parts or len(boundaries) != len(parts) - 1:
        raise UserError(
            f"SequentialSchedule: {len(parts)} schedules and {len(boundaries)} boundaries; give one boundary less, the "
            "steps at which the second and the further schedules begin"
        )
    return {"type": "kSequential", "sequential_conf": {"schedule": parts, "boundary": boundaries}}


@checked
def LinearMomentum(base_momentum: float, final_momentum: float, saturation_step: int) -> MomentumConf:
    """Return a momentum that moves in a line from base_momentum at step 0 to final_momentum at ``saturation_step``."""
    return MomentumConf(base_momentum=base_momentum, final_momentum=final_momentum, saturation_step=saturation_step)


@checked
def OneCycleMomentum(highest: float = 0.95, lowest: float = 0.85) -> MomentumConf:
    """Return a momentum that moves against the rate of :func:`OneCycle`: ``lowest`` where that is highest."""
    return MomentumConf(base_momentum=highest, final_momentum=lowest, one_cycle=True)


def momentum_fields(momentum: Momentum) -> dict[str, Any]:
    """Return the field of an updater for a number, or for a momentum that moves."""
    return {"momentum" if isinstance(momentum, int | float) else "momentum_conf": momentum}


@checked
def Schedule(type: str, base_lr: float = 0.01, **fields: Any) -> LRGenConf:
    """Return a schedule by its name in jobs, or a user's by its registered name, as ``learning_rate`` of a job."""
    names = type_fields(ChangeMethod, type) if find("schedule", type) else {"type": type}
    return LRGenConf(**names, base_lr=base_lr, **fields)


def schedule_function(name: str, form: FunctionSpec, cls: Any) -> Callable[..., LRGenConf]:
    """Return the function called ``name`` that makes schedules of a class."""

    def function(initial_learning_rate: float, **arguments: Any) -> dict[str, Any]:
        fields = type_fields(ChangeMethod, form.type) | form.fields(name, cls.Conf, arguments)
        return {"base_lr": initial_learning_rate, **fields}

    first = inspect.signature(function).parameters["initial_learning_rate"]
    return schedule(named(function, name, form, cls, [first]))


FORMS = {
    "CosineDecayRestarts": FunctionSpec(
        "kCosineRestarts", "first_decay_steps=change_freq t_mul m_mul alpha", defaults={"t_mul": 2.0}
    )
}
# Those of further schedules: nn.CosineDecay of a class that is registered as kCosine.
schedule_functions = Derived(
    "schedule",
    schedule_function,
    FORMS,
    otherwise=(
        *("kCosine", "kFixed", "kInverseT", "kInverse", "kExponential", "kLinear", "kStep", "kFixedStep", "kOneCycle"),
        *("kSequential", "kFunction"),
        *(form.type for form in FORMS.values()),
    ),
    suffix="Decay",
    renamed={"change_freq": "decay_steps", "final_lr": "end_learning_rate"},
)

__getattr__ = missing_names(__name__, public="dsinga.nn.schedules", derived=lambda: schedule_functions)

"""Optimizers by the names of Keras, as updaters of the engine, and schedules of the learning rate."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from dsinga.errors import UserError
from dsinga.job import ChangeMethod, LRGenConf, UpdaterConf, UpdaterType
from dsinga.nn.arguments import checked
from dsinga.registry import nearest, registered

Rate = float | LRGenConf | Mapping[str, Any]


@checked
def SGD(
    learning_rate: Rate = 0.01,
    momentum: float = 0.0,
    nesterov: bool = False,
    weight_decay: float = 0.0,
    clip_norm: float = 0.0,
    clip_value: float = 0.0,
) -> UpdaterConf:
    """Return stochastic gradient descent (kSGD), or with ``nesterov`` Nesterov's (kNesterov)."""
    kind = "kNesterov" if nesterov else "kSGD"
    return updater(kind, learning_rate, weight_decay, clip_norm, clip_value, momentum=momentum)


@checked
def Adam(
    learning_rate: Rate = 0.001,
    beta_1: float = 0.9,
    beta_2: float = 0.999,
    epsilon: float = 1e-7,
    weight_decay: float = 0.0,
    clip_norm: float = 0.0,
    clip_value: float = 0.0,
) -> UpdaterConf:
    """Return Adam as published, with bias correction (kAdam)."""
    settings = {"beta1": beta_1, "beta2": beta_2, "bias_correction": True}
    return updater("kAdam", learning_rate, weight_decay, clip_norm, clip_value, adam_conf=settings, delta=epsilon)


@checked
def Adamax(
    learning_rate: Rate = 0.001,
    beta_1: float = 0.9,
    beta_2: float = 0.999,
    epsilon: float = 1e-7,
    weight_decay: float = 0.0,
    clip_norm: float = 0.0,
    clip_value: float = 0.0,
) -> UpdaterConf:
    """Return AdaMax without bias correction (kAdamMax)."""
    settings = {"beta1": beta_1, "beta2": beta_2}
    return updater("kAdamMax", learning_rate, weight_decay, clip_norm, clip_value, adammax_conf=settings, delta=epsilon)


@checked
def RMSprop(
    learning_rate: Rate = 0.001,
    rho: float = 0.9,
    epsilon: float = 1e-7,
    weight_decay: float = 0.0,
    clip_norm: float = 0.0,
    clip_value: float = 0.0,
) -> UpdaterConf:
    """Return RMSProp (kRMSProp), whose ``epsilon`` is under the root."""
    conf = {"rho": rho}
    return updater("kRMSProp", learning_rate, weight_decay, clip_norm, clip_value, rmsprop_conf=conf, delta=epsilon)


@checked
def Adagrad(
    learning_rate: Rate = 0.001,
    epsilon: float = 1e-7,
    weight_decay: float = 0.0,
    clip_norm: float = 0.0,
    clip_value: float = 0.0,
) -> UpdaterConf:
    """Return AdaGrad (kAdaGrad), whose accumulator begins at 0 (in Keras at 0.1)."""
    return updater("kAdaGrad", learning_rate, weight_decay, clip_norm, clip_value, delta=epsilon)


@checked
def Adadelta(
    learning_rate: Rate = 0.001,
    rho: float = 0.95,
    epsilon: float = 1e-7,
    weight_decay: float = 0.0,
    clip_norm: float = 0.0,
    clip_value: float = 0.0,
) -> UpdaterConf:
    """Return AdaDelta (kAdaDelta)."""
    conf = {"rho": rho}
    return updater("kAdaDelta", learning_rate, weight_decay, clip_norm, clip_value, adadelta_conf=conf, delta=epsilon)


def updater(
    kind: str, rate: Rate, weight_decay: float, clip_norm: float, clip_value: float, **fields: Any
) -> UpdaterConf:
    """Return an updater; ``weight_decay`` is added to gradients, ``clip_value`` bounds each number of a gradient."""
    if clip_value:
        fields |= {"clip_low": -clip_value, "clip_high": clip_value}
    return UpdaterConf(
        type=kind,  # type: ignore[arg-type]
        learning_rate=learning_rate_conf(rate),
        weight_decay=weight_decay,
        clip_norm=clip_norm,
        **fields,
    )


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
    initial_learning_rate: float, decay_steps: int, decay_rate: float, staircase: bool = False
) -> LRGenConf:
    """Return the schedule initial·decay_rate^(step / decay_steps), the exponent rounded down with ``staircase``.

    Raises UserError for a smooth one that does not halve after a whole number of steps, which the engine has not.
    """
    if staircase:
        return schedule("kStep", initial_learning_rate, step_conf={"gamma": decay_rate, "change_freq": decay_steps})
    halved = decay_steps * math.log(2) / -math.log(decay_rate)
    if abs(halved - round(halved)) > 1e-6 * halved:
        raise UserError(
            f"the rate halves every {halved:g} steps, but the engine needs a whole number; give staircase=True, or "
            "decay_rate=0.5 and the steps after which it halves"
        )
    return schedule("kExponential", initial_learning_rate, exponential_conf={"change_freq": round(halved)})


@checked
def InverseTimeDecay(initial_learning_rate: float, decay_steps: float, decay_rate: float) -> LRGenConf:
    """Return the schedule initial / (1 + decay_rate·step / decay_steps)."""
    return schedule("kInverseT", initial_learning_rate, inverset_conf={"final_lr": decay_steps / decay_rate})


@checked
def PiecewiseConstantDecay(boundaries: Sequence[int], values: Sequence[float]) -> LRGenConf:
    """Return the schedule values[0] up to step boundaries[0], then values[1] up to boundaries[1], ..."""
    if len(values) != len(boundaries) + 1:
        raise UserError(f"{len(boundaries)} boundaries need {len(boundaries) + 1} values, not {len(values)}")
    steps = [0, *(boundary + 1 for boundary in boundaries)]
    return LRGenConf(
        type=ChangeMethod.kFixedStep,
        fixedstep_conf={"step": steps, "step_lr": list(values)},  # type: ignore[arg-type]
    )


@checked
def Schedule(type: str, base_lr: float = 0.01, **fields: Any) -> LRGenConf:
    """Return a schedule of the engine, or a user's by its registered name, as ``learning_rate`` of a job has it."""
    if type in registered("schedule") and not type.startswith("k"):
        return LRGenConf(type="kUserChange", user_type=type, base_lr=base_lr, **fields)  # type: ignore[arg-type]
    return schedule(type, base_lr, **fields)


def schedule(kind: str, rate: float, **fields: Any) -> LRGenConf:
    """Return a schedule of the engine."""
    return LRGenConf(type=kind, base_lr=rate, **fields)  # type: ignore[arg-type]


OPTIMIZERS: Mapping[str, Callable[..., UpdaterConf]] = {
    "sgd": SGD,
    "adam": Adam,
    "adamax": Adamax,
    "rmsprop": RMSprop,
    "adagrad": Adagrad,
    "adadelta": Adadelta,
}


def updater_conf(optimizer: Any) -> UpdaterConf:
    """Return the updater for an optimizer: its name, what the functions of this file return, or a mapping of fields."""
    if isinstance(optimizer, UpdaterConf):
        return optimizer
    if isinstance(optimizer, Mapping):
        return UpdaterConf(**optimizer)
    name = optimizer.lower() if isinstance(optimizer, str) else optimizer
    if name in OPTIMIZERS:
        return OPTIMIZERS[name]()
    if isinstance(optimizer, str) and optimizer in UpdaterType.__members__:
        return UpdaterConf(type=UpdaterType[optimizer])
    if isinstance(optimizer, str) and optimizer in registered("updater"):
        return UpdaterConf(type="kUserUpdater", user_type=optimizer)  # type: ignore[arg-type]
    hint = nearest(str(name), OPTIMIZERS) or f"; these are {', '.join(OPTIMIZERS)}"
    raise UserError(f"there is no optimizer {optimizer!r}{hint}")

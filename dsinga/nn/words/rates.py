"""Converts learning rates and momenta (numbers, schedules or functions) to job fields."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from dsinga.base.errors import UserError
from dsinga.base.registry import lookup
from dsinga.job import LRGenConf, MomentumConf
from dsinga.job.functions import name_of
from dsinga.job.message import field_types, set_fields
from dsinga.job.type_names import TypeName
from dsinga.nn.words.derived import type_fields

Rate = float | LRGenConf | Mapping[str, Any] | Callable[[int], float]
Momentum = float | MomentumConf | Mapping[str, Any]


def learning_rate_conf(rate: Rate) -> LRGenConf:
    """Convert a learning rate (a number, schedule, or function of the step from 0) to a job's schedule."""
    if isinstance(rate, LRGenConf):
        return rate
    if isinstance(rate, Mapping):
        return LRGenConf(**rate)
    if callable(rate) and not isinstance(rate, type):
        return LRGenConf(type="kFunction", function_conf={"function": name_of(rate)})  # type: ignore[arg-type, call-arg]
    if isinstance(rate, bool) or not isinstance(rate, (int, float)):
        raise UserError(f"learning_rate is a number or a schedule such as nn.ExponentialDecay(...), not {rate!r}")
    return LRGenConf(type="kFixed", base_lr=rate)  # type: ignore[arg-type]


def momentum_fields(momentum: Momentum) -> dict[str, Any]:
    """Convert a momentum (a number or a schedule) to job fields of the optimizer."""
    return {"momentum" if isinstance(momentum, int | float) else "momentum_conf": momentum}


def component_fields(kind: str, names: type[TypeName], type: str, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the job fields that name a component and hold its settings and further ``settings``."""
    conf = getattr(lookup(kind, type), "Conf", None)
    own = {} if conf is None else {name: value for name, value in settings.items() if name in field_types(conf)}
    fields = {**type_fields(names, type), **{name: value for name, value in settings.items() if name not in own}}
    if conf is not None and (set_fields(message := conf(**own)) or conf.needed):
        fields[conf.field] = message
    return fields


def of_settings(cls: Any, names: Mapping[str, str], arguments: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Pair a component's settings with a function's arguments of other names, for the given arguments."""
    pairs = [(setting, names.get(setting, setting)) for setting in (field_types(cls.Conf) if cls.Conf else ())]
    return [(setting, argument) for setting, argument in pairs if argument in arguments]

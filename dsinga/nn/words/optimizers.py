"""Optimizers by the names of Keras, as updaters of a job, and the topology that trains it."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from dsinga.base.arguments import check_range, check_whole, unknown_name, value_text
from dsinga.base.errors import UserError
from dsinga.base.registry import find
from dsinga.job import ClusterConf, ParamSettingsConf, SyncMethod, UpdaterConf, UpdaterType
from dsinga.job.message import field_names
from dsinga.nn.words import schedules  # noqa: F401  Keras has them here
from dsinga.nn.words.function_specs import Derived, FunctionSpec, named, type_fields
from dsinga.nn.words.keras_arguments import OPTIMIZERS as NAMES
from dsinga.nn.words.keras_arguments import check_fields, check_names, checked, extended, missing_names
from dsinga.nn.words.schedules import Momentum, Rate, learning_rate_conf, momentum_fields


def common(
    weight_decay: float = 0.0,
    decoupled_weight_decay: bool = False,
    clip_norm: float = 0.0,
    clip_global_norm: float = 0.0,
    clip_value: float = 0.0,
    param_settings: Sequence[ParamSettingsConf] = (),
    use_ema: bool = False,
    ema_momentum: float = 0.99,
    ema_warmup: bool = False,
    ema_every: int = 1,
) -> dict[str, Any]:
    """Return the fields that every optimizer sets.

    These are a weight decay, which is added to gradients, or decoupled, which is subtracted from the param times the
    learning rate; bounds of the norm of each gradient, of that of all gradients together, and of each number;
    settings of some params (:func:`ParamSettings`); and the exponential moving average of params (docs/updaters.md).
    """
    if not use_ema and (ema_momentum, ema_warmup, ema_every) != (0.99, False, 1):
        raise UserError("ema_momentum, ema_warmup and ema_every have no effect without use_ema=True")
    check_range("clip_value", clip_value, 0)
    ema = {"ema_conf": {"decay": ema_momentum, "warmup": ema_warmup, "every": ema_every}} if use_ema else {}
    bounds: dict[str, Any] = {"clip_low": -clip_value, "clip_high": clip_value} if clip_value else {}
    decay = {"decoupled_weight_decay": True} if decoupled_weight_decay else {}
    fields = {"weight_decay": weight_decay, "clip_norm": clip_norm, "param_settings": list(param_settings)}
    bounds |= {"clip_global_norm": clip_global_norm} if clip_global_norm else {}
    return {**fields, **decay, **bounds, **ema}


COMMON = inspect.signature(common).parameters
KERAS_BOUNDS = {"clipnorm": "clip_norm", "clipvalue": "clip_value", "global_clipnorm": "clip_global_norm"}


def optimizer(function: Callable[..., dict[str, Any]], defaults: Mapping[str, Any] = {}) -> Callable[..., UpdaterConf]:
    """Turn a function that returns fields into one that returns an UpdaterConf and takes the ``COMMON`` arguments, too.

    ``defaults`` are those of some of these arguments, by name, where they differ.
    """
    defaults = {name: value for name, value in defaults.items() if name in COMMON}
    parameters = {name: known.replace(default=defaults.get(name, known.default)) for name, known in COMMON.items()}
    make = extended(function, parameters, UpdaterConf, lambda **given: common(**{**defaults, **given}))

    @functools.wraps(make)
    def renamed(*args: Any, **kwargs: Any) -> UpdaterConf:
        for name in KERAS_BOUNDS.keys() & kwargs.keys():
            kwargs[KERAS_BOUNDS[name]] = kwargs.pop(name) or 0.0
        conf: UpdaterConf = make(*args, **kwargs)
        return conf

    return renamed


@optimizer
def SGD(learning_rate: Rate = 0.01, momentum: Momentum = 0.0, nesterov: bool = False) -> dict[str, Any]:
    """Return stochastic gradient descent (kSGD), or with ``nesterov`` Nesterov's (kNesterov).

    ``momentum`` is a number, or :func:`LinearMomentum`. ``param_settings`` of all optimizers are what
    :func:`ParamSettings` returns for some params; of several that match a param's name, the first holds.
    """
    kind = "kNesterov" if nesterov else "kSGD"
    return {"type": kind, "learning_rate": learning_rate_conf(learning_rate), **momentum_fields(momentum)}


@checked
def ParamSettings(
    match: str,
    learning_rate: Rate | None = None,
    momentum: Momentum | None = None,
    weight_decay: float | None = None,
    clip_norm: float | None = None,
    clip_value: float | None = None,
) -> ParamSettingsConf:
    """Return settings for the params whose names fit the pattern ``match``, such as ``"*_bias"``.

    What is not given is as in the optimizer. A number as ``learning_rate`` takes the place of the initial one and keeps
    the optimizer's schedule.
    """
    fields: dict[str, Any] = {"weight_decay": weight_decay, "clip_norm": clip_norm}
    if isinstance(learning_rate, int | float) and not isinstance(learning_rate, bool):
        fields["base_lr"] = learning_rate
    elif learning_rate is not None:
        fields["learning_rate"] = learning_rate_conf(learning_rate)
    fields |= {} if momentum is None else momentum_fields(momentum)
    if clip_value is not None:
        check_range("clip_value", clip_value, 0)
        fields |= {"clip_low": -clip_value, "clip_high": clip_value}
    conf = ParamSettingsConf(match=match, **fields)
    check_fields("ParamSettings", conf, {"base_lr": "learning_rate"})
    return conf


BETAS = "beta_1=beta1 beta_2=beta2 epsilon=delta"
FORMS = {
    "Adam": FunctionSpec(
        "kAdam", BETAS, fixed={"bias_correction": True}, doc="Adam as published, with bias correction (kAdam)."
    ),
    "AdamW": FunctionSpec(
        "kAdamW",
        BETAS,
        {"weight_decay": 0.004},
        doc="AdamW: Adam with bias correction, whose ``weight_decay`` is decoupled (kAdamW).",
    ),
    "Lamb": FunctionSpec("kLamb", BETAS, doc="LAMB, whose steps are as long as a share of the param (kLamb)."),
    "Adamax": FunctionSpec("kAdamMax", BETAS, {"beta_1": 0.9}, doc="AdaMax without bias correction (kAdamMax)."),
    "RMSprop": FunctionSpec(
        "kRMSProp",
        "rho epsilon=delta * centered",
        {"rho": 0.9},
        doc="RMSProp, whose ``epsilon`` is under the root (kRMSProp).",
    ),
    "Adagrad": FunctionSpec(
        "kAdaGrad", "epsilon=delta", doc="AdaGrad, whose accumulator begins at 0, in Keras at 0.1 (kAdaGrad)."
    ),
    "Adadelta": FunctionSpec("kAdaDelta", "rho epsilon=delta", {"rho": 0.95}),
}


def optimizer_function(name: str, form: FunctionSpec, cls: Any) -> Callable[..., UpdaterConf]:
    """Return the function called ``name`` that makes updaters of a class."""

    def function(learning_rate: Rate = 0.001, **arguments: Any) -> dict[str, Any]:
        fields = form.fields(name, cls.Conf, form.values(name, arguments))
        return {**type_fields(UpdaterType, form.type), "learning_rate": learning_rate_conf(learning_rate), **fields}

    first = inspect.signature(function).parameters["learning_rate"]
    return optimizer(named(function, name, form, cls, [first]), form.defaults)


# Those of updaters beside SGD: nn.Lion of a class that is registered as kLion.
optimizer_functions = Derived(
    "updater",
    optimizer_function,
    FORMS,
    otherwise=("kSGD", "kNesterov", *(form.type for form in FORMS.values())),
    renamed={"beta1": "beta_1", "beta2": "beta_2"},
)


def updater_conf(optimizer: Any) -> UpdaterConf:
    """Return the updater for an optimizer: its name, what the functions of this file return, or a mapping of fields."""
    if isinstance(optimizer, UpdaterConf):
        return optimizer
    if isinstance(optimizer, Mapping):
        return UpdaterConf(**optimizer)
    name = str(optimizer).lower()
    if name == "sgd":  # of every new model
        return SGD()
    known = {"sgd": SGD, **{name.lower(): function for name, function in optimizer_functions.items()}}
    if name in known:
        return known[name]()
    if isinstance(optimizer, str) and find("updater", optimizer):
        return UpdaterConf(**type_fields(UpdaterType, optimizer))
    if hasattr(optimizer, "zero_grad"):  # of PyTorch
        name = getattr(optimizer, "__name__", type(optimizer).__name__)
        raise UserError(
            f"the optimizer is {name} of PyTorch, whose settings are not taken; write one as nn.Adam(0.001)"
        )
    if callable(optimizer):
        remedy = f"call it: nn.{optimizer.__name__}()" if optimizer in known.values() else "give what it returns"
        raise UserError(f"the optimizer {value_text(optimizer)} is a function; {remedy}")
    instead = {str(optimizer): remedy for key, remedy in NAMES.items() if key.lower() == name}
    raise unknown_name("optimizer", optimizer, known, instead)


TOPOLOGY = {
    "workers": "nworkers_per_group",
    "groups": "nworker_groups",
    "servers": "nservers_per_group",
    "server_groups": "nserver_groups",
    "workers_per_process": "nworkers_per_procs",
    "servers_per_process": "nservers_per_procs",
}


def Cluster(**fields: Any) -> ClusterConf:
    """Return a topology: ``nn.Cluster(workers=4, groups=2, servers=2, server_groups=1)``.

    ``workers`` and ``servers`` are those of one group; ``workers_per_process`` and ``servers_per_process`` say where
    they run. ``sites=2, sync_freq=100`` are two worker groups with their servers, each of such workers, that agree by
    the mean of their changes every 100 steps, as in DiLoCo (docs/sites.md). Every field of ``cluster { }`` in a job is
    an argument, too. Raises UserError for an unknown one.
    """
    check_names("Cluster", ["sites", *TOPOLOGY, *field_names(ClusterConf)], fields)
    if "sites" in fields:
        check_whole("sites", sites := fields.pop("sites"), 1)
        if given := sorted({"groups", "server_groups", "nworker_groups", "nserver_groups", "sync_method"} & {*fields}):
            raise UserError(f"sites={sites} is the number of groups; leave {given[0]} out")
        if sites > 1:
            _check_mean(sites, fields)
            fields |= {"groups": sites, "server_groups": sites, "sync_method": SyncMethod.kMean}
    return ClusterConf(**{TOPOLOGY.get(name, name): value for name, value in fields.items()})


def _check_mean(sites: int, fields: dict[str, Any]) -> None:
    """Raise UserError for sites without the steps between agreements, or with a number as a compression."""
    if "sync_freq" not in fields:
        raise UserError(f"sites={sites} agree every sync_freq steps; give sync_freq, such as 100 (1: after each step)")
    mean = fields.get("mean_conf")
    number = mean.get("compression") if isinstance(mean, dict) else None
    if isinstance(number, int):
        raise UserError(f"compression is a name, such as 'kInt4' for 4 bits, not {number}")


__getattr__ = missing_names(__name__, public="dsinga.nn.optimizers", derived=lambda: optimizer_functions)

"""Optimizers with the names of Keras, such as ``nn.Adam(1e-3)``, and settings for some params."""

from __future__ import annotations

import importlib
import inspect
from collections import ChainMap
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ParamSpec, TypedDict, Unpack

from dsinga.base.arguments import check_range, unknown_name, value_text
from dsinga.base.components import built_in
from dsinga.base.errors import UserError
from dsinga.base.registry import find
from dsinga.job import ParamSettingsConf, UpdaterConf, UpdaterType
from dsinga.nn.words.derived import Derived, derived_function, settings_field, type_fields
from dsinga.nn.words.keras_arguments import OPTIMIZERS as NAMES
from dsinga.nn.words.keras_arguments import check_fields, checked, configures, missing_names
from dsinga.nn.words.rates import Momentum, Rate, component_fields, learning_rate_conf, momentum_fields, of_settings

P = ParamSpec("P")
KERAS_BOUNDS = {"clipnorm": "clip_norm", "clipvalue": "clip_value", "global_clipnorm": "clip_global_norm"}


class OptimizerArguments(TypedDict, total=False):
    """Further keyword arguments of every optimizer, explained by :func:`updater`."""

    decoupled_weight_decay: bool
    clip_norm: float
    clip_global_norm: float
    clip_value: float
    param_settings: Sequence[ParamSettingsConf]
    use_ema: bool
    ema_momentum: float
    ema_warmup: bool
    ema_every: int


def updater(
    type: str,
    settings: Mapping[str, Any],
    *,
    learning_rate: Rate,
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
) -> UpdaterConf:
    """Return the configuration of an optimizer of any type, with the arguments that all optimizers share.

    Args:
        learning_rate: number, a schedule such as nn.ExponentialDecay(...), or a function of the step, from 0.
        weight_decay: factor of the param that is added to its gradient.
        decoupled_weight_decay: True to subtract param · decay · learning rate from the param instead.
        clip_norm: largest norm of a param's gradient, 0 for no bound.
        clip_global_norm: largest norm of all gradients together, 0 for no bound.
        clip_value: largest absolute value of a number of a gradient, 0 for no bound.
        param_settings: nn.ParamSettings(...) for some params; the first that matches a param's name applies.
        use_ema: whether an exponential moving average of the params is kept, for tests and the result.
        ema_momentum: decay of the moving average.
        ema_warmup: whether the decay begins at 0 and rises to ``ema_momentum``.
        ema_every: number of steps between updates of the average.
    """
    if not use_ema and (ema_momentum, ema_warmup, ema_every) != (0.99, False, 1):
        raise UserError("ema_momentum, ema_warmup and ema_every have no effect without use_ema=True")
    check_range("clip_value", clip_value, 0)
    fields = component_fields("updater", UpdaterType, type, settings)
    if use_ema:
        fields["ema_conf"] = {"decay": ema_momentum, "warmup": ema_warmup, "every": ema_every}
    if clip_value:
        fields |= {"clip_low": -clip_value, "clip_high": clip_value}
    return UpdaterConf(
        learning_rate=learning_rate_conf(learning_rate),
        weight_decay=weight_decay,
        decoupled_weight_decay=decoupled_weight_decay,
        clip_norm=clip_norm,
        clip_global_norm=clip_global_norm,
        param_settings=list(param_settings),
        **fields,
    )


def optimizer(function: Callable[P, UpdaterConf]) -> Callable[P, UpdaterConf]:
    """Decorate a function that calls :func:`updater` to check its arguments, also under Keras's names."""
    return configures(updater, function, KERAS_BOUNDS)


@optimizer
def SGD(
    learning_rate: Rate = 0.01,
    momentum: Momentum = 0.0,
    nesterov: bool = False,
    weight_decay: float = 0.0,
    **common: Unpack[OptimizerArguments],
) -> UpdaterConf:
    """Stochastic gradient descent (kSGD), with ``nesterov`` Nesterov's (kNesterov).

    Args:
        momentum: number, nn.LinearMomentum(...) or nn.OneCycleMomentum(...).
        nesterov: whether the gradient is computed after the momentum step.

    Examples:
        >>> from dsinga import nn
        >>> model = nn.Sequential([nn.Dense(1)])
        >>> model.compile(nn.SGD(learning_rate=0.01, momentum=0.9), "mse")
    """
    type, settings = "kNesterov" if nesterov else "kSGD", momentum_fields(momentum)
    return updater(type, settings, learning_rate=learning_rate, weight_decay=weight_decay, **common)


@optimizer
def Adam(
    learning_rate: Rate = 0.001,
    beta_1: float = 0.9,
    beta_2: float = 0.999,
    epsilon: float = 1e-7,
    weight_decay: float = 0.0,
    **common: Unpack[OptimizerArguments],
) -> UpdaterConf:
    """Adam (Kingma and Ba, 2015) as published, with bias correction (kAdam).

    Args:
        beta_1: decay of the running mean of gradients.
        beta_2: decay of the running mean of squared gradients.
        epsilon: what is added to the divisor.

    Examples:
        >>> from dsinga import nn
        >>> model = nn.Sequential([nn.Dense(1)])
        >>> model.compile(nn.Adam(learning_rate=1e-3, clip_norm=1.0), "mse")
    """
    settings = {"beta1": beta_1, "beta2": beta_2, "bias_correction": True, "delta": epsilon}
    return updater("kAdam", settings, learning_rate=learning_rate, weight_decay=weight_decay, **common)


@optimizer
def AdamW(
    learning_rate: Rate = 0.001,
    beta_1: float = 0.9,
    beta_2: float = 0.999,
    epsilon: float = 1e-7,
    weight_decay: float = 0.004,
    **common: Unpack[OptimizerArguments],
) -> UpdaterConf:
    """AdamW (Loshchilov and Hutter, 2019): Adam with ``weight_decay`` that is always decoupled (kAdamW).

    Args:
        beta_1: decay of the running mean of gradients.
        beta_2: decay of the running mean of squared gradients.
        epsilon: what is added to the divisor.
        weight_decay: factor of the param that, times the learning rate, is subtracted from it.
    """
    settings = {"beta1": beta_1, "beta2": beta_2, "delta": epsilon}
    return updater("kAdamW", settings, learning_rate=learning_rate, weight_decay=weight_decay, **common)


@optimizer
def Lamb(
    learning_rate: Rate = 0.001,
    beta_1: float = 0.9,
    beta_2: float = 0.999,
    epsilon: float = 1e-7,
    weight_decay: float = 0.0,
    **common: Unpack[OptimizerArguments],
) -> UpdaterConf:
    """LAMB (You et al., 2020): steps of Adam, scaled to a share of the param's norm (kLamb).

    Args:
        beta_1: decay of the running mean of gradients.
        beta_2: decay of the running mean of squared gradients.
        epsilon: what is added to the divisor.
    """
    settings = {"beta1": beta_1, "beta2": beta_2, "delta": epsilon}
    return updater("kLamb", settings, learning_rate=learning_rate, weight_decay=weight_decay, **common)


@optimizer
def Adamax(
    learning_rate: Rate = 0.001,
    beta_1: float = 0.9,
    beta_2: float = 0.999,
    epsilon: float = 1e-7,
    weight_decay: float = 0.0,
    **common: Unpack[OptimizerArguments],
) -> UpdaterConf:
    """AdaMax (Kingma and Ba, 2015) without bias correction (kAdamMax).

    Args:
        beta_1: decay of the running mean of gradients.
        beta_2: decay of the infinity norm of gradients.
        epsilon: what is added to the divisor.
    """
    settings = {"beta1": beta_1, "beta2": beta_2, "delta": epsilon}
    return updater("kAdamMax", settings, learning_rate=learning_rate, weight_decay=weight_decay, **common)


@optimizer
def Lion(
    learning_rate: Rate = 0.001,
    beta_1: float = 0.9,
    beta_2: float = 0.99,
    weight_decay: float = 0.0,
    **common: Unpack[OptimizerArguments],
) -> UpdaterConf:
    """Lion (Chen et al., 2023), which moves each number by the learning rate, up or down (kLion).

    Args:
        beta_1: weight of the running mean in a step, against the newest gradient.
        beta_2: decay of the running mean of gradients.
    """
    settings = {"beta1": beta_1, "beta2": beta_2}
    return updater("kLion", settings, learning_rate=learning_rate, weight_decay=weight_decay, **common)


@optimizer
def Muon(
    learning_rate: Rate = 0.001,
    beta: float = 0.95,
    rms: float = 0.2,
    adamw_match: Sequence[str] = (),
    beta_1: float = 0.9,
    beta_2: float = 0.999,
    weight_decay: float = 0.0,
    **common: Unpack[OptimizerArguments],
) -> UpdaterConf:
    """Muon (Jordan, 2024) for matrices, scaled as by Liu et al. (2025), and AdamW for all other params (kMuon).

    Args:
        beta: decay of the running mean of a matrix's gradients.
        rms: root mean square of a square matrix's step, before the learning rate.
        adamw_match: names of matrices that AdamW updates, such as "embedding*"; best for embeddings and the last layer.
        beta_1: decay of the first moment of AdamW.
        beta_2: decay of the second moment of AdamW.
        weight_decay: factor of the param that, times the learning rate, is subtracted from it.
    """
    settings = {"beta": beta, "rms": rms, "adamw_match": list(adamw_match), "beta1": beta_1, "beta2": beta_2}
    return updater("kMuon", settings, learning_rate=learning_rate, weight_decay=weight_decay, **common)


@optimizer
def RMSprop(
    learning_rate: Rate = 0.001,
    rho: float = 0.9,
    epsilon: float = 1e-7,
    weight_decay: float = 0.0,
    *,
    centered: bool = False,
    **common: Unpack[OptimizerArguments],
) -> UpdaterConf:
    """RMSProp (Tieleman and Hinton, 2012), with ``epsilon`` under the root (kRMSProp).

    Args:
        rho: decay of the running mean of squared gradients.
        epsilon: what is added to the divisor, under the root.
        centered: whether the square of the running mean of the gradients is subtracted (Graves, 2013).
    """
    settings = {"rho": rho, "centered": centered, "delta": epsilon}
    return updater("kRMSProp", settings, learning_rate=learning_rate, weight_decay=weight_decay, **common)


@optimizer
def Adagrad(
    learning_rate: Rate = 0.001, epsilon: float = 1e-7, weight_decay: float = 0.0, **common: Unpack[OptimizerArguments]
) -> UpdaterConf:
    """AdaGrad (Duchi, Hazan and Singer, 2011), with an accumulator that begins at 0 (Keras: 0.1) (kAdaGrad).

    Args:
        epsilon: what is added to the divisor, under the root.
    """
    return updater("kAdaGrad", {"delta": epsilon}, learning_rate=learning_rate, weight_decay=weight_decay, **common)


@optimizer
def Adadelta(
    learning_rate: Rate = 0.001,
    rho: float = 0.95,
    epsilon: float = 1e-7,
    weight_decay: float = 0.0,
    **common: Unpack[OptimizerArguments],
) -> UpdaterConf:
    """AdaDelta (Zeiler, 2012), with steps scaled by running means of squared gradients and updates (kAdaDelta).

    Args:
        rho: decay of the running means of squared gradients and of squared updates.
        epsilon: what is added under both roots.
    """
    settings = {"rho": rho, "delta": epsilon}
    return updater("kAdaDelta", settings, learning_rate=learning_rate, weight_decay=weight_decay, **common)


OPTIMIZERS = (SGD, Adam, AdamW, Lamb, Adamax, Lion, Muon, RMSprop, Adagrad, Adadelta)


ARGUMENTS = {"beta1": "beta_1", "beta2": "beta_2"}  # by the setting


def optimizer_function(name: str, type: str, cls: Any) -> Callable[..., UpdaterConf]:
    """Make the function ``nn.NAME`` for an updater class without a hand-written function."""

    def function(learning_rate: Rate = 0.001, **arguments: Any) -> UpdaterConf:
        settings = {setting: arguments.pop(argument) for setting, argument in of_settings(cls, ARGUMENTS, arguments)}
        settings_field(name, cls.Conf, settings, ARGUMENTS)  # checks the settings
        return updater(type, settings, learning_rate=learning_rate, **arguments)

    first = inspect.signature(function).parameters["learning_rate"]
    return optimizer(derived_function(name, cls, function, [first], ARGUMENTS))


# Optimizers of users and other distributions.
optimizer_functions = Derived("updater", optimizer_function, lambda name, _: name not in built_in("updater"))


def updater_conf(optimizer: Any) -> UpdaterConf:
    """Convert the argument of ``compile`` (a name, configuration or mapping) to an optimizer's configuration."""
    if isinstance(optimizer, UpdaterConf):
        return optimizer
    if isinstance(optimizer, Mapping):
        return UpdaterConf(**optimizer)
    name = str(optimizer).lower()
    functions = {function.__name__.lower(): function for function in OPTIMIZERS}
    if name not in functions:
        functions |= {name.lower(): function for name, function in optimizer_functions.items()}
    if name in functions:
        return functions[name]()
    if isinstance(optimizer, str) and find("updater", optimizer):
        return UpdaterConf(**type_fields(UpdaterType, optimizer))
    if hasattr(optimizer, "zero_grad"):  # a PyTorch optimizer
        name = getattr(optimizer, "__name__", type(optimizer).__name__)
        raise UserError(
            f"the optimizer is {name} of PyTorch, whose settings are not taken; write one as nn.Adam(0.001)"
        )
    if callable(optimizer):
        remedy = f"call it: nn.{optimizer.__name__}()" if optimizer in functions.values() else "give what it returns"
        raise UserError(f"the optimizer {value_text(optimizer)} is a function; {remedy}")
    instead = {str(optimizer): remedy for key, remedy in NAMES.items() if key.lower() == name}
    raise unknown_name("optimizer", optimizer, functions, instead)


@checked
def ParamSettings(
    match: str,
    learning_rate: Rate | None = None,
    momentum: Momentum | None = None,
    weight_decay: float | None = None,
    clip_norm: float | None = None,
    clip_value: float | None = None,
) -> ParamSettingsConf:
    """Return settings for some params, which replace an optimizer's own, for its ``param_settings``.

    Args:
        match: pattern of param names, such as "*_bias".
        learning_rate: schedule, or a number in place of the initial rate of the optimizer's schedule.
        momentum: number, nn.LinearMomentum(...) or nn.OneCycleMomentum(...).
        weight_decay: factor of the param that is added to its gradient.
        clip_norm: largest norm of a param's gradient, 0 for no bound.
        clip_value: largest absolute value of a number of a gradient.
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
    check_fields("ParamSettings", conf, ("learning_rate",))
    return conf


def _functions() -> Mapping[str, Any]:
    """Return the other names of ``nn.optimizers``: functions of other updaters, and ``schedules``."""
    return ChainMap({"schedules": importlib.import_module("dsinga.nn.words.schedules")}, optimizer_functions)  # type: ignore[arg-type]


__getattr__ = missing_names(__name__, public="dsinga.nn.optimizers", derived=_functions)

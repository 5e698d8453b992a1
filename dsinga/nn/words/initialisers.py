"""Initialisers with the names of Keras, such as ``nn.Constant(0.1)``, for a layer's ``kernel_initializer``."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from dsinga.base.arguments import unknown_name
from dsinga.base.errors import UserError
from dsinga.base.registry import find, registered
from dsinga.job import InitMethod, ParamConf, ParamGenConf
from dsinga.layers.interface.declarations import ParamSpec
from dsinga.layers.interface.layer import Shape
from dsinga.nn.words.derived import type_fields
from dsinga.nn.words.keras_arguments import Name, checked, missing_names

Fans = tuple[int, int]  # inputs and outputs of a unit


@checked
def Constant(value: float = 0.0) -> ParamGenConf:
    """Return the initialiser that fills a param with ``value``."""
    return ParamGenConf(type=InitMethod.kConstant, value=value)


@checked
def RandomNormal(mean: float = 0.0, stddev: float = 0.05) -> ParamGenConf:
    """Return the initialiser that draws from N(mean, stddev²)."""
    return ParamGenConf(type=InitMethod.kGaussian, mean=mean, std=stddev)


@checked
def RandomUniform(minval: float = -0.05, maxval: float = 0.05) -> ParamGenConf:
    """Return the initialiser that draws from [minval, maxval)."""
    return ParamGenConf(type=InitMethod.kUniform, low=minval, high=maxval)


@checked
def Param(
    name: str = "",
    init: Any = None,
    lr_scale: float = 1.0,
    wd_scale: float = 1.0,
    share_from: str | None = None,
    static: bool = False,
) -> ParamConf:
    """Return a layer's param for ``param=[...]``: name, initialiser and scales, or another param to share.

    A ``static`` param keeps its value. Layers share a param if both give it the same name, or if one gives the other's
    name as ``share_from``.
    """
    conf = None if init is None else named_init(init)
    return ParamConf(name=name, init=conf, lr_scale=lr_scale, wd_scale=wd_scale, share_from=share_from, static=static)


# The initialisers of Keras that depend on fans (inputs, outputs): the variance times inputs, or the mean of both fans.
FAN_SCALES: Mapping[str, tuple[float, bool]] = {
    "glorot_uniform": (1.0, True),
    "glorot_normal": (1.0, True),
    "he_uniform": (2.0, False),
    "he_normal": (2.0, False),
    "lecun_uniform": (1.0, False),
    "lecun_normal": (1.0, False),
}

PLAIN: Mapping[str, Callable[[], ParamGenConf]] = {
    "zeros": Constant,
    "ones": lambda: Constant(1.0),
    "random_normal": RandomNormal,
    "random_uniform": RandomUniform,
    "uniform": RandomUniform,
    "normal": RandomNormal,
}


def init_conf(init: Any, spec: ParamSpec, fans: Fans | None, layer: str) -> ParamGenConf | None:
    """Convert an initialiser given by a user to a job's configuration; None for the layer's own constant.

    ``init`` is a name of Keras or of jobs, a user's registered initialiser, a number, a ParamGenConf, a mapping of its
    fields, or None. ``fans`` are the inputs and outputs of a unit, by default the param's columns and rows.
    """
    if init is None:
        return None
    if isinstance(init, str) and init in FAN_SCALES:
        return fan_init(init, spec.shape, fans)
    try:
        conf = named_init(init)
    except UserError as error:
        raise UserError(f"layer {layer!r}, param {spec.role!r}: {error}") from None
    constant = conf.type is InitMethod.kConstant and bool(np.all(spec.initial == conf.value))
    return None if constant else conf


# Names of initialisers in other libraries.
OTHER_NAMES = {
    **dict.fromkeys(("xavier", "xavier_uniform"), 'write "glorot_uniform"'),
    "xavier_normal": 'write "glorot_normal"',
    **dict.fromkeys(("kaiming", "kaiming_normal", "he"), 'write "he_normal"'),
    "kaiming_uniform": 'write "he_uniform"',
    **dict.fromkeys(("normal", "random_normal", "gaussian"), "write nn.RandomNormal(stddev=0.05)"),
}


def named_init(init: Any) -> ParamGenConf:
    """Look up an initialiser that does not depend on a unit's numbers of inputs and outputs."""
    if isinstance(init, ParamGenConf):
        return init
    if isinstance(init, Mapping):
        return ParamGenConf(**init)
    if isinstance(init, (int, float)):
        return Constant(float(init))
    if init in PLAIN:
        return PLAIN[init]()
    if isinstance(init, str) and find("initialiser", init):
        return ParamGenConf(**type_fields(InitMethod, init))
    if init in FAN_SCALES:
        raise UserError(f"{init!r} depends on the layer; name it as the initialiser of a layer")
    raise unknown_name("initialiser", init, [*PLAIN, *FAN_SCALES, *registered("initialiser")], OTHER_NAMES)


def fan_init(name: str, shape: Shape, fans: Fans | None) -> ParamGenConf:
    """Return an initialiser scaled by a unit's inputs and outputs: Glorot and Bengio (2010), He et al. (2015).

    Normal ones are not truncated at two deviations as in Keras; the variance is the same.
    """
    scale, both = FAN_SCALES[name]
    rows, columns = shape[0], math.prod(shape[1:])
    inputs, outputs = fans or (columns, rows)
    variance = 2 * scale / (inputs + outputs) if both else scale / inputs
    standard = (inputs, outputs) == (columns, rows)
    if name.endswith("_normal"):
        if standard and not both:
            return ParamGenConf(type=InitMethod.kGaussianSqrtFanIn, value=_root(scale))
        return ParamGenConf(type=InitMethod.kGaussian, std=math.sqrt(variance))
    if standard or (both and inputs + outputs == rows + columns):
        method = InitMethod.kUniformFanInOut if both else InitMethod.kUniformSqrtFanIn
        return ParamGenConf(type=method, value=_root(scale))
    limit = math.sqrt(3 * variance)
    return ParamGenConf(type=InitMethod.kUniform, low=-limit, high=limit)


def _root(scale: float) -> float:
    """Return a square root rounded to 8 decimals, as jobs write it: 1.41421356 for 2."""
    return round(math.sqrt(scale), 8)


def _named_initialiser(name: str) -> Callable[..., Name]:
    """Make a stand-in for one of Keras's initialiser classes: called, it returns its name."""

    def function() -> Name:
        return Name(name)

    function.__name__ = "".join(word.title() for word in name.split("_"))
    return checked(function)


_CLASSES = {made.__name__: made for made in map(_named_initialiser, ("zeros", "ones", *FAN_SCALES))}

__getattr__ = missing_names(__name__, public="dsinga.nn.initializers", derived=lambda: _CLASSES)

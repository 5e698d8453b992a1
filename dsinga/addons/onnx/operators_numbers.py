"""ONNX's functions of single numbers: activations, bounds, dropout."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from dsinga.addons.onnx.node_place import NodePlace
from dsinga.addons.onnx.values import Constant, decimal, number_in
from dsinga.nn.words.activations import ELU, Activation, PReLU, ReLU
from dsinga.nn.words.basic_layers import Dropout
from dsinga.nn.writing.composed import gelu
from dsinga.nn.writing.images import GREATEST
from dsinga.nn.writing.reshaping import NoLayer
from dsinga.nn.writing.tensor import Tensor, arithmetic

SELU = 1.6732632, 1.050701  # alpha and gamma of its paper


def named(activation: str) -> Callable[..., Any]:
    """Return the function of an activation that has no settings."""
    return lambda x: x.each(Activation, activation)


def of_kind(kind: str) -> Callable[..., Any]:
    """Return the function of a kActivation without settings."""
    return lambda x: x.activated(kind)


def selu(x: Tensor, alpha: float = SELU[0], gamma: float = SELU[1]) -> Tensor:
    """Return a scaled ELU, with numbers other than those of its paper as a product."""
    return x.each(Activation, "selu") if (alpha, gamma) == SELU else x.each(ELU, alpha) * gamma


def swish(x: Tensor, alpha: float = 1.0) -> Tensor:
    """Return x·σ(alpha·x)."""
    return x.each(Activation, "silu") if alpha == 1 else x * (x * alpha).each(Activation, "sigmoid", suffix=".share")


def clip(place: NodePlace, x: Tensor, min: Any = None, max: Any = None) -> Tensor:
    """Return numbers between two bounds, each of which may be left out; before version 11 they are attributes.

    Between 0 and 6 it is PyTorch's relu6, whose gradient at the bounds is 0, else its clamp, whose is not.
    """
    for given in (min, max):
        place.keep(given)
    bounds = [number_in(given) for given in (min, max)]
    bounds = [None if bound is None or abs(bound) >= GREATEST else decimal(bound) for bound in bounds]
    for bound, operator in zip(bounds, ("MAXIMUM", "MINIMUM"), strict=True):
        if bound is not None:
            x = arithmetic(place, operator, *((bound, x) if bounds == [0, 6] else (x, bound)))
    return x


def prelu(place: NodePlace, x: Tensor, slope: Any) -> Any:
    """Return a rectifier with slopes that are params: of all numbers, of each channel, or in another shape."""
    symbol = x.feature()
    if not isinstance(slope, Constant):
        raise NoLayer("whose slopes layers compute")
    array, rank = np.asarray(slope.array, np.float32), x.rank - 1
    if array.ndim > rank:
        if array.ndim > rank + 1 or len(array) > 1:
            raise NoLayer("with slopes that differ among the records of a batch")
        array = array[0]
    channels = array.ndim == rank and array.size == len(array) == x.shape[1]
    if array.size == 1 or channels:
        return place.layer(PReLU, {"slope": (slope, array.reshape(-1))}, shared=not channels)(symbol)
    above, below = (y.each(ReLU, suffix=".part") for y in (x, -x))
    return above - below * place.vector(replace(slope, array=array))


def dropout(x: Tensor, ratio: Any = None, training_mode: Any = None) -> Tensor:
    """Return the tensor as it is, or for a net exported in training mode a layer that drops numbers in training."""
    share = number_in(ratio, 0.5)
    return x.each(Dropout, share) if number_in(training_mode, 0.0) and share else x


NUMBERS: Mapping[str, Callable[..., Any]] = {
    "LeakyRelu": lambda x, alpha=0.01: x.each(ReLU, alpha),
    **{"Relu": lambda x: x.each(ReLU), "HardSwish": named("hard_swish")},
    **{name: named(name.lower()) for name in ("Sigmoid", "Tanh", "Softplus", "Softsign", "Mish")},
    **{name: of_kind(name.upper()) for name in ("Exp", "Log", "Erf", "Sin", "Cos")},
    "Elu": lambda x, alpha=1.0: x.activated("ELU", alpha=alpha),
    "Celu": lambda x, alpha=1.0: x.activated("CELU", alpha=alpha),
    "HardSigmoid": lambda x, alpha=0.2, beta=0.5: x.activated("HARDSIGMOID", alpha=alpha, beta=beta),
    **{"Selu": selu, "Gelu": gelu, "Swish": swish},
    "ThresholdedRelu": lambda x, alpha=1.0: x * arithmetic(x.place, "GREATER", x, alpha),
    **{"Clip": clip, "PRelu": prelu, "Dropout": dropout, "Identity": lambda x: x},
}

"""Makes layers for ONNX's functions of single numbers: activations, bounds, dropout."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from dsinga import nn
from dsinga.addons.onnx.node_place import NodePlace
from dsinga.addons.onnx.values import Constant, NotImportable, Value, feature
from dsinga.nn.writing import composed
from dsinga.nn.writing.symbol import Symbol

GREATEST = 3.4028234e38  # among float32 numbers, in place of infinity


def decimal(number: float) -> float:
    """Return the shortest decimal number that is this float32, as 1e-05 of 9.999999747378752e-06."""
    return float(str(np.float32(number)))


def number_of(place: NodePlace, name: str, default: float) -> float:
    """Return an attribute that is one number."""
    return decimal(place.attribute(name, default))


def number_in(x: Any, default: Any) -> Any:
    """Return the number that an input of an operator is, ``default`` where it is left out."""
    if isinstance(x, Value):
        raise NotImportable("with a number that depends on a batch")
    return default if x is None else decimal(x.array.reshape(()))


def elementwise(make: Callable[..., Symbol]) -> Callable[..., Any]:
    """Return the function of an operator that computes each number by itself, in whatever shape the numbers are."""

    def operate(place: NodePlace, x: Any, *others: Any) -> Value:
        if not isinstance(x, Value):
            raise NotImportable("of constants only")
        return dataclasses.replace(x, symbol=make(place, x.symbol, *others))

    return operate


def named(activation: str) -> Callable[..., Any]:
    """Return the function of an activation that has no settings."""
    return elementwise(lambda place, x: nn.Activation(activation, name=place.name())(x))


def arithmetic(place: NodePlace, x: Symbol, operator: str, number: float, suffix: str = "", **settings: Any) -> Any:
    """Return x op number, or with ``swapped`` number op x."""
    return place.layer("kArithmetic", {}, suffix, operator=operator, number=number, **settings)(x)


def activation(kind: str, **numbers: float) -> Callable[..., Any]:
    """Return the function of a kActivation whose settings are attributes with these defaults."""

    def make(place: NodePlace, x: Symbol) -> Any:
        given = {name: number_of(place, name, default) for name, default in numbers.items()}
        return place.layer("kActivation", {}, activation_conf={"type": kind, **given})(x)

    return elementwise(make)


def selu(place: NodePlace, x: Symbol) -> Any:
    """Return a scaled ELU, with numbers other than those of its paper as a product."""
    alpha, gamma = number_of(place, "alpha", 1.6732632), number_of(place, "gamma", 1.050701)
    if (alpha, gamma) == (1.6732632, 1.050701):
        return nn.Activation("selu", name=place.name())(x)
    return nn.ELU(alpha, name=place.name())(x) * gamma


def leaky_relu(place: NodePlace, x: Symbol) -> Any:
    """Return x, or alpha·x where it is negative."""
    return nn.ReLU(number_of(place, "alpha", 0.01), name=place.name())(x)


def gelu(place: NodePlace, x: Symbol) -> Any:
    """Return x·Φ(x), or its approximation by tanh."""
    return composed.gelu(place, x, place.attribute("approximate", "none"))


def swish(place: NodePlace, x: Symbol) -> Any:
    """Return x·σ(alpha·x)."""
    alpha = number_of(place, "alpha", 1.0)
    if alpha == 1:
        return nn.Activation("silu", name=place.name())(x)
    return nn.Layer("kMultiply", name=place.name())(x, nn.Activation("sigmoid", name=place.name(".share"))(x * alpha))


def thresholded_relu(place: NodePlace, x: Symbol) -> Any:
    """Return x where it is above alpha, else 0."""
    above = arithmetic(place, x, "GREATER", number_of(place, "alpha", 1.0), ".above")
    return nn.Layer("kMultiply", name=place.name())(x, above)


def clip(place: NodePlace, x: Symbol, least: Any = None, most: Any = None) -> Any:
    """Return numbers between two bounds, each of which may be left out; before version 11 they are attributes.

    Between 0 and 6 it is PyTorch's relu6, whose gradient at the bounds is 0, else its clamp, whose is not.
    """
    for given in (least, most):
        place.keep(given)
    bounds = [number_in(given, place.attribute(name)) for given, name in ((least, "min"), (most, "max"))]
    bounds = [None if bound is None or abs(bound) >= GREATEST else decimal(bound) for bound in bounds]
    swapped: dict[str, Any] = {"swapped": True} if bounds == [0, 6] else {}
    for bound, operator in zip(bounds, ("MAXIMUM", "MINIMUM"), strict=True):
        x = x if bound is None else arithmetic(place, x, operator, bound, **swapped)
    return x


def prelu(place: NodePlace, x: Any, slope: Any) -> Any:
    """Return a rectifier with slopes that are params: of all numbers, of each channel, or in another shape."""
    symbol = feature(x)
    if not isinstance(slope, Constant):
        raise NotImportable("whose slopes layers compute")
    array, rank = np.asarray(slope.array, np.float32), x.rank - 1
    if array.ndim > rank:
        if array.ndim > rank + 1 or len(array) > 1:
            raise NotImportable("with slopes that differ among the records of a batch")
        array = array[0]
    channels = array.ndim == rank and array.size == len(array) == x.shape[1]
    if array.size == 1 or channels:
        params = {"slope": (slope, array.reshape(-1))}
        return place.layer(nn.PReLU, params, shared=not channels)(symbol)
    slopes = place.vector(dataclasses.replace(slope, array=array.reshape((1,) * (rank - array.ndim) + array.shape)))
    above, below = (nn.ReLU(name=place.name(".part"))(y) for y in (symbol, -symbol))
    return above - below * slopes.symbol


def dropout(place: NodePlace, x: Any, ratio: Any = None, training: Any = None) -> Any:
    """Return the tensor as it is, or for a net exported in training mode a layer that drops numbers in training."""
    share = number_in(ratio, number_of(place, "ratio", 0.5))
    is_training = number_in(training, 0.0)
    return nn.Dropout(share, name=place.name())(feature(x)) if is_training and share else x


NUMBERS: Mapping[str, Callable[..., Any]] = {
    **{"Relu": elementwise(lambda place, x: nn.ReLU(name=place.name())(x)), "LeakyRelu": elementwise(leaky_relu)},
    **{name: named(name.lower()) for name in ("Sigmoid", "Tanh", "Softplus", "Softsign", "Mish")},
    **{name: activation(name.upper()) for name in ("Exp", "Log", "Erf", "Sin", "Cos")},
    **{"Elu": activation("ELU", alpha=1.0), "Celu": activation("CELU", alpha=1.0), "HardSwish": named("hard_swish")},
    "HardSigmoid": activation("HARDSIGMOID", alpha=0.2, beta=0.5),
    **{"Selu": elementwise(selu), "Gelu": elementwise(gelu)},
    **{"Swish": elementwise(swish), "ThresholdedRelu": elementwise(thresholded_relu)},
    **{"Clip": elementwise(clip), "PRelu": prelu, "Dropout": dropout, "Identity": lambda place, x: x},
}

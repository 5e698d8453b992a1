"""Converts ONNX's functions of numbers: arithmetic, activations, sums along axes, softmax, dropout."""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from dsinga.addons.onnx.node_place import NodePlace
from dsinga.addons.onnx.values import Constant, decimal, integers, number_in
from dsinga.nn.words.activations import ELU, Activation, PReLU, ReLU
from dsinga.nn.words.basic_layers import Dropout, layer_of_type
from dsinga.nn.writing.composed import gelu, running_sum, where
from dsinga.nn.writing.images import GREATEST
from dsinga.nn.writing.reshaping import NoLayer
from dsinga.nn.writing.tensor import BOOL, Tensor, arithmetic

SELU = 1.6732632, 1.050701  # alpha and gamma of its paper


def comparison(name: str, swaps: bool = False) -> Callable[..., Tensor]:
    """Return the function that converts a comparison, such as Greater; the layers give true or false."""
    return lambda place, a, b: arithmetic(place, name, *((b, a) if swaps else (a, b)), dtype=BOOL)


def chained(name: str) -> Callable[..., Any]:
    """Return the function that converts an operator with any number of tensors, such as Sum."""

    def operate(place: NodePlace, first: Any, *others: Any) -> Any:
        tensors = [x for x in (first, *others) if isinstance(x, Tensor)]
        has_one_form = len({(x.shape, x.batch_axis) for x in tensors}) == 1
        if name == "ADD" and len(tensors) == 1 + len(others) > 2 and has_one_form:
            return first.of(layer_of_type("kAdd", name=place.name())([x.symbol for x in tensors]))
        return functools.reduce(lambda a, b: arithmetic(place, name, a, b), others, first)

    return operate


def divide(place: NodePlace, a: Any, b: Any) -> Tensor:
    """Convert Div, a / b. Raises NoLayer for integers, because their fractions are cut off."""
    if isinstance(a, Tensor) and isinstance(b, Constant) and b.array.size == 1 and b.array.item() == 1:
        return a
    if "f" not in {a.dtype.kind, b.dtype.kind}:
        raise NoLayer("of integers, which cuts off fractions")
    return arithmetic(place, "DIVIDE", a, b)


def power(place: NodePlace, x: Any, exponent: Any) -> Tensor:
    """Convert Pow, x ** exponent; a constant exponent does not become a param."""
    if isinstance(x, Tensor) and isinstance(exponent, Constant) and not exponent.is_param and exponent.array.size:
        if (exponent.array == exponent.array.flat[0]).all():
            return x ** float(exponent.array.flat[0])
    return arithmetic(place, "POWER", x, exponent)


def sign(place: NodePlace, x: Tensor) -> Tensor:
    """Convert Sign: 1, 0 or -1, with gradient 0."""
    return arithmetic(place, "GREATER", x, 0.0) - arithmetic(place, "GREATER", 0.0, x)


def reduction(pool: str, before: Any = None, after: Any = None) -> Callable[..., Any]:
    """Return the function that converts a reduction over axes, with ``before`` and ``after`` applied to numbers."""

    def operate(x: Tensor, axes: Any = None, keepdims: int = 1, noop_with_empty_axes: int = 0) -> Tensor:
        over = {x.axis(axis) for axis in integers(axes, "axes") or ([] if noop_with_empty_axes else range(x.rank))}
        y = before(x) if before else x
        y = y.reduced(pool, [*over], bool(keepdims)) if over else y
        return after(y) if after else y

    return operate


def softmax(place: NodePlace, x: Tensor, axis: int | None = None) -> Tensor:
    """Convert Softmax over an axis of records; before version 13 over this and all later axes."""
    if place.version >= 13:
        return x.softmax(-1 if axis is None else axis)
    at = x.axis(1 if axis is None else axis)
    if x.batch_axis is not None and x.batch_axis >= at:
        raise NoLayer("over the records of a batch")
    return x.reshape((*x.shape[:at], math.prod(x.shape[at:])), ".flat").softmax().reshape(x.shape, ".axes")


def log_softmax(place: NodePlace, x: Tensor, axis: int | None = None) -> Tensor:
    """Convert LogSoftmax: x less its maximum, less the logarithm of the sum of exponentials."""
    is_one = place.version >= 13
    at = x.axis((-1 if is_one else 1) if axis is None else axis)
    axes = [at] if is_one else [*range(at, x.rank)]
    x = x - x.reduced("MAX", axes, True)
    return x - x.activated("EXP").reduced("SUM", axes, True).activated("LOG")


def cumulated(x: Tensor, axis: Any, exclusive: int = 0, reverse: int = 0) -> Tensor:
    """Convert CumSum: running sums along an axis."""
    return running_sum(x, integers(axis, "axis")[0], bool(exclusive), bool(reverse))


def largest_index(x: Tensor, axis: int = 0, keepdims: int = 1, select_last_index: int = 0) -> Tensor:
    """Convert ArgMax: the index of the largest number of each record."""
    if select_last_index or x.rank != 2 or x.axis(axis) != 1:
        raise NoLayer("of other than records that are vectors")
    y = layer_of_type("kArgSort", topk=1, name=x.place.name())(x.feature())
    return Tensor(x.place, y, x.shape[:1] + (1,) * keepdims, 0, np.dtype(np.int64))


ARITHMETIC: Mapping[str, Callable[..., Any]] = {
    **{"Add": operator.add, "Sub": operator.sub, "Mul": operator.mul, "And": operator.mul, "Div": divide},
    **{name: chained(kind) for name, kind in {"Sum": "ADD", "Max": "MAXIMUM", "Min": "MINIMUM"}.items()},
    "Mean": lambda place, *tensors: chained("ADD")(place, *tensors) / float(len(tensors)),
    **{"Pow": power, "Neg": operator.neg, "Abs": operator.abs, "Sign": sign, "Sqrt": lambda x: x**0.5},
    **{"Reciprocal": lambda x: 1.0 / x, "Not": lambda x: 1.0 - x, "Where": where},
    **{"Equal": comparison("EQUAL"), "Xor": comparison("NOT_EQUAL"), "Or": chained("MAXIMUM")},
    **{"Greater": comparison("GREATER"), "GreaterOrEqual": comparison("GREATER_EQUAL")},
    **{"Less": comparison("GREATER", True), "LessOrEqual": comparison("GREATER_EQUAL", True)},
    **{"ReduceMean": reduction("AVG"), "ReduceSum": reduction("SUM"), "ReduceMax": reduction("MAX")},
    **{"ReduceMin": reduction("MAX", operator.neg, operator.neg), "ReduceL1": reduction("SUM", abs)},
    "ReduceL2": reduction("SUM", lambda x: x * x, lambda x: x**0.5),
    "ReduceSumSquare": reduction("SUM", lambda x: x * x),
    **{"Softmax": softmax, "LogSoftmax": log_softmax, "CumSum": cumulated, "ArgMax": largest_index},
}


def named(activation: str) -> Callable[..., Any]:
    """Return the function that converts an activation without settings."""
    return lambda x: x.each(Activation, activation)


def of_kind(kind: str) -> Callable[..., Any]:
    """Return the function that converts an operator to a kActivation without settings."""
    return lambda x: x.activated(kind)


def selu(x: Tensor, alpha: float = SELU[0], gamma: float = SELU[1]) -> Tensor:
    """Convert Selu; numbers other than its paper's become a product."""
    return x.each(Activation, "selu") if (alpha, gamma) == SELU else x.each(ELU, alpha) * gamma


def swish(x: Tensor, alpha: float = 1.0) -> Tensor:
    """Convert Swish: x·σ(alpha·x)."""
    return x.each(Activation, "silu") if alpha == 1 else x * (x * alpha).each(Activation, "sigmoid", suffix=".share")


def clip(place: NodePlace, x: Tensor, min: Any = None, max: Any = None) -> Tensor:
    """Convert Clip: numbers between two optional bounds, which before version 11 are attributes.

    Between 0 and 6 it is PyTorch's relu6, with gradient 0 at the bounds; else its clamp, with nonzero gradient.
    """
    for given in (min, max):
        place.keep(given)
    bounds = [number_in(given) for given in (min, max)]
    bounds = [None if bound is None or abs(bound) >= GREATEST else decimal(bound) for bound in bounds]
    for bound, kind in zip(bounds, ("MAXIMUM", "MINIMUM"), strict=True):
        if bound is not None:
            x = arithmetic(place, kind, *((bound, x) if bounds == [0, 6] else (x, bound)))
    return x


def prelu(place: NodePlace, x: Tensor, slope: Any) -> Any:
    """Convert PRelu: a rectifier with slopes as params, one, one a channel, or in another shape."""
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
    """Convert Dropout to a layer if the net was exported in training mode; else return the tensor."""
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

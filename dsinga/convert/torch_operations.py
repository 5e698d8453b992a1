"""Converts PyTorch's functions of numbers, sums along axes, softmax and dropout to layers.

A function accepts symbolic tensors and, as its argument ``place``, if any, the
:class:`dsinga.convert.torch_tracing.ModulePlace`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch

from dsinga import nn
from dsinga.convert.torch_images import IMAGES
from dsinga.convert.torch_shapes import SHAPES
from dsinga.convert.torch_tracing import ModulePlace
from dsinga.nn.writing import composed
from dsinga.nn.writing.reshaping import NoLayer
from dsinga.nn.writing.tensor import BOOL, Tensor, arithmetic, tensor_of

Axes = int | Sequence[int] | None


def binary(name: str, swaps: bool = False) -> Callable[..., Tensor]:
    """Return a converter of an operator on two tensors, or a tensor and a number."""
    return lambda place, input, other: arithmetic(place, name, *((other, input) if swaps else (input, other)))


add, subtract, multiply, divide, power = map(binary, ("ADD", "SUBTRACT", "MULTIPLY", "DIVIDE", "POWER"))
maximum, minimum = binary("MAXIMUM"), binary("MINIMUM")


def clamp(input: Tensor, min: Any = None, max: Any = None, inplace: bool = False) -> Tensor:
    """Limit a tensor to the range between two numbers."""
    y = input if min is None else input.maximum(min)
    return y if max is None else y.minimum(max)


def between(input: Tensor, min_val: float = -1.0, max_val: float = 1.0, inplace: bool = False) -> Tensor:
    """Limit a tensor as :func:`clamp` does, but with gradient 0 at the bounds."""
    return arithmetic(input.place, "MINIMUM", max_val, arithmetic(input.place, "MAXIMUM", min_val, input))


def logical(combine: Callable[..., Any]) -> Callable[..., Any]:
    """Return a converter of an operation on truth values, which are 0 or 1."""

    def operate(place: ModulePlace, *args: Any) -> Any:
        if any(isinstance(x, (Tensor, torch.Tensor)) and x.dtype not in (BOOL, torch.bool) for x in args):
            raise NoLayer("of numbers that are no truth values")
        return combine(place, *args)

    return operate


def where(place: ModulePlace, condition: Any, input: Any, other: Any) -> Tensor:
    """Return ``input`` where the condition holds, else ``other``."""
    if condition.dtype not in (BOOL, torch.bool):
        raise NoLayer("by numbers that are no truth values")
    return composed.where(place, condition, input, other)


def masked_fill(place: ModulePlace, input: Any, mask: Any, value: float) -> Tensor:
    """Replace scores in masked places by ``value``, so that a softmax makes them 0."""
    if isinstance(mask, Tensor):
        return where(place, mask, value, input)
    if value > -1e4:
        raise NoLayer("with a constant mask and a value above -1e4")
    return composed.where(place, mask.bool(), -math.inf, input)


def named(activation: str) -> Callable[..., Tensor]:
    """Return a converter of an activation without settings."""
    return lambda input, inplace=False: input.each(nn.Activation, activation)


def formula(kind: str) -> Callable[..., Tensor]:
    """Return a converter of a mathematical function, a ``kind`` of kActivation."""
    return lambda input: input.activated(kind)


def exponential(kind: str) -> Callable[..., Tensor]:
    """Return a converter of ELU or CELU."""
    return lambda input, alpha=1.0, inplace=False: input.activated(kind, **({} if alpha == 1 else {"alpha": alpha}))


def softplus(input: Tensor, beta: float = 1.0, threshold: float = 20.0) -> Tensor:
    """Return log(1 + e^(βx)) / β; above the threshold it is x, to the bit or nearly."""
    y = (input if beta == 1 else input * beta).each(nn.Activation, "softplus")
    return y if beta == 1 else y / beta


def softmax(input: Tensor, dim: Any = None, _stacklevel: int = 3, dtype: Any = None) -> Tensor:
    """Return the softmax over an axis of records."""
    if dim is None or input.axis(dim) == input.batch_axis:
        raise NoLayer(f"over the axis {dim}; give it an axis of a record")
    return input.softmax(dim)


def log_softmax(input: Tensor, dim: Any = None, _stacklevel: int = 3, dtype: Any = None) -> Tensor:
    """Raise NoLayer, because a loss expects scores."""
    raise NoLayer("(the loss takes scores: return those)")


def drops(place: ModulePlace, ratio: float, training: bool) -> bool:
    """Whether dropout has an effect in this call; raise NoLayer for dropout in evaluation."""
    if ratio and training and not place.trace.training:
        raise NoLayer("(which drops in evaluation, too: give it training=self.training)")
    return bool(ratio and training)


def dropping(layer: Any) -> Callable[..., Tensor]:
    """Return a converter of dropout of numbers, or of channels."""

    def drop(place: ModulePlace, input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:
        return input.each(layer, p) if drops(place, p, training) else input

    return drop


def over_axes(pool: str) -> Callable[..., Tensor]:
    """Return a converter of means, sums or maxima over axes; the first of equal maxima gets the gradient."""

    def operate(input: Tensor, dim: Axes = None, keepdim: bool = False, dtype: Any = None) -> Tensor:
        axes = range(input.rank) if dim is None else [dim] if isinstance(dim, int) else dim
        return input.reduced(pool, [*{input.axis(axis) for axis in axes}], keepdim)

    return operate


mean, total, largest = map(over_axes, ("AVG", "SUM", "MAX"))


def smallest(input: Tensor, dim: Axes = None, keepdim: bool = False) -> Tensor:
    """Return minima over axes, computed by maxima."""
    return -largest(-input, dim, keepdim)


class Extrema(NamedTuple):
    """The values of torch.max or torch.min along an axis; layers compute no indices."""

    values: Any
    indices: Any


def extrema(along: Callable[..., Any], elementwise: Callable[..., Any]) -> Callable[..., Any]:
    """Return a converter of torch.max or torch.min, along an axis or of two tensors."""

    def operate(place: ModulePlace, input: Any, dim: Any = None, keepdim: bool = False, other: Any = None) -> Any:
        if not isinstance(dim, int):
            return elementwise(place, input, other if dim is None else dim)
        values = along(input, dim, keepdim)
        indices = place.trace.wrapped(values)
        indices.fault = "on the indices of extrema"
        return Extrema(values, indices)

    return operate


def variance(
    input: Tensor, dim: Axes = None, unbiased: bool = True, keepdim: bool = False, *, correction: float | None = None
) -> Tensor:
    """Return variances over axes."""
    centred = input - mean(input, dim, True)
    y = mean(centred * centred, dim, keepdim)
    count = math.prod(input.shape) / math.prod(y.shape)
    less = float(unbiased) if correction is None else correction
    return y * (count / (count - less)) if less else y


def normalise(input: Tensor, p: float = 2.0, dim: int = 1, eps: float = 1e-12, out: Any = None) -> Tensor:
    """Divide vectors along an axis by their lengths."""
    if p != 2:
        raise NoLayer(f"with p={p}")
    return input / (total(input * input, dim, True) ** 0.5).maximum(eps)


OPERATIONS: Mapping[str, Callable[..., Any]] = {
    **SHAPES,
    **IMAGES,
    **dict.fromkeys(("add", "radd"), add),
    **dict.fromkeys(("sub", "subtract"), subtract),
    **dict.fromkeys(("mul", "multiply", "rmul"), multiply),
    **dict.fromkeys(("div", "divide", "true_divide", "truediv"), divide),
    **{"rsub": binary("SUBTRACT", True), "rdiv": binary("DIVIDE", True), "rtruediv": binary("DIVIDE", True)},
    **dict.fromkeys(("matmul", "bmm"), lambda place, input, other: tensor_of(place, input, (other,)) @ other),
    **{"maximum": maximum, "minimum": minimum, "pow": power, "neg": lambda input: -input},
    **{"square": lambda input: input**2.0, "sqrt": lambda input: input**0.5, "rsqrt": lambda input: input**-0.5},
    **dict.fromkeys(("abs", "absolute"), lambda input: abs(input)),
    **{"eq": binary("EQUAL"), "ne": binary("NOT_EQUAL"), "gt": binary("GREATER"), "ge": binary("GREATER_EQUAL")},
    **{"lt": binary("GREATER", True), "le": binary("GREATER_EQUAL", True)},
    **dict.fromkeys(("and", "logical_and", "bitwise_and"), logical(multiply)),
    **dict.fromkeys(("or", "logical_or", "bitwise_or"), logical(maximum)),
    **dict.fromkeys(("invert", "logical_not", "bitwise_not"), logical(lambda place, x: subtract(place, 1.0, x))),
    "bool": lambda place, x: x if x.dtype == BOOL else arithmetic(place, "NOT_EQUAL", x, 0.0),
    **{"where": where, "clamp": clamp, "clip": clamp, "masked_fill": masked_fill, "hardtanh": between},
    "relu6": lambda input, inplace=False: between(input, 0.0, 6.0),
    **{name: named(name) for name in ("sigmoid", "tanh", "silu", "selu", "mish", "softsign")},
    **{f"hard{name}": named(f"hard_{name}") for name in ("sigmoid", "swish")},
    **{name: formula(name.upper()) for name in ("exp", "log", "erf", "sin", "cos")},
    **{"elu": exponential("ELU"), "celu": exponential("CELU"), "softplus": softplus},
    "gelu": lambda input, approximate="none": composed.gelu(input, approximate),
    **dict.fromkeys(("logsigmoid", "log_sigmoid"), lambda input: -softplus(-input)),
    "relu": lambda input, inplace=False: input.each(nn.ReLU),
    "leaky_relu": lambda input, negative_slope=0.01, inplace=False: input.each(nn.ReLU, negative_slope),
    **{"softmax": softmax, "log_softmax": log_softmax, "dropout": dropping(nn.Dropout)},
    **dict.fromkeys(("dropout2d", "dropout3d"), dropping(nn.SpatialDropout2D)),
    **{"mean": mean, "sum": total, "amax": largest, "amin": smallest, "var": variance, "normalize": normalise},
    "std": lambda *args, **kwargs: variance(*args, **kwargs) ** 0.5,
    **{"max": extrema(largest, maximum), "min": extrema(smallest, minimum)},
}

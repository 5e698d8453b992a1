"""Builds the dsinga layers for PyTorch operations: functions with PyTorch's arguments after a place in the net.

A place is a :class:`dsinga.convert.torch_tracing.ModulePlace`: where in the net a layer is made, and so its name.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping
from operator import floordiv
from typing import Any

import torch

from dsinga import nn
from dsinga.convert.torch_shapes import SHAPES, align, feature, like, operand
from dsinga.convert.torch_tensors import NotConvertible, TracedTensor
from dsinga.convert.torch_tracing import ModulePlace
from dsinga.nn.words.windows import sides
from dsinga.nn.writing import composed
from dsinga.nn.writing.operators import SIMPLE
from dsinga.nn.writing.reshaping import as_image, as_sequence, reshaped, rows_of

HIDDEN = -1e9  # added to the scores of what is not seen; the softmax of numbers with it is 0 there
# The settings of kResize for modes of interpolate; the others are linear.
RESIZING: Mapping[str, Mapping[str, str]] = {
    "nearest": {"method": "kNearest", "coordinates": "kAsymmetric", "rounding": "kFloor"},
    "nearest-exact": {"method": "kNearest", "rounding": "kPreferCeil"},
    "bicubic": {"method": "kCubic"},
}
PAD_MODES = {"constant": "zero", "reflect": "reflect", "replicate": "edge", "circular": "periodic"}


def binary(operator: str, swaps: bool = False) -> Callable[..., Any]:
    """Return the function of an operator of two tensors, or of a tensor and a number."""

    def operate(place: ModulePlace, input: Any, other: Any) -> Any:
        operands = [operand(place, value) for value in ((other, input) if swaps else (input, other))]
        tensors = [value for value in operands if isinstance(value, TracedTensor)]
        rows = [x.dim() - 1 for x in tensors if not x.unbatched] or [max(x.dim() for x in tensors)]
        symbols: list[Any] = [align(place, x, max(rows)) for x in tensors] if tensors[1:] else [tensors[0].symbol]
        fields: dict[str, Any] = {"operator": operator}
        if len(tensors) == 1:
            fields["number"] = operands[1] if tensors[0] is operands[0] else operands[0]
            fields |= {"swapped": True} if tensors[0] is not operands[0] else {}
        is_simple = operator in SIMPLE and len(symbols) > 1 and rows_of(symbols[0]) == rows_of(symbols[1])
        kind, fields = (SIMPLE[operator], {}) if is_simple else ("kArithmetic", fields)
        y = nn.Layer(kind, name=place.name(), **fields)(symbols)
        return like(next((x for x in tensors if not x.unbatched), tensors[0]), y)

    return operate


add, subtract, multiply, divide, power = map(binary, ("ADD", "SUBTRACT", "MULTIPLY", "DIVIDE", "POWER"))
maximum, minimum = binary("MAXIMUM"), binary("MINIMUM")
equal, not_equal, greater, greater_equal = map(binary, ("EQUAL", "NOT_EQUAL", "GREATER", "GREATER_EQUAL"))


def clamp(place: ModulePlace, input: Any, min: Any = None, max: Any = None, inplace: bool = False) -> Any:
    """Return a tensor with its numbers between two."""
    y = input if min is None else place.trace.wrapped(maximum(place, input, min))
    return y if max is None else minimum(place, y, max)


def between(place: ModulePlace, input: Any, low: float = -1.0, high: float = 1.0, inplace: bool = False) -> Any:
    """Return a tensor with its numbers between two, at which its gradient is 0, unlike that of :func:`clamp`."""
    return minimum(place, high, place.trace.wrapped(maximum(place, low, input)))


def absolute(place: ModulePlace, input: Any) -> Any:
    """Return max(x, 0) + max(-x, 0), whose gradient at 0 is 0."""
    wrapped = place.trace.wrapped
    parts = [nn.ReLU(name=place.name(".part"))(feature(wrapped(x))) for x in (input, multiply(place, input, -1.0))]
    return nn.Layer("kAdd", name=place.name())(*parts)


def logical(combine: Callable[..., Any]) -> Callable[..., Any]:
    """Return the function of truth values, which are 0 or 1."""

    def operate(place: ModulePlace, *args: Any) -> Any:
        if any(isinstance(x, torch.Tensor) and x.dtype != torch.bool for x in args):
            raise NotConvertible("of numbers that are no truth values")
        return combine(place, *args)

    return operate


def where(place: ModulePlace, condition: Any, input: Any, other: Any) -> Any:
    """Return a tensor where a condition holds, another one elsewhere; -inf is a number that softmax makes 0."""
    if condition.dtype != torch.bool:
        raise NotConvertible("by numbers that are no truth values")
    wrapped = place.trace.wrapped
    parts = []
    for x, share in ((input, condition), (other, None)):
        if not isinstance(x, torch.Tensor) or x.numel() == 1:
            x = max(float(x), HIDDEN)
        is_zero = not isinstance(x, TracedTensor) and not torch.as_tensor(x).any()
        if not is_zero:
            share = wrapped(subtract(place, 1.0, condition)) if share is None else share
            parts.append(wrapped(multiply(place, share, x)))
    return add(place, *parts) if parts[1:] else parts[0]


def masked_fill(place: ModulePlace, input: Any, mask: Any, value: float) -> Any:
    """Return scores with a number in place of those that a mask hides, which a softmax then makes 0."""
    if isinstance(mask, TracedTensor):
        return where(place, mask, value, input)
    if value > -1e4:
        raise NotConvertible("with a constant mask and a value above -1e4")
    return add(place, input, torch.where(mask.bool(), HIDDEN, 0.0))


def of_numbers(make: Callable[..., Any]) -> Callable[..., Any]:
    """Return the function of single numbers that a layer computes."""
    return lambda place, input, *args, inplace=False: make(*args, name=place.name())(feature(input))


def leaky_relu(place: ModulePlace, input: Any, negative_slope: float = 0.01, inplace: bool = False) -> Any:
    """Return x, or slope·x where it is negative."""
    return nn.ReLU(negative_slope, name=place.name())(feature(input))


def formula(kind: str) -> Callable[..., Any]:
    """Return the function of mathematics of this name in kActivation."""
    return lambda place, input: nn.Layer("kActivation", name=place.name(), activation_conf={"type": kind})(
        feature(input)
    )


def exponential(kind: str) -> Callable[..., Any]:
    """Return the function of ELU or CELU."""

    def operate(place: ModulePlace, input: Any, alpha: float = 1.0, inplace: bool = False) -> Any:
        settings = {"type": kind} if alpha == 1 else {"type": kind, "alpha": alpha}
        return nn.Layer("kActivation", name=place.name(), activation_conf=settings)(feature(input))

    return operate


def softplus(place: ModulePlace, input: Any, beta: float = 1.0, threshold: float = 20.0) -> Any:
    """Return log(1 + e^(βx)) / β, which above the threshold is x to the bit, or nearly."""
    x = input if beta == 1 else place.trace.wrapped(multiply(place, input, beta))
    y = nn.Activation("softplus", name=place.name())(feature(x))
    return y if beta == 1 else divide(place, place.trace.wrapped(y), beta)


def logsigmoid(place: ModulePlace, input: Any) -> Any:
    """Return -log(1 + e^-x)."""
    y = softplus(place, place.trace.wrapped(multiply(place, input, -1.0)))
    return multiply(place, place.trace.wrapped(y), -1.0)


def gelu(place: ModulePlace, input: Any, approximate: str = "none") -> Any:
    """Return x·Φ(x), or its approximation by tanh."""
    return composed.gelu(place, feature(input), approximate)


def softmax(place: ModulePlace, input: Any, dim: Any = None, _stacklevel: int = 3, dtype: Any = None) -> Any:
    """Return the softmax over the last axis."""
    axis = None if dim is None else dim % input.dim()
    if not axis or input.batch_axis:
        raise NotConvertible(f"over the axis {dim}; give it an axis of a record")
    return composed.softmax_over(place, feature(input), axis)


def log_softmax(place: ModulePlace, input: Any, dim: Any = None, _stacklevel: int = 3, dtype: Any = None) -> Any:
    """Raise NotConvertible for log_softmax, with the remedy."""
    raise NotConvertible("(the loss takes scores: return those)")


def drops(place: ModulePlace, ratio: float, training: bool) -> bool:
    """Whether dropout makes numbers 0 in this call. Raises NotConvertible for what drops them in evaluation, too."""
    if ratio and training and not place.trace.training:
        raise NotConvertible("(which drops in evaluation, too: give it training=self.training)")
    return bool(ratio and training)


def dropping(layer: Any) -> Callable[..., Any]:
    """Return the function that makes numbers, or channels, 0 in training."""

    def drop(place: ModulePlace, input: Any, p: float = 0.5, training: bool = True, inplace: bool = False) -> Any:
        x = feature(input)
        return layer(p, name=place.name())(x) if drops(place, p, training) else x

    return drop


def pooling(kind: str, axes: int) -> Callable[..., Any]:
    """Return the function that pools windows of sequences (B, C, T), images or volumes; ``kind`` is Max or Average."""
    layer = getattr(nn, f"{kind}Pooling{max(axes, 2)}D")

    def pool(
        place: ModulePlace, input: Any, kernel_size: Any, stride: Any = None, padding: Any = 0, ceil_mode: bool = False,
        count_include_pad: bool = True, divisor_override: Any = None, *, dilation: Any = 1,
        return_indices: bool = False,
    ) -> Any:  # fmt: skip
        others = {"divisor_override": divisor_override, "return_indices": return_indices}
        if wrong := [name for name, value in others.items() if value]:
            raise NotConvertible(f"with {', '.join(wrong)}")
        symbol = feature(input, axes + 1)
        given = (kernel_size, stride or kernel_size, padding, dilation)
        kernel, steps, pad, gaps = (sizes_of(size, axes) for size in given)
        if axes == 1:
            symbol, kernel, steps, pad = as_image(place, symbol), (1, *kernel), (1, *steps), (0, *pad)
            gaps = (1, *gaps)
        if ceil_mode or {*gaps} != {1}:
            fields: dict[str, Any] = sides("kernel", kernel) | sides("stride", steps)
            fields |= {} if {*gaps} == {1} else sides("dilation", gaps)
            fields |= {"ceil": True} if ceil_mode else {}
            fields |= sides("pad", pad) if any(pad) else {}
            fields |= {} if kind == "Max" else {"pool": "AVG", "count_include_pad": count_include_pad}
            y = nn.Layer("kPooling", name=place.name(), **fields)(symbol)
            return as_sequence(place, y) if axes == 1 else y
        if kind == "Average" and any(pad) and count_include_pad:
            around = nn.ZeroPadding2D if axes < 3 else nn.ZeroPadding3D
            symbol, pad = around(pad, name=place.name(".pad"))(symbol), (0,) * len(pad)
        y = layer(kernel, steps, pad, name=place.name())(symbol)
        return as_sequence(place, y) if axes == 1 else y

    return pool


def adaptive(kind: str, axes: int) -> Callable[..., Any]:
    """Return the function of means or maxima over as many windows as the result has pixels."""

    def adapt(place: ModulePlace, input: Any, output_size: Any, return_indices: bool = False) -> Any:
        sizes = tuple(input.shape[2:])
        counts = [
            size if count is None else count for size, count in zip(sizes, sizes_of(output_size, axes), strict=True)
        ]
        if return_indices:
            raise NotConvertible("with return_indices")
        if {*counts} == {1} and axes > 1 and kind == "Average":
            return nn.Layer("kPooling", pool="AVG", global_pooling=True, name=place.name())(feature(input, axes + 1))
        if not any(size % count for size, count in zip(sizes, counts, strict=True)):
            return pooling(kind, axes)(place, input, tuple(map(floordiv, sizes, counts)))
        symbol = feature(input, axes + 1)
        if axes == 1:
            symbol, counts = as_image(place, symbol), [1, *counts]
        y = getattr(nn, f"Adaptive{kind}Pooling{len(counts)}D")(tuple(counts), name=place.name())(symbol)
        return as_sequence(place, y) if axes == 1 else y

    return adapt


def pad(place: ModulePlace, input: Any, pad: Any, mode: str = "constant", value: float | None = None) -> Any:
    """Return a tensor with numbers around its last axes, which become those of an image or a volume."""
    symbol, rows = feature(input), tuple(input.shape[1:])
    sides = [pad] * 2 * (len(rows) - 1) if isinstance(pad, int) else [*pad]
    pairs = [*zip(sides[::2], sides[1::2], strict=True)][::-1]
    if min(sides) < 0 and mode == "constant":  # which leaves points out
        kept = zip(rows[-len(pairs) :], pairs, strict=True)
        symbol = symbol[(..., *(slice(max(-first, 0), size - max(-last, 0)) for size, (first, last) in kept))]
        symbol.builder.name = place.name(".inner")
        sides = [max(side, 0) for side in sides]
        rows, pairs = rows_of(symbol), [*zip(sides[::2], sides[1::2], strict=True)][::-1]
    images = rows if len(rows) > 2 and len(pairs) < len(rows) else (*(1,) * max(1, 3 - len(rows)), *rows)
    if min(sides) < 0 or len(pairs) > len(rows) or len(images) > 4 or not math.isfinite(value or 0):
        raise NotConvertible(f"of {tuple(sides)} with the value {value or 0} around {len(rows)} axes")
    padding = ((0, 0),) * (len(images) - 1 - len(pairs)) + tuple(pairs)
    layer = nn.Padding2D if len(images) == 3 else nn.Padding3D
    if images != rows:
        symbol = reshaped(place, symbol, images, ".axes")
    y = layer(padding, PAD_MODES[mode], value or 0.0, name=place.name())(symbol)
    if images != rows:
        y = reshaped(place, y, rows_of(y)[len(images) - len(rows) :], ".rows")
    return y


def interpolate(
    place: ModulePlace, input: Any, size: Any = None, scale_factor: Any = None, mode: str = "nearest",
    align_corners: Any = None, recompute_scale_factor: Any = None, antialias: bool = False,
) -> Any:  # fmt: skip
    """Return sequences (B, C, T), images or volumes of another size."""
    old, axes = tuple(input.shape[2:]), input.dim() - 2
    given = (size, scale_factor, mode, align_corners, recompute_scale_factor, antialias)
    new = tuple(place.torch_result(input, *given).shape[2:])
    if mode == "area":
        return adaptive("Average", axes)(place, input, new)
    is_whole = not any(n % o for n, o in zip(new, old, strict=True))
    scales = None if size or recompute_scale_factor or align_corners else sizes_of(scale_factor, axes)
    scales = None if scales and all(n == o * s for n, o, s in zip(new, old, scales, strict=True)) else scales
    symbol = feature(input)
    if axes == 1:
        old, new, symbol, scales = (1, *old), (1, *new), as_image(place, symbol), scales and (1, *scales)
    if is_whole and not (scales or align_corners or mode == "bicubic"):  # where antialias changes nothing
        factors = tuple(map(floordiv, new, old))
        layer, between = (nn.UpSampling3D, "trilinear") if axes == 3 else (nn.UpSampling2D, "bilinear")
        y = layer(factors, "nearest" if mode.startswith("nearest") else between, name=place.name())(symbol)
    else:
        settings: dict[str, Any] = {"size": list(new), **RESIZING.get(mode, {})}
        settings |= {"scale": list(map(float, scales))} if scales else {}
        settings |= {"coordinates": "kAlignCorners"} if align_corners else {}
        if antialias:
            settings |= {"antialias": True, "exclude_outside": True}
            settings |= {"cubic_coeff": -0.5} if mode == "bicubic" else {}
        y = nn.Layer("kResize", name=place.name(), **settings)(symbol)
    return as_sequence(place, y) if axes == 1 else y


def sizes_of(size: Any, axes: int) -> tuple[Any, ...]:
    """Return a size along each axis."""
    sizes = tuple(size) if isinstance(size, (list, tuple)) else (size,)
    return sizes * axes if len(sizes) == 1 else sizes


OPERATIONS: Mapping[str, Callable[..., Any]] = {
    **SHAPES,
    **dict.fromkeys(("add", "radd"), add),
    **dict.fromkeys(("sub", "subtract"), subtract),
    **dict.fromkeys(("mul", "multiply", "rmul"), multiply),
    **dict.fromkeys(("div", "divide", "true_divide", "truediv"), divide),
    **{**dict.fromkeys(("matmul", "bmm"), binary("MATMUL")), "maximum": maximum, "minimum": minimum, "pow": power},
    **{"rsub": binary("SUBTRACT", True), "rdiv": binary("DIVIDE", True), "rtruediv": binary("DIVIDE", True)},
    "neg": lambda place, input: multiply(place, input, -1.0),
    "square": lambda place, input: power(place, input, 2.0),
    **dict.fromkeys(("abs", "absolute"), absolute),
    **{"eq": equal, "ne": not_equal, "gt": greater, "ge": greater_equal},
    **{"lt": binary("GREATER", True), "le": binary("GREATER_EQUAL", True)},
    **dict.fromkeys(("and", "logical_and", "bitwise_and"), logical(multiply)),
    **dict.fromkeys(("or", "logical_or", "bitwise_or"), logical(maximum)),
    **dict.fromkeys(("invert", "logical_not", "bitwise_not"), logical(lambda place, x: subtract(place, 1.0, x))),
    **{"bool": lambda place, x: x if x.dtype == torch.bool else not_equal(place, x, 0.0), "where": where},
    "sqrt": lambda place, input: power(place, input, 0.5),
    "rsqrt": lambda place, input: power(place, input, -0.5),
    **{"clamp": clamp, "clip": clamp, "masked_fill": masked_fill},
    "hardtanh": lambda place, input, min_val=-1.0, max_val=1.0, inplace=False: between(place, input, min_val, max_val),
    "relu6": lambda place, input, inplace=False: between(place, input, 0.0, 6.0),
    **{
        name: of_numbers(functools.partial(nn.Activation, name))
        for name in ("sigmoid", "tanh", "silu", "selu", "mish", "softsign")
    },
    **{f"hard{name}": of_numbers(functools.partial(nn.Activation, f"hard_{name}")) for name in ("sigmoid", "swish")},
    **{name: formula(name.upper()) for name in ("exp", "log", "erf", "sin", "cos")},
    **{"elu": exponential("ELU"), "celu": exponential("CELU"), "softplus": softplus, "logsigmoid": logsigmoid},
    **{"relu": of_numbers(nn.ReLU), "leaky_relu": leaky_relu, "gelu": gelu},
    **{"softmax": softmax, "log_softmax": log_softmax, "dropout": dropping(nn.Dropout)},
    **dict.fromkeys(("dropout2d", "dropout3d"), dropping(nn.SpatialDropout2D)),
    **{f"max_pool{axes}d": pooling("Max", axes) for axes in (1, 2, 3)},
    **{f"avg_pool{axes}d": pooling("Average", axes) for axes in (1, 2, 3)},
    **{f"adaptive_avg_pool{axes}d": adaptive("Average", axes) for axes in (1, 2, 3)},
    **{f"adaptive_max_pool{axes}d": adaptive("Max", axes) for axes in (1, 2, 3)},
    **{"pad": pad, "interpolate": interpolate},
}

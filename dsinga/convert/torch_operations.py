"""The layers for operations of PyTorch: functions of (place, tensors, ...), with PyTorch's names and arguments."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping
from typing import Any

import torch

from dsinga import nn
from dsinga.convert.torch_shapes import (
    SHAPES,
    align,
    as_image,
    as_sequence,
    feature,
    like,
    of_last_axis,
    permuted,
    reshaped,
)
from dsinga.convert.torch_tracing import BATCH, ModulePlace, NotConvertible, TracedTensor, rows_of
from dsinga.nn.words.layer_adapters import sides
from dsinga.nn.writing.operators import SIMPLE
from dsinga.nn.writing.symbol import Symbol

HIDDEN = -1e9  # added to the scores of what is not seen; the softmax of numbers with it is 0 there
PAD_MODES = {"constant": "zero", "reflect": "reflect", "replicate": "edge", "circular": "periodic"}


def operand(place: ModulePlace, value: Any) -> Any:
    """Return an operand as a number or a traced tensor; a constant tensor becomes a param that keeps its value."""
    if isinstance(value, TracedTensor):
        return value
    if not isinstance(value, torch.Tensor) or value.dim() == 0:
        if float(value) in (BATCH, 1 / BATCH):
            raise NotConvertible("by the number of records of a batch")
        return float(value)
    if value.requires_grad or isinstance(value, torch.nn.Parameter):
        raise NotConvertible("of a param that belongs to another layer")
    if len(value) == BATCH:  # made for the batch, as by torch.zeros(len(x), 3)
        if not bool((value == value[:1]).all()):
            raise NotConvertible("of constants that differ among the records of a batch")
        value = value[:1]
    return place.trace.learnt(place.name(".values"), value.float(), is_constant=True)


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


def clamp(place: ModulePlace, input: Any, min: Any = None, max: Any = None, inplace: bool = False) -> Any:
    """Return a tensor with its numbers between two."""
    y = input if min is None else place.trace.wrapped(maximum(place, input, min))
    return y if max is None else minimum(place, y, max)


def hardsigmoid(place: ModulePlace, input: Any, inplace: bool = False) -> Any:
    """Return x + 3 between 0 and 6, divided by 6."""
    y = clamp(place, place.trace.wrapped(add(place, input, 3.0)), 0.0, 6.0)
    return divide(place, place.trace.wrapped(y), 6.0)


def hardswish(place: ModulePlace, input: Any, inplace: bool = False) -> Any:
    """Return x times its hard sigmoid."""
    return multiply(place, input, place.trace.wrapped(hardsigmoid(place, input)))


def masked_fill(place: ModulePlace, input: Any, mask: Any, value: float) -> Any:
    """Return scores with a number in place of those that a constant mask hides, which a softmax then makes 0."""
    if isinstance(mask, TracedTensor) or value > -1e4:
        raise NotConvertible("with a mask that is no constant, or a value above -1e4")
    return add(place, input, torch.where(mask.bool(), HIDDEN, 0.0))


def of_numbers(make: Callable[..., Any]) -> Callable[..., Any]:
    """Return the function of single numbers that a layer computes."""
    return lambda place, input, *args, inplace=False: make(*args, name=place.name())(feature(input))


def leaky_relu(place: ModulePlace, input: Any, negative_slope: float = 0.01, inplace: bool = False) -> Any:
    """Return x, or slope·x where it is negative."""
    return nn.ReLU(negative_slope, name=place.name())(feature(input))


def gelu(place: ModulePlace, input: Any, approximate: str = "none") -> Any:
    """Return x·Φ(x), or its approximation by tanh."""
    x = feature(input)
    if approximate == "none":
        return nn.GELU(name=place.name())(x)
    inner = nn.Activation("tanh", name=place.name(".tanh"))((x + x**3 * 0.044715) * math.sqrt(2 / math.pi))
    return nn.Layer("kMultiply", name=place.name())(x, (inner + 1.0) * 0.5)


def softmax(place: ModulePlace, input: Any, dim: Any = None, _stacklevel: int = 3, dtype: Any = None) -> Any:
    """Return the softmax over the last axis."""
    symbol, rows = feature(input), rows_of(feature(input))
    if dim is None or dim % input.dim() != len(rows):
        raise NotConvertible(f"over the axis {dim}, which is not the last one")
    if len(rows) == 1:
        return nn.Softmax(name=place.name())(symbol)
    return nn.Layer("kSoftmax", num_softmax_per_instance=math.prod(rows[:-1]), name=place.name())(symbol)


def log_softmax(place: ModulePlace, input: Any, dim: Any = None, _stacklevel: int = 3, dtype: Any = None) -> Any:
    """Refuse the logarithms of probabilities, with the remedy."""
    raise NotConvertible("(the loss takes scores: return those)")


def dropping(layer: Any) -> Callable[..., Any]:
    """Return the function that makes numbers, or channels, 0 in training."""

    def drop(place: ModulePlace, input: Any, p: float = 0.5, training: bool = True, inplace: bool = False) -> Any:
        return layer(p, name=place.name())(feature(input)) if p and training else feature(input)

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
        others["dilation"] = {*_sizes(dilation, 1)} != {1}
        if wrong := [name for name, value in others.items() if value]:
            raise NotConvertible(f"with {', '.join(wrong)}")
        symbol = feature(input, axes + 1)
        kernel, steps, pad = (_sizes(size, axes) for size in (kernel_size, stride or kernel_size, padding))
        if axes == 1:
            symbol, kernel, steps, pad = as_image(place, symbol), (1, *kernel), (1, *steps), (0, *pad)
        if ceil_mode:
            fields: dict[str, Any] = sides("kernel", kernel) | sides("stride", steps)
            fields |= sides("pad", pad) if any(pad) else {}
            fields |= {} if kind == "Max" else {"pool": "AVG", "count_include_pad": count_include_pad}
            y = nn.Layer("kPooling", ceil=True, name=place.name(), **fields)(symbol)
            return as_sequence(place, y) if axes == 1 else y
        if kind == "Average" and any(pad) and count_include_pad:
            around = nn.ZeroPadding2D if axes < 3 else nn.ZeroPadding3D
            symbol, pad = around(pad, name=place.name(".pad"))(symbol), (0,) * len(pad)
        y = layer(kernel, steps, pad, name=place.name())(symbol)
        return as_sequence(place, y) if axes == 1 else y

    return pool


def adaptive_mean(axes: int) -> Callable[..., Any]:
    """Return the function of means over as many equal windows as the result has pixels."""

    def adapt(place: ModulePlace, input: Any, output_size: Any) -> Any:
        sizes = tuple(input.shape[2:])
        counts = [
            size if count is None else count for size, count in zip(sizes, _sizes(output_size, axes), strict=True)
        ]
        if any(size % count for size, count in zip(sizes, counts, strict=True)):
            raise NotConvertible(f"to {tuple(counts)}, which does not divide {sizes}")
        if {*counts} == {1} and axes > 1:
            return nn.Layer("kPooling", pool="AVG", global_pooling=True, name=place.name())(feature(input, axes + 1))
        kernel = tuple(size // count for size, count in zip(sizes, counts, strict=True))
        return pooling("Average", axes)(place, input, kernel)

    return adapt


def mean(place: ModulePlace, input: Any, dim: Any = None, keepdim: bool = False, dtype: Any = None) -> Any:
    """Return means of images or volumes over all pixels, or of sequences over their steps."""
    symbol, rank = feature(input), input.dim()
    axes = sorted(axis % rank for axis in ([] if dim is None else [dim] if isinstance(dim, int) else dim))
    if axes == [1] and rank == 3:
        y = nn.GlobalAveragePooling1D(name=place.name())(symbol)
    elif axes == list(range(2, rank)) and rank in (4, 5):
        y = nn.Layer("kPooling", pool="AVG", global_pooling=True, name=place.name())(symbol)
    else:
        raise NotConvertible(f"over the axes {dim}, which are not the pixels of images or the steps of sequences")
    return reshaped(place, y, place.torch_result(input, dim, keepdim).shape[1:], ".rows")


def pad(place: ModulePlace, input: Any, pad: Any, mode: str = "constant", value: float | None = None) -> Any:
    """Return images or volumes with pixels around them."""
    axes = input.dim() - 2
    sides = [pad] * 2 * axes if isinstance(pad, int) else [*pad]
    if value or axes not in (2, 3) or min(sides) < 0 or len(sides) > 2 * axes:
        raise NotConvertible(f"of {tuple(sides)} with the value {value or 0} around {axes} axes")
    pairs = [*zip(sides[::2], sides[1::2], strict=True)][::-1]
    layer = nn.Padding2D if axes == 2 else nn.Padding3D
    padding = ((0, 0),) * (axes - len(pairs)) + tuple(pairs)
    return layer(padding, PAD_MODES[mode], name=place.name())(feature(input))


def interpolate(
    place: ModulePlace, input: Any, size: Any = None, scale_factor: Any = None, mode: str = "nearest",
    align_corners: Any = None, recompute_scale_factor: Any = None, antialias: bool = False,
) -> Any:  # fmt: skip
    """Return images or volumes a whole number of times as large."""
    old, axes = tuple(input.shape[2:]), input.dim() - 2
    new = tuple(place.torch_result(input, size, scale_factor, mode, align_corners).shape[2:])
    linear = "bilinear" if axes == 2 else "trilinear"
    if axes not in (2, 3) or mode not in ("nearest", "nearest-exact", linear) or align_corners or antialias:
        raise NotConvertible(f"with the mode {mode!r}, align_corners={align_corners}, antialias={antialias}")
    if any(n % o for n, o in zip(new, old, strict=True)):
        raise NotConvertible(f"from {old} to {new}, which is no whole number of times as large")
    factors = tuple(n // o for n, o in zip(new, old, strict=True))
    layer = nn.UpSampling2D if axes == 2 else nn.UpSampling3D
    return layer(factors, linear if mode == linear else "nearest", name=place.name())(feature(input))


def _sizes(size: Any, axes: int) -> tuple[Any, ...]:
    sizes = tuple(size) if isinstance(size, (list, tuple)) else (size,)
    return sizes * axes if len(sizes) == 1 else sizes


def hides_later(mask: Any, hidden: bool) -> bool:
    """Whether a mask (T, T) hides exactly the later steps; ``hidden`` says that True stands for what is hidden."""
    if isinstance(mask, TracedTensor) or mask.dim() < 2 or mask.numel() != mask.shape[-1] ** 2:
        return False
    square = mask.reshape(mask.shape[-1], -1)
    hides = square == hidden if square.dtype == torch.bool else square < -1e4
    return bool((hides == torch.ones_like(hides).triu(1)).all())


def heads(place: ModulePlace, symbol: Symbol, count: int) -> Any:
    """Return sequences (B, T, n) with an axis of heads, (B, count, T, n/count)."""
    steps, width = rows_of(symbol)
    return permuted(place, reshaped(place, symbol, (steps, count, width // count), ".heads"), (2, 1, 3), ".split")


def join_heads(place: ModulePlace, symbol: Symbol) -> Any:
    """Return sequences of heads (B, H, T, n) as (B, T, H·n)."""
    count, steps, width = rows_of(symbol)
    return reshaped(place, permuted(place, symbol, (2, 1, 3), ".steps"), (steps, count * width), ".joined")


def attend(place: ModulePlace, q: Symbol, k: Symbol, v: Symbol, ratio: float, causal: bool) -> Any:
    """Return attention of heads (B, H, T, n) whose weights are dropped at random, by products of matrices."""
    wrapped = place.trace.wrapped
    scores = q @ permuted(place, k, (1, 3, 2), ".keys") * (1 / math.sqrt(rows_of(q)[-1]))
    if causal:
        steps = rows_of(q)[1]
        scores = masked_fill(place, wrapped(scores), torch.ones(steps, steps).triu(1) > 0, HIDDEN)
    return nn.Dropout(ratio, name=place.name(".dropout"))(softmax(place, wrapped(scores), -1)) @ v


def scaled_dot_product_attention(
    place: ModulePlace, query: Any, key: Any, value: Any, attn_mask: Any = None, dropout_p: float = 0.0,
    is_causal: bool = False, scale: float | None = None, enable_gqa: bool = False,
) -> Any:  # fmt: skip
    """Return attention of heads (B, H, T, n)."""
    causal = is_causal or (attn_mask is not None and hides_later(attn_mask, hidden=False))
    if (attn_mask is not None and not causal) or enable_gqa:
        raise NotConvertible("with an attn_mask that is not causal, or enable_gqa")
    q, k, v = (feature(x, 3) for x in (query, key, value))
    if scale is not None and not math.isclose(scale, 1 / math.sqrt(rows_of(q)[-1])):
        q = q * (scale * math.sqrt(rows_of(q)[-1]))
    if dropout_p:
        return attend(place, q, k, v, dropout_p, causal)
    joined, count = [join_heads(place, x) for x in (q, v, k)], rows_of(q)[0]
    layer = nn.Attention(num_heads=count, score_mode="scaled_dot", use_causal_mask=causal, name=place.name())
    return heads(place, layer(joined), count)


def linear(place: ModulePlace, input: Any, weight: Any, bias: Any = None) -> Any:
    """Return a fully connected layer whose weight is that of another layer, as of an embedding below."""
    owner = place.trace.owners.get((id(weight), ""))
    if owner is None or bias is not None:
        raise NotConvertible("with a weight that is no other layer's, or with a bias")
    dense = nn.Dense(len(weight), use_bias=False, name=place.name(), param=[{"share_from": owner}])
    return of_last_axis(place, dense, input, len(weight))


def same(place: ModulePlace, input: Any, *args: Any, **kwargs: Any) -> Any:
    """Return the tensor itself."""
    return input


OPERATIONS: Mapping[str, Callable[..., Any]] = {
    **SHAPES,
    **dict.fromkeys(("add", "radd"), add),
    **dict.fromkeys(("sub", "subtract"), subtract),
    **dict.fromkeys(("mul", "multiply", "rmul"), multiply),
    **dict.fromkeys(("div", "divide", "true_divide", "truediv"), divide),
    **{"matmul": binary("MATMUL"), "maximum": maximum, "minimum": minimum, "pow": power},
    **{"rsub": binary("SUBTRACT", True), "rdiv": binary("DIVIDE", True), "rtruediv": binary("DIVIDE", True)},
    "neg": lambda place, input: multiply(place, input, -1.0),
    "square": lambda place, input: power(place, input, 2.0),
    "sqrt": lambda place, input: power(place, input, 0.5),
    "rsqrt": lambda place, input: power(place, input, -0.5),
    **{"clamp": clamp, "clip": clamp, "hardsigmoid": hardsigmoid, "hardswish": hardswish, "masked_fill": masked_fill},
    "hardtanh": lambda place, input, min_val=-1.0, max_val=1.0, inplace=False: clamp(place, input, min_val, max_val),
    "relu6": lambda place, input, inplace=False: clamp(place, input, 0.0, 6.0),
    **{name: of_numbers(functools.partial(nn.Activation, name)) for name in ("sigmoid", "tanh", "silu")},
    **{"relu": of_numbers(nn.ReLU), "leaky_relu": leaky_relu, "gelu": gelu},
    **{"softmax": softmax, "log_softmax": log_softmax, "dropout": dropping(nn.Dropout)},
    **dict.fromkeys(("dropout2d", "dropout3d"), dropping(nn.SpatialDropout2D)),
    **dict.fromkeys(("contiguous", "to", "float", "long", "type_as", "data"), same),
    **{f"max_pool{axes}d": pooling("Max", axes) for axes in (1, 2, 3)},
    **{f"avg_pool{axes}d": pooling("Average", axes) for axes in (1, 2, 3)},
    **{f"adaptive_avg_pool{axes}d": adaptive_mean(axes) for axes in (1, 2, 3)},
    **{"mean": mean, "pad": pad, "interpolate": interpolate, "linear": linear},
    "scaled_dot_product_attention": scaled_dot_product_attention,
    "clone": lambda place, input, **kwargs: like(input, input.symbol),
}

"""The layers for operations of PyTorch: functions of (place, tensors, ...), with PyTorch's names and arguments."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from dsinga import nn
from dsinga.convert.torch_names import AS_IMAGE
from dsinga.convert.torch_tracing import BATCH, ModulePlace, NotConvertible, TracedTensor, rows_of
from dsinga.nn.writing.symbol import Symbol

HIDDEN = -1e9  # added to the scores of what is not seen; the softmax of numbers with it is 0 there
POOL_AXES = (1, 2, 3)


def feature(x: Any, rank: int | None = None) -> Symbol:
    """Return the feature of a tensor of the batch; of ``rank`` axes, where one is given. Raises NotConvertible."""
    if not isinstance(x, TracedTensor) or x.is_shared or x.symbol is None:
        raise NotConvertible("computed from params and constants only")
    if rank is not None and len(x.shape) != rank + 1:
        raise NotConvertible(f"of a tensor with {len(x.shape)} axes, not {rank + 1}")
    return x.symbol


def reshaped(place: ModulePlace, symbol: Symbol, rows: Sequence[int], suffix: str = "") -> Symbol:
    """Return a feature with rows of another shape; where it was reshaped before, from what it was then."""
    while symbol.builder.kind in ("Reshape", "Flatten") and not (symbol.builder.name or "").endswith(AS_IMAGE):
        symbol = symbol.sources[0]
    if rows_of(symbol) == tuple(rows):
        return symbol
    if len(rows) == 1:
        return nn.Flatten(name=place.name(suffix))(symbol)  # type: ignore[no-any-return]
    return nn.Reshape([*rows], name=place.name(suffix))(symbol)  # type: ignore[no-any-return]


def permuted(place: ModulePlace, symbol: Symbol, dims: Sequence[int], suffix: str = "") -> Symbol:
    """Return a feature with the axes of rows, counted from 1, in another order; two orders in a row are one."""
    order = list(dims)
    if symbol.builder.kind == "Permute":
        before, symbol = symbol.builder.settings["dims"], symbol.sources[0]
        order = [before[axis - 1] for axis in order]
    if order == sorted(order):
        return symbol
    return nn.Permute(order, name=place.name(suffix))(symbol)  # type: ignore[no-any-return]


def of_last_axis(place: ModulePlace, layer: Any, x: Any, width: int) -> Symbol:
    """Return what a fully connected layer makes of the last axis of a tensor."""
    symbol = feature(x)
    *others, inputs = x.shape[1:]
    if len(others) < 2:
        return layer(symbol)  # type: ignore[no-any-return]
    y = layer(reshaped(place, symbol, (math.prod(others), inputs), ".rows"))
    return reshaped(place, y, (*others, width), ".axes")


# --- shapes


def view(place: ModulePlace, x: Any, *shape: Any) -> Any:
    """Return a tensor with rows of another shape. Raises NotConvertible where records would be mixed."""
    sizes = list(shape[0]) if len(shape) == 1 and not isinstance(shape[0], int) else list(shape)
    if x.is_shared:
        sizes = _known(sizes, x.shape)
        return TracedTensor(x.trace, reshaped(place, x.symbol, sizes), sizes, is_shared=True)
    rows = _known(sizes, x.shape)
    if not rows or rows[0] != BATCH:
        raise NotConvertible(f"to {tuple(sizes)}, which mixes the records of a batch")
    return reshaped(place, feature(x), rows[1:] or (1,))


def _known(sizes: Sequence[int], shape: Sequence[int]) -> list[int]:
    known = math.prod(size for size in sizes if size != -1)
    return [math.prod(shape) // known if size == -1 else size for size in sizes]


def flatten(place: ModulePlace, x: Any, start_dim: int = 0, end_dim: int = -1) -> Any:
    """Return a tensor with some axes in one."""
    start, end = start_dim % x.dim(), end_dim % x.dim()
    return view(place, x, *x.shape[:start], math.prod(x.shape[start : end + 1]), *x.shape[end + 1 :])


def permute(place: ModulePlace, x: Any, *dims: Any) -> Any:
    """Return a tensor with its axes in another order. Raises NotConvertible for that of the batch."""
    axes = [axis % x.dim() for axis in (dims[0] if len(dims) == 1 and not isinstance(dims[0], int) else dims)]
    if x.is_shared:
        symbol = permuted(place, x.symbol, [axis + 1 for axis in axes])
        return TracedTensor(x.trace, symbol, rows_of(symbol), is_shared=True)
    if axes[0] != 0:
        raise NotConvertible("moves the axis of the batch, which is the first one")
    return permuted(place, feature(x), axes[1:])


def transpose(place: ModulePlace, x: Any, dim0: int, dim1: int) -> Any:
    """Return a tensor with two axes exchanged."""
    axes = list(range(x.dim()))
    first, second = dim0 % len(axes), dim1 % len(axes)
    axes[first], axes[second] = second, first
    return permute(place, x, axes)


def unsqueeze(place: ModulePlace, x: Any, dim: int) -> Any:
    """Return a tensor with an axis of length 1 more."""
    shape = list(x.shape)
    shape.insert(dim % (len(shape) + 1), 1)
    return view(place, x, *shape)


def squeeze(place: ModulePlace, x: Any, dim: Any = None) -> Any:
    """Return a tensor without an axis, or without all axes, of length 1."""
    count = x.dim()
    dropped = range(count) if dim is None else [axis % count for axis in ([dim] if isinstance(dim, int) else dim)]
    return view(place, x, *(size for axis, size in enumerate(x.shape) if axis not in dropped or size != 1))


def expand(place: ModulePlace, x: Any, *sizes: Any) -> Any:
    """Return a param that is the same for all records with an axis of the batch."""
    shape = list(sizes[0]) if len(sizes) == 1 and not isinstance(sizes[0], int) else list(sizes)
    offset = len(shape) - x.dim()
    own = [1] * offset + list(x.shape)
    wanted = [known if size == -1 else size for size, known in zip(shape, own, strict=True)]
    if wanted == own:
        return x
    if not x.is_shared or wanted[0] not in (BATCH, 1) or own[0] != 1 or wanted[1:] != own[1:]:
        raise NotConvertible(f"to {tuple(shape)}")
    return reshaped(place, x.symbol, own[1:])


def getitem(place: ModulePlace, x: Any, key: Any) -> Any:
    """Return part of a tensor."""
    items = key if isinstance(key, tuple) else (key,)
    if any(isinstance(item, (torch.Tensor, list)) for item in items):
        raise NotConvertible("by an index that is a tensor")
    symbol = x.symbol[(slice(None), *items)] if x.is_shared else feature(x)[key]
    if symbol is not x.symbol:
        symbol.builder.name = place.name()
    if not x.is_shared:
        return symbol
    return TracedTensor(x.trace, symbol, rows_of(symbol), is_shared=True)


def split(place: ModulePlace, x: Any, split_size_or_sections: Any, dim: int = 0) -> Any:
    """Return the parts of a tensor along an axis."""
    axis, size = dim % x.dim(), split_size_or_sections
    if isinstance(size, int):
        size = [min(size, x.shape[axis] - start) for start in range(0, x.shape[axis], size)]
    ends = [sum(size[: number + 1]) for number in range(len(size))]
    before = [slice(None)] * axis
    return [getitem(place, x, (*before, slice(end - part, end))) for part, end in zip(size, ends, strict=True)]


def chunk(place: ModulePlace, x: Any, chunks: int, dim: int = 0) -> Any:
    """Return a tensor in equal parts along an axis."""
    return split(place, x, -(-x.shape[dim] // chunks), dim)


def cat(place: ModulePlace, tensors: Sequence[Any], dim: int = 0) -> Any:
    """Return tensors joined along an axis."""
    rank = max(tensor.dim() for tensor in tensors)
    if dim % rank == 0:
        raise NotConvertible("along the axis of the batch")
    return nn.Concatenate(axis=dim % rank, name=place.name())([feature(tensor) for tensor in tensors])


def pad(place: ModulePlace, input: Any, pad: Any, mode: str = "constant", value: float | None = None) -> Symbol:
    """Return images or volumes with pixels around them."""
    sides, axes = [pad] * 2 * (input.dim() - 2) if isinstance(pad, int) else [*pad], input.dim() - 2
    modes = {"constant": "zero", "zeros": "zero", "reflect": "reflect", "replicate": "edge", "circular": "periodic"}
    if value or axes not in (2, 3) or min(sides) < 0 or len(sides) > 2 * axes:
        raise NotConvertible(f"of {tuple(sides)} with the value {value or 0} around {axes} axes")
    pairs = [*zip(sides[::2], sides[1::2], strict=True)][::-1]
    padding = ((0, 0),) * (axes - len(pairs)) + tuple(pairs)
    layer = nn.Padding2D if axes == 2 else nn.Padding3D
    return layer(padding, modes[mode], name=place.name())(feature(input))  # type: ignore[no-any-return]


# --- operators


def align(place: ModulePlace, value: Any, rank: int) -> Symbol:
    """Return a tensor as a feature with ``rank`` axes of rows; one that is shared gets axes of length 1 in front."""
    if not value.is_shared:
        return feature(value, rank)
    shape = tuple(value.shape)
    shape = shape[1:] if len(shape) == rank + 1 and shape[0] == 1 else shape
    if len(shape) > rank:
        raise NotConvertible(f"of a param of the shape {tuple(value.shape)}, which mixes the records of a batch")
    return reshaped(place, value.symbol, (1,) * (rank - len(shape)) + shape, ".aligned")


def operand(place: ModulePlace, value: Any) -> Any:
    """Return an operand as a number or a traced tensor; a constant tensor becomes a param that keeps its value."""
    if not isinstance(value, torch.Tensor):
        return float(value)
    if isinstance(value, TracedTensor):
        return value
    if value.requires_grad or isinstance(value, torch.nn.Parameter):
        raise NotConvertible("of a param that belongs to another layer")
    if value.dim() == 0:
        return float(value)
    if len(value) == BATCH:  # made for the batch, as by torch.zeros(len(x), 3)
        if not bool((value == value[:1]).all()):
            raise NotConvertible("of constants that differ among the records of a batch")
        value = value[:1]
    return place.trace.learnt(place.name(".values"), value.float(), is_constant=True)


def binary(operator: str) -> Callable[..., Any]:
    """Return the function of an operator of two tensors, or of a tensor and a number."""

    def operate(place: ModulePlace, input: Any, other: Any, alpha: float = 1, rounding_mode: Any = None) -> Any:
        a, b = operand(place, input), operand(place, other)
        if alpha != 1 or rounding_mode is not None:
            raise NotConvertible("with alpha or rounding_mode")
        tensors = [x for x in (a, b) if isinstance(x, TracedTensor)]
        is_shared = all(x.is_shared for x in tensors)
        if len(tensors) == 1:
            number = {"number": b} if isinstance(a, TracedTensor) else {"number": a, "swapped": True}
            y = nn.Layer("kArithmetic", operator=operator, name=place.name(), **number)(tensors[0].symbol)
            return TracedTensor(place.trace, y, tensors[0].shape, True) if is_shared else y
        rank = max(x.dim() - (not x.is_shared) for x in tensors if is_shared or not x.is_shared)
        symbols = [align(place, x, rank) for x in tensors]
        simple = {"ADD": "kAdd", "MULTIPLY": "kMultiply"}.get(operator)
        if simple and rows_of(symbols[0]) == rows_of(symbols[1]):
            y = nn.Layer(simple, name=place.name())(symbols)
        else:
            y = nn.Layer("kArithmetic", operator=operator, name=place.name())(symbols)
        return TracedTensor(place.trace, y, rows_of(y), True) if is_shared else y

    return operate


add, subtract, multiply, divide, power = map(binary, ("ADD", "SUBTRACT", "MULTIPLY", "DIVIDE", "POWER"))
maximum, minimum, matmul = map(binary, ("MAXIMUM", "MINIMUM", "MATMUL"))


def clamp(place: ModulePlace, input: Any, min: Any = None, max: Any = None) -> Any:
    """Return a tensor with its numbers between two."""
    y = input if min is None else place.trace.wrapped(maximum(place, input, min))
    return y if max is None else minimum(place, y, max)


def masked_fill(place: ModulePlace, input: Any, mask: Any, value: float) -> Any:
    """Return scores with a number in place of those that a constant mask hides, which a softmax then makes 0."""
    if isinstance(mask, TracedTensor) or value > -1e4:
        raise NotConvertible("with a mask that is no constant, or a value above -1e4")
    return add(place, input, torch.where(mask.bool(), HIDDEN, 0.0))


# --- functions of single numbers


def activation(name: str) -> Callable[..., Any]:
    """Return the function of an activation of ``nn``."""
    return lambda place, input, inplace=False: nn.Activation(name, name=place.name())(feature(input))


def relu(place: ModulePlace, input: Any, inplace: bool = False) -> Symbol:
    """Return max(x, 0)."""
    return nn.ReLU(name=place.name())(feature(input))  # type: ignore[no-any-return]


def leaky_relu(place: ModulePlace, input: Any, negative_slope: float = 0.01, inplace: bool = False) -> Symbol:
    """Return x, or slope·x where it is negative."""
    return nn.ReLU(negative_slope, name=place.name())(feature(input))  # type: ignore[no-any-return]


def gelu(place: ModulePlace, input: Any, approximate: str = "none") -> Any:
    """Return x·Φ(x), or its approximation by tanh."""
    x = feature(input)
    if approximate == "none":
        return nn.GELU(name=place.name())(x)
    inner = nn.Activation("tanh", name=place.name(".tanh"))((x + x**3 * 0.044715) * math.sqrt(2 / math.pi))
    return nn.Layer("kMultiply", name=place.name())(x, (inner + 1.0) * 0.5)


def hardtanh(place: ModulePlace, input: Any, min_val: float = -1.0, max_val: float = 1.0, inplace: bool = False) -> Any:
    """Return x between two numbers."""
    return clamp(place, input, min_val, max_val)


def hardsigmoid(place: ModulePlace, input: Any, inplace: bool = False) -> Any:
    """Return x + 3 between 0 and 6, divided by 6."""
    return clamp(place, place.trace.wrapped(feature(input) + 3.0), 0.0, 6.0) * (1 / 6)


def hardswish(place: ModulePlace, input: Any, inplace: bool = False) -> Any:
    """Return x times its hard sigmoid."""
    return multiply(place, input, place.trace.wrapped(hardsigmoid(place, input)))


def softmax(place: ModulePlace, input: Any, dim: Any = None, _stacklevel: int = 3, dtype: Any = None) -> Symbol:
    """Return the softmax over the last axis."""
    rows = rows_of(feature(input))
    if dim is None or dim % input.dim() != len(rows):
        raise NotConvertible(f"over the axis {dim}, which is not the last one")
    if len(rows) == 1:
        return nn.Softmax(name=place.name())(feature(input))  # type: ignore[no-any-return]
    parts = math.prod(rows[:-1])
    return nn.Layer("kSoftmax", num_softmax_per_instance=parts, name=place.name())(feature(input))  # type: ignore[no-any-return]


def log_softmax(place: ModulePlace, input: Any, dim: Any = None, **others: Any) -> Any:
    """Refuse the logarithms of probabilities, with the remedy."""
    raise NotConvertible("(the loss takes scores: return those)")


def dropout(place: ModulePlace, input: Any, p: float = 0.5, training: bool = True, inplace: bool = False) -> Symbol:
    """Return x with some numbers 0 in training."""
    return nn.Dropout(p, name=place.name())(feature(input)) if p and training else feature(input)


def dropout_channels(
    place: ModulePlace, input: Any, p: float = 0.5, training: bool = True, inplace: bool = False
) -> Symbol:
    """Return x with some channels 0 in training."""
    return nn.SpatialDropout2D(p, name=place.name())(feature(input)) if p and training else feature(input)


def same(place: ModulePlace, input: Any, *args: Any, **kwargs: Any) -> Any:
    """Return the tensor itself."""
    return input


# --- pooling and interpolation


def pooling(axes: int, is_mean: bool) -> Callable[..., Any]:
    """Return the function that pools windows of images, or of sequences or volumes."""

    def pool(
        place: ModulePlace,
        input: Any,
        kernel_size: Any,
        stride: Any = None,
        padding: Any = 0,
        ceil_mode: bool = False,
        count_include_pad: bool = True,
        divisor_override: Any = None,
        dilation: Any = 1,
        return_indices: bool = False,
    ) -> Any:
        given = {"dilation": _sizes(dilation, 1) != (1,), "ceil_mode": ceil_mode, "return_indices": return_indices}
        given["divisor_override"] = divisor_override is not None
        if wrong := [
            name for name, is_given in given.items() if is_given and {*_sizes(dilation, 1)} != {1} or is_given
        ]:
            raise NotConvertible(f"with {', '.join(wrong)}")
        symbol = feature(input, axes + 1)
        sizes = [
            _sizes(size, axes)
            for size in (kernel_size, kernel_size if stride is None or stride == [] else stride, padding)
        ]
        if axes == 1:
            channels, steps = rows_of(symbol)
            symbol = reshaped(place, symbol, (channels, 1, steps), AS_IMAGE)
            sizes = [(fill, *size) for size, fill in zip(sizes, (1, 1, 0), strict=True)]
        fields: dict[str, Any] = {"pool": "AVG" if is_mean else "MAX"}
        for name, size in zip(("kernel", "stride", "pad"), sizes, strict=True):
            fields |= (
                {name: size[0]}
                if len({*size}) == 1
                else {f"{name}_{axis}": n for axis, n in zip("zyx"[-len(size) :], size, strict=True)}
            )
        if is_mean and not count_include_pad and any(sizes[2]):
            fields["count_include_pad"] = False
        y = nn.Layer("kPooling", name=place.name(), **fields)(symbol)
        return reshaped(place, y, (rows_of(y)[0], rows_of(y)[2]), ".steps") if axes == 1 else y

    return pool


def max_pool(axes: int) -> Callable[..., Any]:
    """Return the function of maxima, whose arguments have another order than those of means."""
    pool = pooling(axes, is_mean=False)

    def maximum_of_windows(
        place: ModulePlace, input: Any, kernel_size: Any, stride: Any = None, padding: Any = 0, dilation: Any = 1,
        ceil_mode: bool = False, return_indices: bool = False,
    ) -> Any:  # fmt: skip
        settings = {"dilation": dilation, "ceil_mode": ceil_mode, "return_indices": return_indices}
        return pool(place, input, kernel_size, stride, padding, **settings)

    return maximum_of_windows


def adaptive_mean(axes: int) -> Callable[..., Any]:
    """Return the function of means over as many equal windows as the result has pixels."""

    def adapt(place: ModulePlace, input: Any, output_size: Any) -> Any:
        sizes, wanted = tuple(input.shape[2:]), _sizes(output_size, axes)
        wanted = tuple(size if count is None else count for size, count in zip(sizes, wanted, strict=True))
        if any(size % count for size, count in zip(sizes, wanted, strict=True)):
            raise NotConvertible(f"to {wanted}, which does not divide {sizes}")
        if {*wanted} == {1} and axes > 1:
            settings = {"pool": "AVG", "global_pooling": True}
            return nn.Layer("kPooling", name=place.name(), **settings)(feature(input, axes + 1))
        kernel = tuple(size // count for size, count in zip(sizes, wanted, strict=True))
        return pooling(axes, is_mean=True)(place, input, kernel)

    return adapt


def mean(place: ModulePlace, input: Any, dim: Any = None, keepdim: bool = False, dtype: Any = None) -> Any:
    """Return means of images or volumes over all pixels, or of sequences over their steps."""
    symbol, rank = feature(input), input.dim()
    axes = sorted(axis % rank for axis in ([] if dim is None else [dim] if isinstance(dim, int) else dim))
    if axes == [1] and rank == 3:
        y = nn.GlobalAveragePooling1D(name=place.name())(symbol)
    elif axes == list(range(2, rank)) and rank in (4, 5):
        y = nn.Layer("kPooling", name=place.name(), pool="AVG", global_pooling=True)(symbol)
    else:
        raise NotConvertible(f"over the axes {dim}; over the pixels of images or the steps of sequences it is there")
    rows = [1 if axis in axes else size for axis, size in enumerate(input.shape)][1:]
    return reshaped(
        place, y, rows if keepdim else [size for axis, size in enumerate(rows, 1) if axis not in axes], ".rows"
    )


def interpolate(
    place: ModulePlace, input: Any, size: Any = None, scale_factor: Any = None, mode: str = "nearest",
    align_corners: Any = None, recompute_scale_factor: Any = None, antialias: bool = False,
) -> Symbol:  # fmt: skip
    """Return images or volumes a whole number of times as large."""
    axes, old = input.dim() - 2, tuple(input.shape[2:])
    new = (
        _sizes(size, axes)
        if size is not None
        else tuple(n * f for n, f in zip(old, _sizes(scale_factor, axes), strict=True))
    )
    factors = tuple(int(n / o) for n, o in zip(new, old, strict=True))
    if axes not in (2, 3) or any(f * o != n for f, o, n in zip(factors, old, new, strict=True)):
        raise NotConvertible(f"from {old} to {new}, which is no whole number of times as large")
    linear = "bilinear" if axes == 2 else "trilinear"
    if mode not in ("nearest", "nearest-exact", linear) or align_corners or antialias:
        raise NotConvertible(f"with the mode {mode!r}, align_corners={align_corners}, antialias={antialias}")
    layer = nn.UpSampling2D if axes == 2 else nn.UpSampling3D
    return layer(factors, linear if mode == linear else "nearest", name=place.name())(feature(input))  # type: ignore[no-any-return]


def _sizes(size: Any, axes: int) -> tuple[Any, ...]:
    sizes = tuple(size) if isinstance(size, (list, tuple)) else (size,)
    return sizes * axes if len(sizes) == 1 else sizes


# --- attention


def hides_later(mask: Any, hidden: bool) -> bool:
    """Whether a mask (T, T) hides exactly the later steps; ``hidden`` says that True stands for what is hidden."""
    if isinstance(mask, TracedTensor) or mask.dim() < 2 or mask.numel() != mask.shape[-1] ** 2:
        return False
    square = mask.reshape(mask.shape[-1], -1)
    hides = square == hidden if square.dtype == torch.bool else square < -1e4
    return bool((hides == torch.ones_like(hides).triu(1)).all())


def heads(place: ModulePlace, symbol: Symbol, count: int) -> Symbol:
    """Return sequences (B, T, n) with an axis of heads, (B, count, T, n/count)."""
    steps, width = rows_of(symbol)
    split = reshaped(place, symbol, (steps, count, width // count), ".heads")
    return permuted(place, split, (2, 1, 3), ".split")


def join_heads(place: ModulePlace, symbol: Symbol) -> Symbol:
    """Return sequences of heads (B, H, T, n) as (B, T, H·n)."""
    count, steps, width = rows_of(symbol)
    return reshaped(place, permuted(place, symbol, (2, 1, 3), ".steps"), (steps, count * width), ".joined")


def attention(place: ModulePlace, q: Symbol, k: Symbol, v: Symbol, ratio: float, causal: bool) -> Symbol:
    """Return attention of heads (B, H, T, n) whose weights are dropped at random, by products of matrices."""
    scores = q @ permuted(place, k, (1, 3, 2), ".keys") * (1 / math.sqrt(rows_of(q)[-1]))
    wrapped = place.trace.wrapped
    if causal:
        steps = rows_of(q)[1]
        scores = masked_fill(place, wrapped(scores), torch.ones(steps, steps).triu(1) > 0, HIDDEN)
    weights = softmax(place, wrapped(scores), -1)
    return nn.Dropout(ratio, name=place.name(".dropout"))(weights) @ v  # type: ignore[no-any-return]


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
        return attention(place, q, k, v, dropout_p, causal)
    count = rows_of(q)[0]
    joined = [join_heads(place, x) for x in (q, v, k)]
    y = nn.Attention(num_heads=count, score_mode="scaled_dot", use_causal_mask=causal, name=place.name())(joined)
    return heads(place, y, count)


def linear(place: ModulePlace, input: Any, weight: Any, bias: Any = None) -> Any:
    """Return a fully connected layer whose weight is that of another layer, as of an embedding below."""
    owner = place.trace.owners.get(id(weight))
    if owner is None or bias is not None:
        raise NotConvertible("with a weight that is no other layer's, or with a bias")
    dense = nn.Dense(len(weight), use_bias=False, name=place.name(), param=[{"share_from": owner}])
    return of_last_axis(place, dense, input, len(weight))


OPERATIONS: Mapping[str, Callable[..., Any]] = {
    **{name: function for name, function in globals().items() if name in (
        "view", "flatten", "permute", "transpose", "unsqueeze", "squeeze", "expand", "getitem", "split", "chunk", "cat",
        "pad", "clamp", "masked_fill", "relu", "leaky_relu", "gelu", "hardtanh", "hardsigmoid", "hardswish", "softmax",
        "log_softmax", "dropout", "mean", "interpolate", "scaled_dot_product_attention", "linear", "matmul", "maximum",
        "minimum",
    )},
    **dict.fromkeys(("add", "radd"), add),
    **dict.fromkeys(("sub", "subtract"), subtract),
    **dict.fromkeys(("mul", "multiply", "rmul"), multiply),
    **dict.fromkeys(("div", "divide", "true_divide", "truediv"), divide),
    "rsub": lambda place, input, other: subtract(place, other, input),
    **dict.fromkeys(("rdiv", "rtruediv"), lambda place, input, other: divide(place, other, input)),
    "pow": power,
    "neg": functools.partial(lambda place, input: multiply(place, input, -1.0)),
    "square": lambda place, input: power(place, input, 2.0),
    "sqrt": lambda place, input: power(place, input, 0.5),
    "rsqrt": lambda place, input: power(place, input, -0.5),
    **dict.fromkeys(("reshape", "view"), view),
    **dict.fromkeys(("swapaxes", "transpose"), transpose),
    **dict.fromkeys(("concat", "concatenate", "cat"), cat),
    **{name: activation(name) for name in ("sigmoid", "tanh", "silu")},
    "relu6": lambda place, input, inplace=False: clamp(place, input, 0.0, 6.0),
    **dict.fromkeys(("dropout2d", "dropout3d"), dropout_channels),
    **dict.fromkeys(("contiguous", "clone", "to", "float", "long", "type_as", "data"), same),
    **{f"max_pool{axes}d": max_pool(axes) for axes in POOL_AXES},
    **{f"avg_pool{axes}d": pooling(axes, is_mean=True) for axes in POOL_AXES},
    **{f"adaptive_avg_pool{axes}d": adaptive_mean(axes) for axes in POOL_AXES},
}  # fmt: skip

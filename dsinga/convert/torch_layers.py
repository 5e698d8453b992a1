"""Dense and recurrent layers and attention for PyTorch's modules, with params shared or frozen as the modules' are."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from dsinga import nn
from dsinga.convert.torch_operations import HIDDEN, add, drops, multiply, softmax, subtract
from dsinga.convert.torch_shapes import feature, getitem, moved
from dsinga.convert.torch_tensors import NotConvertible, TracedTensor, tensors_in
from dsinga.convert.torch_tracing import ModulePlace
from dsinga.convert.weights import CONSTANT, RECURRENT, recurrent_name
from dsinga.nn.writing.composed import is_input
from dsinga.nn.writing.reshaping import join_heads, permuted, reshaped, rows_of, split_heads
from dsinga.nn.writing.symbol import Symbol


def layer_of(
    place: ModulePlace,
    module: Any,
    make: Callable[..., Any],
    roles: Mapping[str, str],
    suffix: str = "",
    variant: str = "",
    **settings: Any,
) -> Any:
    """Return the layer of a module, made at its first call, with params that are shared or frozen as the module's are.

    ``roles`` are the names of the module's params by those of the layer's, in order. Where a normalisation has none,
    the layer's keeps its value. ``suffix`` is the end of the name of a further layer; layers
    of several ``variant``s share their params.
    """

    def first() -> Any:
        params = [getattr(module, attribute) for attribute in roles.values()]
        frozen = [param is not None and not param.requires_grad for param in params]
        confs = []
        layer_name, names = place.name(suffix), getattr(module, "names", {})  # names of the params of a function
        is_further = layer_name != f"{place.base}{suffix}" or hasattr(module, "names")
        for (role, attribute), param, is_frozen in zip(roles.items(), params, frozen, strict=True):
            name = names.get(attribute, f"{layer_name}_{role}")
            gate = role.removeprefix("back_").rpartition("_")[0]
            conf = {"name": name + CONSTANT} if param is None else place.trace.shared(name, param, gate)
            if conf and param is not None and is_further:  # the module's names are those of its first layer
                conf = {"name": f"{layer_name}_{role}", **conf}
            conf = conf or ({"name": name} if attribute in names else {})
            confs.append({**conf, **({"static": True} if param is None or (is_frozen and not all(frozen)) else {})})
        common = {"trainable": False} if frozen and all(frozen) else {}
        return make(name=layer_name, param=confs if any(confs) else None, **common, **settings)

    return place.trace.layer(module, suffix + variant, first)


WEIGHT_BIAS = {"weight": "weight", "bias": "bias"}


def present(module: Any) -> dict[str, str]:
    """Return the names among weight and bias that a module has."""
    return {role: role for role in WEIGHT_BIAS if getattr(module, role) is not None}


def linear_layer(place: ModulePlace, module: Any, input: Any) -> Any:
    """Return a fully connected layer of the last axis."""
    settings = {"units": module.out_features, "use_bias": module.bias is not None}
    dense = layer_of(place, module, nn.Dense, present(module), **settings)
    symbol, rows = feature(input), tuple(input.shape[1:])
    if not rows:
        raise NotConvertible("of a tensor with 1 axis")
    if len(rows) < 3:
        return dense(symbol)
    y = dense(reshaped(place, symbol, (math.prod(rows[:-1]), rows[-1]), ".rows"))
    return reshaped(place, y, (*rows[:-1], module.out_features), ".axes")


def layer_type(name: str) -> Callable[..., Any]:
    """Return the function that makes layers of a type."""
    return functools.partial(nn.Layer, name)


def recur(place: ModulePlace, module: Any, input: Any, hx: Any = None) -> Any:
    """Return the feature of a stack of recurrent layers, and the last states of its layers and directions.

    The states h are y[:, -1] and, of the direction from the last step, y[:, 0]. Those of an LSTM that are handed on as
    they are, and c, are the feature of a layer with ``last_state``, which shares the params. Layers are made where
    their features are first used.
    """
    kind, size, axis = type(module).__name__, module.hidden_size, int(not module.batch_first)
    begin, count = tensors_in([hx]), module.num_layers * (1 + module.bidirectional)
    check_recurrent(module, input, begin)
    is_zero = not any(isinstance(x, TracedTensor) for x in begin)
    begins = ModulePlace(place.trace, f"{place.base}.begin")
    starts = [] if is_zero else [first_state(begins, begin, number) for number in range(module.num_layers)]
    x, settings = feature(input, 2), recurrent_settings(module, bool(starts))
    is_dropped = drops(place, module.dropout, module.training)

    @functools.cache
    def layer(number: int, **more: Any) -> Symbol:
        """Return the feature of a layer of the stack."""
        y = layer(number - 1) if number else x
        if number and is_dropped:
            y = nn.Dropout(module.dropout, name=place.name(f".dropout{number}"))(y)
        end = f".stacked{number}" if number else ""
        roles = recurrent_roles(f"{place.base}{end}", kind == "GRU", module.bias, module.bidirectional)
        make = layer_of(place, module, layer_type(f"k{kind}"), roles, end, f"{bool(starts)}{more}", **settings, **more)
        symbol: Symbol = make([y, *starts[number : number + 1]])
        return symbol

    last = functools.partial(layer, last_state=True)

    def states() -> Symbol:
        """Return the states h of layers and directions, (B, L, H)."""
        parts = []
        for number in range(module.num_layers):
            y = layer(number)
            for state in [y[:, -1, :size], y[:, 0, size:]] if module.bidirectional else [y[:, -1]]:
                state.builder.name = place.name(".last")
                parts.append(nn.Reshape([1, size], name=place.name(".state"))(state))
        return joined(place, parts)

    def cells() -> Symbol:
        """Return the states c of layers, (B, L, H)."""
        parts = [last(number)[:, size:] for number in range(module.num_layers)]
        return joined(place, [nn.Reshape([1, size], name=place.name(".cell"))(part) for part in parts])

    trace, batch = place.trace, place.trace.batch
    sizes = rows_of(x)[0], size * (1 + module.bidirectional)
    shape = (*sizes[:axis], batch, *sizes[axis:])
    y = TracedTensor(trace, None, shape, batch_axis=axis, make=functools.partial(layer, module.num_layers - 1))
    makes = states, None if module.bidirectional else cells
    h, c = (TracedTensor(trace, None, (count, batch, size), batch_axis=1, make=make) for make in makes)
    if kind != "LSTM":
        return y, h
    if module.bidirectional:
        c.fault = f"on the last cell states of both directions of {place.base} (LSTM)"
    else:
        h.last, c.last = (last, "h"), (last, "c")
    return y, (h, c)


def check_recurrent(module: Any, input: Any, begin: Sequence[Any]) -> None:
    """Raise NotConvertible for settings and initial states of a module that recurrent layers do not have."""
    count, axis = module.num_layers * (1 + module.bidirectional), int(not module.batch_first)
    is_traced = [isinstance(x, TracedTensor) for x in begin]
    lacking = {
        "proj_size": getattr(module, "proj_size", 0),
        "nonlinearity='relu'": getattr(module, "nonlinearity", "tanh") != "tanh",
        "initial states of both directions": module.bidirectional and any(is_traced),
        "initial states that are constants other than zeros": any(
            x.any() for x, traced in zip(begin, is_traced, strict=True) if not traced
        ),
        "initial states of another shape": any(
            x.dim() != 3 or len(x) != count or x.shape[2] != module.hidden_size for x in begin
        ),
        "initial states whose axis 1 is not the batch": any(getattr(x, "batch_axis", 1) != 1 for x in begin),
        f"batch_first={module.batch_first} where another axis is the batch": getattr(input, "batch_axis", axis) != axis,
    }
    if wrong := [name for name, lacks in lacking.items() if lacks]:
        raise NotConvertible(f"with {', '.join(wrong)}")


def recurrent_settings(module: Any, has_start: bool) -> dict[str, Any]:
    """Return the settings of the layers of torch.nn.LSTM, GRU or RNN that are not our defaults."""
    settings: dict[str, Any] = {"dim_hidden": module.hidden_size}
    settings |= {"recurrent_bias": True} if module.bias else {"bias_term": False}
    settings |= {"bidirectional": True} if module.bidirectional else {}
    return settings | ({"initial_state": True} if has_start else {})


def first_state(place: ModulePlace, begin: Sequence[Any], number: int) -> Symbol:
    """Return the state before the first step of a layer: h, of an LSTM h and c side by side."""
    lasts: list[Any] = [getattr(x, "last", (None, "")) for x in (begin[0], begin[-1])]
    (maker, part), (other, cell) = lasts
    if maker is not None and maker is other and (part, cell) == ("h", "c") and not any(x.is_made for x in begin):
        symbol: Symbol = maker(number)
        return symbol
    wrapped = place.trace.wrapped
    traced = next(x for x in begin if isinstance(x, TracedTensor))
    parts = []
    for x in begin:
        part = wrapped(getitem(place, x if isinstance(x, TracedTensor) else traced, (number,)))
        parts.append(part.symbol if isinstance(x, TracedTensor) else part.symbol * 0.0)
    return parts[0] if len(parts) == 1 else nn.Concatenate(axis=1, name=place.name())(parts)


def joined(place: ModulePlace, parts: Sequence[Symbol]) -> Symbol:
    """Return states of layers and directions, (B, 1, H) each, as (B, L, H)."""
    symbol: Symbol = parts[0] if len(parts) == 1 else nn.Concatenate(axis=1, name=place.name(".states"))(parts)
    return symbol


def recurrent_roles(layer: str, is_gru: bool, has_bias: bool, bidirectional: bool) -> dict[str, str]:
    """Return the names of the params of a layer of torch.nn.LSTM, GRU or RNN by those of ours, in order."""
    kinds = [*RECURRENT][: 4 if has_bias else 2]
    gates = ("z_", "r_", "c_") if is_gru else ("",)
    directions = ("", "back_") if bidirectional else ("",)
    roles = [f"{back}{gate}{kind}" for back in directions for kind in kinds for gate in gates]
    return {role: recurrent_name(layer, role)[1] for role in roles}


def hides_later(mask: Any, hidden: bool) -> bool:
    """Whether a mask (T, T) hides exactly the later steps; ``hidden`` says that True stands for what is hidden."""
    if isinstance(mask, TracedTensor) or mask.dim() < 2 or mask.numel() != mask.shape[-1] ** 2:
        return False
    square = mask.reshape(mask.shape[-1], -1)
    hides = square == hidden if square.dtype == torch.bool else square < -1e4
    return bool((hides == torch.ones_like(hides).triu(1)).all())


def hiding(place: ModulePlace, mask: Any, hidden: bool) -> Any:
    """Return the numbers that a mask adds to scores; ``hidden`` says that True stands for hidden steps."""
    if mask.dtype == torch.bool and isinstance(mask, TracedTensor):
        shares = mask if hidden else place.trace.wrapped(subtract(place, 1.0, mask))
        return place.trace.wrapped(multiply(place, shares, HIDDEN))
    if mask.dtype == torch.bool:
        return torch.where(mask == hidden, HIDDEN, 0.0)
    if isinstance(mask, TracedTensor) and not mask.unbatched and is_input(feature(mask)):
        raise NotConvertible("with a mask that is an argument as it is; give it mask.bool()")
    return mask if isinstance(mask, TracedTensor) else mask.clamp(min=HIDDEN)


def attend(
    place: ModulePlace, q: Symbol, k: Symbol, v: Symbol, ratio: float, causal: bool, added: Sequence[Any] = ()
) -> Any:
    """Return attention of heads (B, H, T, n), by products of matrices, with what is added to scores.

    In training a share of the weights is dropped at random.
    """
    wrapped = place.trace.wrapped
    scores = q @ permuted(place, k, (1, 3, 2), ".keys") * (1 / math.sqrt(rows_of(q)[-1]))
    later = [torch.ones(rows_of(q)[1], rows_of(k)[1]).triu(1) * HIDDEN] if causal else []
    for mask in (*later, *added):
        scores = add(place, wrapped(scores), mask)
    weights = softmax(place, wrapped(scores), -1)
    return (nn.Dropout(ratio, name=place.name(".dropout"))(weights) if ratio else weights) @ v


def scaled_dot_product_attention(
    place: ModulePlace, query: Any, key: Any, value: Any, attn_mask: Any = None, dropout_p: float = 0.0,
    is_causal: bool = False, scale: float | None = None, enable_gqa: bool = False,
) -> Any:  # fmt: skip
    """Return attention of heads (B, H, T, n)."""
    causal = is_causal or (attn_mask is not None and hides_later(attn_mask, hidden=False))
    if enable_gqa:
        raise NotConvertible("with enable_gqa")
    added = [] if attn_mask is None or causal else [hiding(place, attn_mask, hidden=False)]
    q, k, v = (feature(x, 3) for x in (query, key, value))
    if scale is not None and not math.isclose(scale, 1 / math.sqrt(rows_of(q)[-1])):
        q = q * (scale * math.sqrt(rows_of(q)[-1]))
    if drops(place, dropout_p, True) or added or not place.trace.fused:
        return attend(place, q, k, v, dropout_p, causal, added)
    joined, count = [join_heads(place, x) for x in (q, v, k)], rows_of(q)[0]
    layer = nn.Attention(num_heads=count, score_mode="scaled_dot", use_causal_mask=causal, name=place.name())
    return split_heads(place, layer(joined), count)


def multi_head_attention(
    place: ModulePlace, module: Any, query: Any, key: Any, value: Any, key_padding_mask: Any = None,
    need_weights: bool = True, attn_mask: Any = None, average_attn_weights: bool = True, is_causal: bool = False,
) -> Any:  # fmt: skip
    """Return attention of several heads, and None for its weights."""
    axis = int(not module.batch_first)
    causal = is_causal if attn_mask is None else hides_later(attn_mask, hidden=True)
    lacking = {
        f"batch_first={module.batch_first} where another axis is the batch": any(
            getattr(x, "batch_axis", axis) != axis for x in (query, key, value)
        ),
        "kdim, vdim, add_bias_kv or add_zero_attn": not module._qkv_same_embed_dim
        or module.bias_k is not None
        or module.add_zero_attn,
        "an attn_mask of 3 axes": attn_mask is not None and attn_mask.dim() != 2,
    }
    if wrong := [name for name, lacks in lacking.items() if lacks]:
        raise NotConvertible(f"with {', '.join(wrong)}")
    has_bias, count = module.in_proj_bias is not None, module.num_heads
    settings = {"use_bias": has_bias, "trainable": module.in_proj_weight.requires_grad}

    def project(part: str, x: Any) -> Any:
        name = f"{place.base}.in_proj_{part}"
        make = functools.partial(nn.Dense, module.embed_dim, name=name, **settings)
        return place.trace.layer(module, part, make)(feature(x))

    q, k, v = map(project, "qkv", (query, key, value))
    added = [] if attn_mask is None or causal else [hiding(place, attn_mask, hidden=True)]
    if key_padding_mask is not None:
        mask = hiding(place, key_padding_mask, hidden=True)
        added.append(place.trace.wrapped(reshaped(place, feature(mask, 1), (1, 1, mask.shape[1]), ".mask")))
    if module.dropout or added or not place.trace.fused:
        ratio = module.dropout if drops(place, module.dropout, module.training) else 0.0
        query_heads, key_heads, value_heads = (split_heads(place, x, count) for x in (q, k, v))
        y = join_heads(place, attend(place, query_heads, key_heads, value_heads, ratio, causal, added))
    else:
        y = nn.Attention(num_heads=count, score_mode="scaled_dot", use_causal_mask=causal, name=place.name())([q, v, k])
    out = ModulePlace(place.trace, f"{place.base}.out_proj", module.out_proj)
    return moved(query, linear_layer(out, module.out_proj, place.trace.wrapped(y)), axis), None

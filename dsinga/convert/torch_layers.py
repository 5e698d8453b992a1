"""Converts PyTorch's dense, recurrent and attention modules to layers with the same shared and frozen params."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from dsinga import nn
from dsinga.convert.torch_operations import drops
from dsinga.convert.torch_tensors import tensors_in
from dsinga.convert.torch_tracing import ModulePlace
from dsinga.convert.weights import CONSTANT, RECURRENT, recurrent_name
from dsinga.nn.writing.composed import attend, dense, is_input, join_heads, repeated_heads, split_heads
from dsinga.nn.writing.recurrent import first_state, last_states, stacked_states
from dsinga.nn.writing.reshaping import NoLayer, made, refuse
from dsinga.nn.writing.tensor import BOOL, Tensor, batched


def layer_of(
    place: ModulePlace,
    module: Any,
    make: str | Callable[..., Any],
    roles: Mapping[str, str],
    suffix: str = "",
    variant: str = "",
    **settings: Any,
) -> Any:
    """Make a module's layer at its first call, with the same shared and frozen params; return it.

    ``roles`` maps the layer's params to the module's params, in order. ``suffix`` ends the name of a further layer; a
    layer's ``variant``s share their params.
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
        return made(make, name=layer_name, param=confs if any(confs) else None, **common, **settings)

    return place.trace.layer(module, suffix + variant, first)


WEIGHT_BIAS = {"weight": "weight", "bias": "bias"}


def present(module: Any) -> dict[str, str]:
    """Return the params, weight and bias, that a module has."""
    return {role: role for role in WEIGHT_BIAS if getattr(module, role) is not None}


def linear_layer(place: ModulePlace, module: Any, input: Tensor) -> Tensor:
    """Convert ``Linear`` to a dense layer of the last axis."""
    units = module.weight.shape[0]
    settings = {"units": units, "use_bias": module.bias is not None}
    return dense(input, layer_of(place, module, nn.Dense, present(module), **settings), units)


def recur(place: ModulePlace, module: Any, input: Tensor, hx: Any = None) -> Any:
    """Convert a recurrent module; return its stacked layers' feature, and the last states of all.

    The states h are y[:, -1], and y[:, 0] for the reverse direction. An LSTM's states that are passed on unchanged, and
    c, are the feature of a layer with ``last_state`` and the same params.
    """
    kind, size, axis = type(module).__name__, module.hidden_size, int(not module.batch_first)
    begin, count = tensors_in([hx]), module.num_layers * (1 + module.bidirectional)
    check_recurrent(module, input, begin)
    is_zero = not any(isinstance(x, Tensor) for x in begin)
    begins = ModulePlace(place.trace, f"{place.base}.begin")
    starts = [] if is_zero else [start_of(begins, begin, number) for number in range(module.num_layers)]
    input.with_batch(0).feature(2)
    settings: dict[str, Any] = {"dim_hidden": size}
    settings |= {"recurrent_bias": True} if module.bias else {"bias_term": False}
    settings |= {"bidirectional": True} if module.bidirectional else {}
    settings |= {"initial_state": True} if starts else {}
    is_dropped = drops(place, module.dropout, module.training)

    @functools.cache
    def layer(number: int, **more: Any) -> Tensor:
        y = layer(number - 1) if number else input.with_batch(0)
        if number and is_dropped:
            y = y.each(nn.Dropout, module.dropout, suffix=f".dropout{number}")
        end = f".stacked{number}" if number else ""
        roles = recurrent_roles(f"{place.base}{end}", kind == "GRU", module.bias, module.bidirectional)
        make = layer_of(place, module, f"k{kind}", roles, end, f"{bool(starts)}{more}", **settings, **more)
        return batched(place, make([y.symbol, *(start.symbol for start in starts[number : number + 1])]))

    def later(make: Callable[[], Tensor], shape: tuple[int, ...], axis: int) -> Tensor:
        """Return a tensor that makes its layers when it is first used."""
        return Tensor(place, functools.cache(lambda: make().symbol), shape, axis)

    def states() -> Tensor:
        return stacked_states([end for number in stack for end in last_states(layer(number), size)])

    def cells() -> Tensor:
        return stacked_states([last(number)[:, size:] for number in stack])

    stack, last = range(module.num_layers), functools.partial(layer, last_state=True)
    shape = [input.shape[1 - axis], size * (1 + module.bidirectional)]
    shape.insert(axis, place.batch)
    y, of_states = later(functools.partial(layer, stack[-1]), tuple(shape), axis), (count, place.batch, size)
    h = later(states, of_states, 1)
    if kind != "LSTM":
        return y, h
    c = later(states if module.bidirectional else cells, of_states, 1)
    if module.bidirectional:
        c = place.trace.wrapped(c)
        c.fault = f"on the last cell states of both directions of {place.base} (LSTM)"
        return y, (h, c)
    place.trace.sources |= {h.source: (last, "h"), c.source: (last, "c")}
    return y, (h, c)


def check_recurrent(module: Any, input: Any, begin: Sequence[Any]) -> None:
    """Raise NoLayer for settings and initial states that recurrent layers do not support."""
    count, axis = module.num_layers * (1 + module.bidirectional), int(not module.batch_first)
    is_traced = [isinstance(x, Tensor) for x in begin]
    refuse(
        {
            "proj_size": getattr(module, "proj_size", 0),
            "nonlinearity='relu'": getattr(module, "nonlinearity", "tanh") != "tanh",
            "initial states of both directions": module.bidirectional and any(is_traced),
            "initial states that are constants other than zeros": any(
                x.any() for x, traced in zip(begin, is_traced, strict=True) if not traced
            ),
            "initial states of another shape": any(
                len(x.shape) != 3 or x.shape[0] != count or x.shape[2] != module.hidden_size for x in begin
            ),
            "initial states whose axis 1 is not the batch": any(getattr(x, "batch_axis", 1) != 1 for x in begin),
            f"batch_first={module.batch_first} where another axis is the batch": getattr(input, "batch_axis", axis)
            != axis,
        }
    )


def start_of(place: ModulePlace, begin: Sequence[Any], number: int) -> Tensor:
    """Return a layer's state before the first step, from PyTorch's states (L, B, H)."""
    origins = [place.trace.sources.get(getattr(x, "source", None), (None, "")) for x in (begin[0], begin[-1])]
    if origins[0][0] is not None and origins == [(origins[0][0], "h"), (origins[0][0], "c")]:
        return origins[0][0](number)
    return first_state([x.at(place).part(0, number) if isinstance(x, Tensor) else None for x in begin])


def recurrent_roles(layer: str, is_gru: bool, has_bias: bool, bidirectional: bool) -> dict[str, str]:
    """Map dsinga's param names to PyTorch's for a layer of LSTM, GRU or RNN, in order."""
    kinds = [*RECURRENT][: 4 if has_bias else 2]
    gates = ("z_", "r_", "c_") if is_gru else ("",)
    directions = ("", "back_") if bidirectional else ("",)
    roles = [f"{back}{gate}{kind}" for back in directions for kind in kinds for gate in gates]
    return {role: recurrent_name(layer, role)[1] for role in roles}


def check_masks(*masks: Any) -> list[Any]:
    """Return the masks that are given; raise NoLayer for an argument of the forward that is added to scores."""
    for mask in masks:
        if isinstance(mask, Tensor) and mask.dtype != BOOL and mask.batch_axis is not None and is_input(mask):
            raise NoLayer("with a mask that is an argument as it is; give it mask.bool()")
    return [mask for mask in masks if mask is not None]


def scaled_dot_product_attention(
    place: ModulePlace, query: Tensor, key: Tensor, value: Tensor, attn_mask: Any = None, dropout_p: float = 0.0,
    is_causal: bool = False, scale: float | None = None, enable_gqa: bool = False,
) -> Tensor:  # fmt: skip
    """Convert PyTorch's function of attention with heads (B, H, T, n)."""
    for x in (query, key, value):
        x.feature(3)
    heads = [query, *(repeated_heads(x, query.shape[1] // x.shape[1] if enable_gqa else 1) for x in (key, value))]
    masks, ratio = check_masks(attn_mask), dropout_p if drops(place, dropout_p, True) else 0.0
    return attend(heads, scale, is_causal, masks, hides=False, ratio=ratio, fused=place.trace.fused)


def multi_head_attention(
    place: ModulePlace, module: Any, query: Tensor, key: Tensor, value: Tensor, key_padding_mask: Any = None,
    need_weights: bool = True, attn_mask: Any = None, average_attn_weights: bool = True, is_causal: bool = False,
) -> Any:  # fmt: skip
    """Convert ``MultiheadAttention``; return its result, and None for its weights."""
    axis = int(not module.batch_first)
    refuse(
        {
            f"batch_first={module.batch_first} where another axis is the batch": any(
                getattr(x, "batch_axis", axis) != axis for x in (query, key, value)
            ),
            "kdim, vdim, add_bias_kv or add_zero_attn": not module._qkv_same_embed_dim
            or module.bias_k is not None
            or module.add_zero_attn,
            "an attn_mask of 3 axes": attn_mask is not None and len(attn_mask.shape) != 2,
        }
    )
    has_bias, count = module.in_proj_bias is not None, module.num_heads
    settings = {"use_bias": has_bias, "trainable": module.in_proj_weight.requires_grad}

    def project(part: str, x: Tensor) -> Tensor:
        name = f"{place.base}.in_proj_{part}"
        make = functools.partial(nn.Dense, module.embed_dim, name=name, **settings)
        return batched(place, place.trace.layer(module, part, make)(x.with_batch(0).feature()))

    q, k, v = map(project, "qkv", (query, key, value))
    masks = check_masks(attn_mask, key_padding_mask)
    if key_padding_mask is not None:
        key_padding_mask.feature(1)
        masks[-1] = key_padding_mask.reshape((place.batch, 1, 1, key_padding_mask.shape[1]), ".mask")
    ratio = module.dropout if drops(place, module.dropout, module.training) else 0.0
    fused = place.trace.fused and not module.dropout
    heads, causal = [split_heads(x, count) for x in (q, k, v)], is_causal and attn_mask is None
    y = join_heads(attend(heads, None, causal, masks, ratio=ratio, fused=fused))
    out = ModulePlace(place.trace, f"{place.base}.out_proj", is_module=True)
    return linear_layer(out, module.out_proj, y.at(out)).with_batch(axis), None

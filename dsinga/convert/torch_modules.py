"""The layers for modules of PyTorch: functions of (place, module, its arguments), by the name of the class."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any

import torch

from dsinga import nn
from dsinga.convert import torch_operations as operations
from dsinga.convert import torch_shapes as shapes
from dsinga.convert.torch_layers import layer_of, layer_type
from dsinga.convert.torch_recurrent import recur
from dsinga.convert.torch_tracing import ModulePlace, NotConvertible, TracedTensor
from dsinga.nn.writing.symbol import Symbol

AXES = (1, 2, 3)
WINDOW, SIZES = "kernel_size stride padding ceil_mode", "size scale_factor mode"
# Modules that are operations: the operation, and its arguments: the names of attributes, attribute:argument where these
# differ, and argument=text.
OPERATIONS: Mapping[str, tuple[str, str]] = {
    **{f"MaxPool{axes}d": (f"max_pool{axes}d", f"{WINDOW} dilation return_indices") for axes in AXES},
    "AvgPool1d": ("avg_pool1d", f"{WINDOW} count_include_pad"),
    **{f"AvgPool{axes}d": (f"avg_pool{axes}d", f"{WINDOW} count_include_pad divisor_override") for axes in (2, 3)},
    **{f"AdaptiveAvgPool{axes}d": (f"adaptive_avg_pool{axes}d", "output_size") for axes in AXES},
    **{f"Dropout{axes}d": (f"dropout{axes}d", "p") for axes in (2, 3)},
    **{f"ZeroPad{axes}d": ("pad", "padding:pad") for axes in AXES},
    **{f"ConstantPad{axes}d": ("pad", "padding:pad mode=constant value") for axes in AXES},
    **{f"ReflectionPad{axes}d": ("pad", "padding:pad mode=reflect") for axes in AXES},
    **{f"ReplicationPad{axes}d": ("pad", "padding:pad mode=replicate") for axes in AXES},
    **{f"CircularPad{axes}d": ("pad", "padding:pad mode=circular") for axes in AXES},
    **{name: (name.lower(), "") for name in ("ReLU", "ReLU6", "Sigmoid", "Tanh", "SiLU", "Hardswish", "Hardsigmoid")},
    **{"Identity": ("contiguous", ""), "Dropout": ("dropout", "p"), "GELU": ("gelu", "approximate")},
    **{"LeakyReLU": ("leaky_relu", "negative_slope"), "Hardtanh": ("hardtanh", "min_val max_val")},
    **{"Softmax": ("softmax", "dim"), "LogSoftmax": ("log_softmax", "dim")},
    **{"Flatten": ("flatten", "start_dim end_dim"), "Unflatten": ("unflatten", "dim unflattened_size:sizes")},
    **{"Upsample": ("interpolate", f"{SIZES} align_corners"), "UpsamplingNearest2d": ("interpolate", SIZES)},
}


def operation(name: str, attributes: str) -> Callable[..., Any]:
    """Return the function of a module that is an operation; see ``OPERATIONS``."""
    function = getattr(torch.nn.functional, name, None) or getattr(torch, name, None)

    def make(place: ModulePlace, module: Any, x: Any) -> Any:
        arguments = {}
        for word in attributes.split():
            attribute, _, argument = word.partition(":")
            argument, _, text = (argument or attribute).partition("=")
            arguments[argument] = text or getattr(module, attribute)
        return operations.OPERATIONS[name](ModulePlace(place.trace, place.base, module, function), x, **arguments)

    return make


WEIGHT_BIAS = {"weight": "weight", "bias": "bias"}
SCALE_BIAS = {"scale": "weight", "bias": "bias"}


def present(module: Any) -> dict[str, str]:
    """Return which of weight and bias a module has."""
    return {role: role for role in WEIGHT_BIAS if getattr(module, role) is not None}


def linear(place: ModulePlace, module: Any, input: Any) -> Symbol:
    """Return a fully connected layer of the last axis."""
    settings = {"units": module.out_features, "use_bias": module.bias is not None}
    dense = layer_of(place, module, nn.Dense, present(module), **settings)
    return shapes.of_last_axis(place, dense, input, module.out_features)


def convolve(place: ModulePlace, module: Any, input: Any, output_size: Any = None) -> Symbol:
    """Return a convolution, or a transposed one, of sequences (B, C, T), images or volumes."""
    axes, is_transposed, padding = len(module.kernel_size), module.transposed, module.padding
    symbol = shapes.feature(input, axes + 1)
    if output_size is not None or (is_transposed and (module.groups != 1 or {*module.dilation} != {1})):
        raise NotConvertible("with output_size, or transposed with groups or dilation")
    if module.padding_mode != "zeros" and padding != "valid":
        around = ModulePlace(place.trace, f"{place.base}.pad")
        sides = tuple(module._reversed_padding_repeated_twice)
        symbol, padding = operations.pad(around, input, sides, module.padding_mode), "valid"
    sizes: dict[str, Any] = {"kernel_size": module.kernel_size, "strides": module.stride, "padding": padding}
    sizes |= {"output_padding": module.output_padding} if is_transposed else {"dilation_rate": module.dilation}
    if axes == 1:  # the steps of a sequence are the columns of an image of one row
        row = {"padding": 0, "output_padding": 0}
        sizes = {name: size if isinstance(size, str) else (row.get(name, 1), *size) for name, size in sizes.items()}
        symbol = shapes.as_image(place, symbol)
    make = getattr(nn, f"Conv{max(axes, 2)}D{'Transpose' if is_transposed else ''}")
    settings = {"filters": module.out_channels, "use_bias": module.bias is not None, **sizes}
    settings |= {} if is_transposed else {"groups": module.groups}
    y = layer_of(place, module, make, present(module), **settings)(symbol)
    return shapes.as_sequence(place, y) if axes == 1 else y


def batch_norm(place: ModulePlace, module: Any, input: Any) -> Symbol:
    """Return a batch normalisation with PyTorch's running statistics."""
    if module.running_mean is None:
        raise NotConvertible("with track_running_stats=False")
    moves: dict[str, Any] = (
        {"momentum": 1e-30} if module.momentum is None else {"momentum": module.momentum, "keep_initial": True}
    )
    layer = layer_of(place, module, layer_type("kBM"), SCALE_BIAS, **epsilon(module.eps), **moves)
    return layer(shapes.feature(input))


def epsilon(eps: float | None) -> dict[str, Any]:
    """Return the setting of a normalisation that is not its default."""
    return {} if eps == 1e-5 else {"epsilon": torch.finfo(torch.float32).eps if eps is None else eps}


def layer_norm(place: ModulePlace, module: Any, input: Any) -> Symbol:
    """Return a layer normalisation, or one by the root mean square, of the last axes."""
    settings = {"first_axis": input.dim() - len(module.normalized_shape), **epsilon(module.eps)}
    is_mean_square = type(module).__name__ == "RMSNorm"
    kind, roles = ("kRMSNorm", {"scale": "weight"}) if is_mean_square else ("kLayerNorm", SCALE_BIAS)
    return layer_of(place, module, layer_type(kind), roles, **settings)(shapes.as_rows(place, input))


def group_norm(place: ModulePlace, module: Any, input: Any) -> Symbol:
    """Return a normalisation over groups of channels, of an instance normalisation over each channel."""
    if getattr(module, "track_running_stats", False):
        raise NotConvertible("with track_running_stats=True")
    settings = {"groups": getattr(module, "num_groups", None) or module.num_features, **epsilon(module.eps)}
    return layer_of(place, module, layer_type("kGroupNorm"), SCALE_BIAS, **settings)(shapes.feature(input))


def prelu(place: ModulePlace, module: Any, input: Any) -> Symbol:
    """Return a rectifier with learnt slopes."""
    of_all = module.num_parameters == 1
    return layer_of(place, module, nn.PReLU, {"slope": "weight"}, shared=of_all)(shapes.feature(input))


def embed(place: ModulePlace, module: Any, input: Any) -> Any:
    """Return the vectors of codes; of codes that are the same for all records, such as positions, those in a table."""
    if module.max_norm is not None:
        raise NotConvertible("with max_norm")
    count = module.num_embeddings
    if isinstance(input, TracedTensor):
        settings = {"vocab_size": count, "feature_dim": module.embedding_dim, "dense_gradient": not module.sparse}
        settings |= {} if module.padding_idx is None else {"padding_code": module.padding_idx}
        layer = layer_of(place, module, layer_type("kEmbedding"), {"weight": "weight"}, **settings)
        return layer(shapes.feature(input))
    codes = (input[0] if input.dim() == 2 else input).tolist()
    first, last = codes[0], codes[-1]
    if codes not in ([first] * len(codes), list(range(first, last + 1))):
        raise NotConvertible("called on codes that are neither those of records nor neighbours")
    table = place.trace.learnt(f"{place.base}.weight", module.weight)
    return table if (first, last) == (0, count - 1) else shapes.getitem(place, table, slice(first, last + 1))


def attend(
    place: ModulePlace, module: Any, query: Any, key: Any, value: Any, key_padding_mask: Any = None,
    need_weights: bool = True, attn_mask: Any = None, average_attn_weights: bool = True, is_causal: bool = False,
) -> Any:  # fmt: skip
    """Return attention of several heads, and None for its weights."""
    axis = int(not module.batch_first)
    causal = is_causal if attn_mask is None else operations.hides_later(attn_mask, hidden=True)
    lacking = {
        f"batch_first={module.batch_first} where another axis is the batch": any(
            getattr(x, "batch_axis", axis) != axis for x in (query, key, value)
        ),
        "key_padding_mask": key_padding_mask is not None,
        "kdim, vdim, add_bias_kv or add_zero_attn": not module._qkv_same_embed_dim
        or module.bias_k is not None
        or module.add_zero_attn,
        "an attn_mask that is not causal": attn_mask is not None and not causal,
    }
    if wrong := [name for name, lacks in lacking.items() if lacks]:
        raise NotConvertible(f"with {', '.join(wrong)}")
    has_bias, heads = module.in_proj_bias is not None, module.num_heads
    settings = {"use_bias": has_bias, "trainable": module.in_proj_weight.requires_grad}

    def project(part: str, x: Any) -> Any:
        name = f"{place.base}.in_proj_{part}"
        make = functools.partial(nn.Dense, module.embed_dim, name=name, **settings)
        return place.trace.layer(module, part, make)(shapes.feature(x))

    q, k, v = map(project, "qkv", (query, key, value))
    if module.dropout:
        split = (operations.heads(place, x, heads) for x in (q, k, v))
        attend = functools.partial(operations.attend, ratio=module.dropout, causal=causal)
        y = operations.join_heads(place, attend(place, *split))
    else:
        y = nn.Attention(num_heads=heads, score_mode="scaled_dot", use_causal_mask=causal, name=place.name())([q, v, k])
    out = ModulePlace(place.trace, f"{place.base}.out_proj", module.out_proj)
    return shapes.moved(query, linear(out, module.out_proj, place.trace.wrapped(y)), axis), None


MODULES: Mapping[str, Callable[..., Any]] = {
    "Linear": linear,
    **{f"{kind}{axes}d": convolve for kind in ("Conv", "ConvTranspose") for axes in (1, 2, 3)},
    **{f"BatchNorm{axes}d": batch_norm for axes in (1, 2, 3)},
    **{f"InstanceNorm{axes}d": group_norm for axes in (1, 2, 3)},
    "LayerNorm": layer_norm,
    "RMSNorm": layer_norm,
    "GroupNorm": group_norm,
    "PReLU": prelu,
    "Embedding": embed,
    "MultiheadAttention": attend,
    **dict.fromkeys(("LSTM", "GRU", "RNN"), recur),
    **{name: operation(*form) for name, form in OPERATIONS.items()},
}

"""Makes layers for PyTorch's modules, by class name, and for functions with params, such as linear.

A function for a module accepts a place, the module, and the arguments of its call. The place says where in the net
the layer is made, and so its name. The other functions accept a place and PyTorch's arguments.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any

import torch

from dsinga import nn
from dsinga.convert.torch_images import pad, sizes_of
from dsinga.convert.torch_layers import (
    layer_of,
    linear_layer,
    multi_head_attention,
    present,
    recur,
    scaled_dot_product_attention,
)
from dsinga.convert.torch_operations import OPERATIONS, drops
from dsinga.convert.torch_tracing import ModulePlace
from dsinga.nn.writing.composed import looked_up
from dsinga.nn.writing.images import KernelWindow, convolved, convolved_transposed
from dsinga.nn.writing.reshaping import NoLayer
from dsinga.nn.writing.symbol import Symbol
from dsinga.nn.writing.tensor import Tensor

AXES = (1, 2, 3)
SCALE_BIAS = {"scale": "weight", "bias": "bias"}


def convolve(place: ModulePlace, module: Any, input: Tensor, output_size: Any = None) -> Tensor:
    """Convert a convolution or transposed convolution of sequences (B, C, T), images or volumes."""
    kernel, padding = tuple(module.weight.shape[2:]), module.padding
    axes = len(kernel)
    input.feature(axes + 1)
    if output_size is not None:
        raise NoLayer("with output_size (make it with an output_padding)")
    if module.padding_mode != "zeros" and padding != "valid":
        around = input.at(ModulePlace(place.trace, f"{place.base}.pad"))
        padding = "valid"
        input = pad(around, tuple(module._reversed_padding_repeated_twice), module.padding_mode).at(place)
    pads = 0 if isinstance(padding, str) else padding
    window = KernelWindow(kernel, *(sizes_of(size, axes) for size in (module.stride, module.dilation, pads, pads)))
    make = functools.partial(layer_of, place, module, roles=present(module))
    if module.transposed:
        window = window._replace(after=tuple(map(operator.sub, window.before, module.output_padding)))
        settings = ({} if module.groups == 1 else {"group": module.groups}) | (
            {} if module.bias is not None else {"bias_term": False}
        )
        return convolved_transposed(input, window, make, num_filters=module.out_channels, **settings)
    settings = {"use_bias": module.bias is not None, "filters": module.out_channels, "groups": module.groups}
    return convolved(input, window, make, padding == "same", **settings)


def batch_norm(place: ModulePlace, module: Any, input: Any) -> Symbol:
    """Convert a batch normalisation with its running statistics, fixed if the module stays in eval()."""
    if module.running_mean is None or (module.training and not place.trace.training):
        raise NoLayer("with track_running_stats=False, or in training mode in evaluation")
    if module.momentum is None:
        raise NoLayer("with momentum=None (the mean over all batches so far; give it a number, such as 0.1)")
    moves = {"momentum": module.momentum, "keep_initial": True}
    moves |= {} if module.training or not place.trace.training else {"use_global_stats": True}
    layer = layer_of(place, module, "kBM", SCALE_BIAS, **epsilon(module.eps), **moves)
    return layer(input.feature())


def epsilon(eps: float | None) -> dict[str, Any]:
    """Return the setting of a normalisation's epsilon, if it is not the default."""
    return {} if eps == 1e-5 else {"epsilon": torch.finfo(torch.float32).eps if eps is None else eps}


def layer_norm(place: ModulePlace, module: Any, input: Tensor) -> Tensor:
    """Convert a layer normalisation, or a root-mean-square normalisation, of the last axes."""
    settings = {"first_axis": input.rank - len(module.normalized_shape), **epsilon(module.eps)}
    is_mean_square = type(module).__name__ == "RMSNorm"
    kind, roles = ("kRMSNorm", {"scale": "weight"}) if is_mean_square else ("kLayerNorm", SCALE_BIAS)
    symbol = input.symbol
    if symbol.feature is not None and symbol.feature.flat:  # a dense layer's params would have more axes
        symbol = nn.Reshape(list(input.rows), name=place.name(".rows"))(symbol)
    return input.of(layer_of(place, module, kind, roles, **settings)(symbol))


def group_norm(place: ModulePlace, module: Any, input: Any) -> Symbol:
    """Convert a normalisation over groups of channels; for an instance normalisation, over each channel."""
    if getattr(module, "track_running_stats", False):
        raise NoLayer("with track_running_stats=True")
    settings = {"groups": getattr(module, "num_groups", None) or module.num_features, **epsilon(module.eps)}
    return layer_of(place, module, "kGroupNorm", SCALE_BIAS, **settings)(input.feature())


def prelu(place: ModulePlace, module: Any, input: Any) -> Symbol:
    """Convert ``PReLU``, a rectifier with learnt slopes."""
    of_all = module.num_parameters == 1
    return layer_of(place, module, nn.PReLU, {"slope": "weight"}, shared=of_all)(input.feature())


def embed(place: ModulePlace, module: Any, input: Any) -> Any:
    """Convert ``Embedding``; codes equal for all records, such as positions, are looked up in a table."""
    if module.max_norm is not None:
        raise NoLayer("with max_norm")
    count, size = module.weight.shape
    if isinstance(input, Tensor):
        settings = {"vocab_size": count, "feature_dim": size, "dense_gradient": not module.sparse}
        settings |= {} if module.padding_idx is None else {"padding_code": module.padding_idx}
        layer = layer_of(place, module, "kEmbedding", {"weight": "weight"}, **settings)
        return looked_up(input, layer, (size,))
    codes = (input[0] if input.dim() == 2 else input).tolist()
    first, last = codes[0], codes[-1]
    if codes not in ([first] * len(codes), list(range(first, last + 1))):
        raise NoLayer("called on codes that are neither those of records nor neighbours")
    table = place.trace.param(f"{place.base}.weight", module.weight).at(place)
    return table if (first, last) == (0, count - 1) else table[first : last + 1]


def drop_branch(place: ModulePlace, module: Any, input: Tensor) -> Tensor:
    """Convert timm's DropPath or torchvision's StochasticDepth: rows are 0 at random in training."""
    ratio = module.drop_prob if hasattr(module, "drop_prob") else module.p
    if getattr(module, "mode", "row") != "row" or not getattr(module, "scale_by_keep", True):
        raise NoLayer("of whole batches, or without scale_by_keep")
    return input.each("kDropout", dropout_ratio=ratio, unit="kRow") if drops(place, ratio, module.training) else input


MODULES: Mapping[str, Callable[..., Any]] = {
    "Linear": linear_layer,
    **{f"{kind}{axes}d": convolve for kind in ("Conv", "ConvTranspose") for axes in AXES},
    **{f"BatchNorm{axes}d": batch_norm for axes in AXES},
    **{f"InstanceNorm{axes}d": group_norm for axes in AXES},
    "LayerNorm": layer_norm,
    "RMSNorm": layer_norm,
    "GroupNorm": group_norm,
    **{"PReLU": prelu, "DropPath": drop_branch, "StochasticDepth": drop_branch},
    "Embedding": embed,
    "MultiheadAttention": multi_head_attention,
    **dict.fromkeys(("LSTM", "GRU", "RNN"), recur),
}


def stand_in(place: ModulePlace, weight: Any, bias: Any, **settings: Any) -> tuple[ModulePlace, Any]:
    """Return a replacement for a PyTorch module with these params and settings, and its place, to convert functions.

    If they are a submodule's weight and bias, the layer has its name; else the params keep their own names.
    """
    params = {"weight": param_of(place, weight), "bias": param_of(place, bias)}
    names = {attribute: param[0] for attribute, param in params.items() if param is not None}
    key = *names.values(), str(settings)
    if key not in place.trace.stand_ins:
        values = {attribute: None if param is None else param[1] for attribute, param in params.items()}
        paths = {name.rpartition(".")[0] if name.endswith(f".{role}") else "" for role, name in names.items()}
        path = paths.pop() if len(paths) == 1 else ""
        path = "" if path in place.trace.taken else path
        module = SimpleNamespace(names={} if path else names, path=path, **values, **settings)
        place.trace.stand_ins[key] = module
    module = place.trace.stand_ins[key]
    return ModulePlace(place.trace, module.path, place.kind, is_module=True) if module.path else place, module


def with_params(make: Any, place: ModulePlace, input: Any, weight: Any, bias: Any, **settings: Any) -> Any:
    """Convert a function with these params and settings like the module with the same meaning."""
    place, module = stand_in(place, weight, bias, **settings)
    return place.call(make, [module, input], {})


def param_of(place: ModulePlace, x: Any) -> tuple[str, Any] | None:
    """Return the name and value of a module's param; raise NoLayer for a computed value."""
    if x is None:
        return None
    param: Any = (place.trace.param_names.get(id(x)), x)
    if isinstance(x, Tensor):
        param = place.trace.sources.get(x.source)
    if param is None or param[0] is None:
        raise NoLayer("with a weight or a bias that is no param of the module")
    return param[0], param[1]


def batch_norm_of(
    place: ModulePlace, input: Any, running_mean: Any, running_var: Any, weight: Any = None, bias: Any = None,
    training: bool = False, momentum: float = 0.1, eps: float = 1e-5,
) -> Any:  # fmt: skip
    """Convert the function batch_norm in a submodule that inherits PyTorch's class."""
    settings = {"momentum": momentum, "eps": eps, "training": training}
    place, module = stand_in(place, weight, bias, **settings)
    owner = dict(place.trace.module.named_modules()).get(place.base)
    module.running_mean = running_mean
    if module.names or getattr(owner, "running_mean", None) is not running_mean:
        raise NoLayer("with statistics that are not those of the module of its weight")
    return batch_norm(place, module, input)


def embedding(
    place: ModulePlace, input: Any, weight: Any, padding_idx: Any = None, max_norm: Any = None, norm_type: float = 2.0,
    scale_grad_by_freq: bool = False, sparse: bool = False,
) -> Any:  # fmt: skip
    """Convert the function embedding."""
    settings = {"padding_idx": padding_idx, "max_norm": max_norm, "sparse": sparse}
    return with_params(embed, place, input, weight, None, **settings)


def convolution(
    place: ModulePlace, input: Any, weight: Any, bias: Any = None, stride: Any = 1, padding: Any = 0, dilation: Any = 1,
    groups: int = 1,
) -> Any:  # fmt: skip
    """Convert a function such as conv2d, for sequences, images or volumes."""
    sizes: dict[str, Any] = {"stride": stride, "padding": padding, "dilation": dilation, "groups": groups}
    fixed = {"transposed": False, "padding_mode": "zeros", "out_channels": weight.shape[0]}
    return with_params(convolve, place, input, weight, bias, **sizes, **fixed)


FUNCTIONS: Mapping[str, Callable[..., Any]] = {
    **OPERATIONS,
    **{f"conv{axes}d": convolution for axes in AXES},
    **{"batch_norm": batch_norm_of, "scaled_dot_product_attention": scaled_dot_product_attention},
    "linear": lambda place, input, weight, bias=None: with_params(linear_layer, place, input, weight, bias),
    "layer_norm": lambda place, input, normalized_shape, weight=None, bias=None, eps=1e-5: with_params(
        layer_norm, place, input, weight, bias, normalized_shape=[*normalized_shape], eps=eps
    ),
    "group_norm": lambda place, input, num_groups, weight=None, bias=None, eps=1e-5: with_params(
        group_norm, place, input, weight, bias, num_groups=num_groups, eps=eps
    ),
    "embedding": embedding,
}

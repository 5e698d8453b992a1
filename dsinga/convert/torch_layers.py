"""A layer for a module of PyTorch, with params that are shared or frozen as the module's are."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping
from typing import Any

from dsinga import nn
from dsinga.convert.torch_names import CONSTANT
from dsinga.convert.torch_shapes import feature, reshaped
from dsinga.convert.torch_tensors import NotConvertible
from dsinga.convert.torch_tracing import ModulePlace


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
        layer_name, names = place.name(suffix), getattr(module, "names", {})  # of params of a function
        is_further = layer_name != f"{place.base}{suffix}" or hasattr(module, "names")
        for (role, attribute), param, is_frozen in zip(roles.items(), params, frozen, strict=True):
            name = names.get(attribute, f"{layer_name}_{role}")
            gate = role.removeprefix("back_").rpartition("_")[0]
            conf = {"name": name + CONSTANT} if param is None else place.trace.shared(name, param, gate)
            if conf and param is not None and is_further:  # the module's names are those of the first layer
                conf = {"name": f"{layer_name}_{role}", **conf}
            conf = conf or ({"name": name} if attribute in names else {})
            confs.append({**conf, **({"static": True} if param is None or (is_frozen and not all(frozen)) else {})})
        common = {"trainable": False} if frozen and all(frozen) else {}
        return make(name=layer_name, param=confs if any(confs) else None, **common, **settings)

    return place.trace.layer(module, suffix + variant, first)


WEIGHT_BIAS = {"weight": "weight", "bias": "bias"}


def present(module: Any) -> dict[str, str]:
    """Return which of weight and bias a module has."""
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

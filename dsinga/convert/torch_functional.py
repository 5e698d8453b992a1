"""The layers for functions of PyTorch that take params of the module, such as torch.nn.functional.linear."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any

from dsinga.convert import torch_modules as modules
from dsinga.convert.torch_attention import scaled_dot_product_attention
from dsinga.convert.torch_layers import linear_layer
from dsinga.convert.torch_operations import OPERATIONS, sizes_of
from dsinga.convert.torch_reductions import REDUCTIONS
from dsinga.convert.torch_tensors import NotConvertible, TracedTensor
from dsinga.convert.torch_tracing import ModulePlace


def stand_in(place: ModulePlace, weight: Any, bias: Any, **settings: Any) -> tuple[ModulePlace, Any]:
    """Return the place and the attributes of a module of PyTorch with these params and settings.

    Where they are the weight and the bias of a submodule, the layer has its name; else the params have their own names.
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
    return ModulePlace(place.trace, module.path, module, place.function) if module.path else place, module


def param_of(place: ModulePlace, x: Any) -> tuple[str, Any] | None:
    """Return the name and the value of a param of the module. Raises NotConvertible for what is computed."""
    if x is None:
        return None
    param: Any = x.param if isinstance(x, TracedTensor) else (place.trace.param_names.get(id(x)), x)
    if param is None or param[0] is None:
        raise NotConvertible("with a weight or a bias that is no param of the module")
    return param[0], param[1]


def linear(place: ModulePlace, input: Any, weight: Any, bias: Any = None) -> Any:
    """Return a fully connected layer."""
    return linear_layer(*stand_in(place, weight, bias, out_features=len(weight)), input)


def layer_norm(
    place: ModulePlace, input: Any, normalized_shape: Any, weight: Any = None, bias: Any = None, eps: float = 1e-5
) -> Any:
    """Return a layer normalisation."""
    return modules.layer_norm(*stand_in(place, weight, bias, normalized_shape=[*normalized_shape], eps=eps), input)


def group_norm(
    place: ModulePlace, input: Any, num_groups: int, weight: Any = None, bias: Any = None, eps: float = 1e-5
) -> Any:
    """Return a normalisation over groups of channels."""
    return modules.group_norm(*stand_in(place, weight, bias, num_groups=num_groups, eps=eps), input)


def batch_norm(
    place: ModulePlace, input: Any, running_mean: Any, running_var: Any, weight: Any = None, bias: Any = None,
    training: bool = False, momentum: float = 0.1, eps: float = 1e-5,
) -> Any:  # fmt: skip
    """Return a batch normalisation of a submodule whose class inherits PyTorch's."""
    settings = {"momentum": momentum, "eps": eps, "training": training}
    place, module = stand_in(place, weight, bias, **settings)
    owner = dict(place.trace.module.named_modules()).get(place.base)
    module.running_mean = running_mean
    if module.names or getattr(owner, "running_mean", None) is not running_mean:
        raise NotConvertible("with statistics that are not those of the module of its weight")
    return modules.batch_norm(place, module, input)


def embedding(
    place: ModulePlace, input: Any, weight: Any, padding_idx: Any = None, max_norm: Any = None, norm_type: float = 2.0,
    scale_grad_by_freq: bool = False, sparse: bool = False,
) -> Any:  # fmt: skip
    """Return the vectors of codes."""
    settings = {"num_embeddings": len(weight), "embedding_dim": weight.shape[1], "padding_idx": padding_idx}
    settings |= {"max_norm": max_norm, "sparse": sparse}
    return modules.embed(*stand_in(place, weight, None, **settings), input)


def convolution(axes: int) -> Callable[..., Any]:
    """Return the function of convolutions of sequences, images or volumes."""

    def convolve(
        place: ModulePlace, input: Any, weight: Any, bias: Any = None, stride: Any = 1, padding: Any = 0,
        dilation: Any = 1, groups: int = 1,
    ) -> Any:  # fmt: skip
        settings = {"kernel_size": tuple(weight.shape[2:]), "out_channels": len(weight), "groups": groups}
        settings |= {"stride": sizes_of(stride, axes), "dilation": sizes_of(dilation, axes), "transposed": False}
        settings |= {"padding": padding if isinstance(padding, str) else sizes_of(padding, axes)}
        return modules.convolve(*stand_in(place, weight, bias, padding_mode="zeros", **settings), input)

    return convolve


FUNCTIONS: Mapping[str, Callable[..., Any]] = {
    **OPERATIONS,
    **REDUCTIONS,
    **{f"conv{axes}d": convolution(axes) for axes in (1, 2, 3)},
    **{
        "linear": linear,
        "layer_norm": layer_norm,
        "group_norm": group_norm,
        "batch_norm": batch_norm,
        "embedding": embedding,
    },
    "scaled_dot_product_attention": scaled_dot_product_attention,
}

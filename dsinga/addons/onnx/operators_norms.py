"""Converts ONNX's normalisations: of batches, channels, groups of channels, the last axes."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from dsinga.addons.onnx.node_place import NodePlace
from dsinga.addons.onnx.values import Constant
from dsinga.nn.writing.reshaping import NoLayer
from dsinga.nn.writing.tensor import Tensor

Params = dict[str, tuple[Constant, np.ndarray] | None]


def epsilon_of(epsilon: float) -> dict[str, Any]:
    """Return the setting of epsilon unless it is the default."""
    return {} if epsilon == 1e-5 else {"epsilon": epsilon}


def affine(scale: Any, bias: Any, shape: tuple[int, ...], keeps_plain: bool = False) -> Params:
    """Reshape a normalisation's scale and bias for the layer; None for a missing one.

    Ones and zeros count as missing unless ``keeps_plain``: exporters write them for modules without params.
    """
    params: Params = {}
    for role, given, plain in (("scale", scale, 1), ("bias", bias, 0)):
        if given is not None and not isinstance(given, Constant):
            raise NoLayer(f"with a {role} that layers compute")
        if given is None or not (keeps_plain or given.is_param or (given.array != plain).any()):
            params[role] = None
            continue
        if given.array.size not in (1, math.prod(shape)) or is_one_param(given, shape):
            raise NoLayer(f"with a {role} of the shape {given.array.shape}, not {shape}")
        params[role] = given, vector_of(given, shape)
    return params


def is_one_param(given: Any, shape: tuple[int, ...]) -> bool:
    """Whether a scale or bias is a single trained number, though the layer needs one for each place."""
    return isinstance(given, Constant) and given.is_param and given.array.size == 1 < math.prod(shape)


def vector_of(given: Constant, shape: tuple[int, ...]) -> np.ndarray:
    """Reshape a param's numbers; a single number is repeated."""
    array = np.asarray(given.array, np.float32)
    return array.reshape(shape) if array.size == math.prod(shape) else np.broadcast_to(array.reshape(()), shape)


def batch_normalise(
    place: NodePlace, x: Any, scale: Any, bias: Any, mean: Any, variance: Any, epsilon: float = 1e-5,
    momentum: float = 0.9,
) -> Any:  # fmt: skip
    """Convert BatchNormalization, with running statistics that move in training, as in PyTorch.

    Until trained, a net exported in training mode computes as in evaluation mode.
    """
    if not isinstance(mean, Constant) or not isinstance(variance, Constant):
        raise NoLayer("by statistics that layers compute")
    channels = x.shape[1:2]
    params = affine(scale, bias, channels)
    for role, given in (("mean", mean), ("variance", variance)):  # each layer has its own, even if equal
        params[role] = Constant(given.array), vector_of(given, channels)
    settings = {"momentum": round(1 - momentum, 7), "keep_initial": True, **epsilon_of(epsilon)}
    return place.layer("kBM", params, **settings)(x.feature())


def group_normalise(
    place: NodePlace, x: Any, scale: Any, bias: Any, num_groups: int | None = None, epsilon: float = 1e-5
) -> Any:
    """Convert GroupNormalization, or InstanceNormalization over each channel."""
    channels = x.shape[1]
    params = affine(scale, bias, (channels,), keeps_plain=place.node.op_type != "InstanceNormalization")
    settings = {"groups": num_groups or channels, **epsilon_of(epsilon)}
    return place.layer("kGroupNorm", params, **settings)(x.feature())


def last_axes(kind: str) -> Callable[..., Any]:
    """Return the function that converts a normalisation over the last axes."""

    def operate(
        place: NodePlace, x: Any, scale: Any = None, bias: Any = None, axis: int = -1, epsilon: float = 1e-5
    ) -> Any:
        axis = x.axis(axis)
        if x.batch_axis is None or axis <= x.batch_axis:
            raise NoLayer("over the records of a batch")
        is_apart = any(isinstance(given, Tensor) or is_one_param(given, x.shape[axis:]) for given in (scale, bias))
        params = affine(None if is_apart else scale, None if is_apart else bias, x.shape[axis:])
        if kind == "kRMSNorm":
            del params["bias"]
        y = x.of(place.layer(kind, params, first_axis=axis, **epsilon_of(epsilon))(x.symbol))
        y = y * scale if is_apart else y
        return y + bias if is_apart and bias is not None else y

    return operate


def normalise_responses(
    place: NodePlace, x: Any, size: int, alpha: float = 1e-4, beta: float = 0.75, bias: float = 1.0
) -> Any:
    """Convert LRN: x·(bias + alpha·mean(x²))^-beta over neighbouring channels."""
    settings: dict[str, Any] = {"alpha": alpha, "beta": beta, "knorm": bias, "local_size": size}
    return place.layer("kLRN", {}, **settings)(x.feature(3))


NORMS: Mapping[str, Callable[..., Any]] = {
    **{"BatchNormalization": batch_normalise, "GroupNormalization": group_normalise},
    **{"InstanceNormalization": group_normalise, "LayerNormalization": last_axes("kLayerNorm")},
    **{"RMSNormalization": last_axes("kRMSNorm"), "LRN": normalise_responses},
}

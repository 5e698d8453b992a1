"""Converts PyTorch's operations on shapes to layers: reshaping, permuting, cutting and joining tensors."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from dsinga.convert.torch_tensors import FREEZE, tensors_in, torch_dtype
from dsinga.convert.torch_tracing import ModulePlace
from dsinga.nn.writing.composed import blocks_to_channels, channels_to_blocks, is_input, swapped_groups, tiled
from dsinga.nn.writing.reshaping import NoLayer
from dsinga.nn.writing.tensor import BOOL, MIXES, Tensor, joined, tensor_of


def view(place: ModulePlace, x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
    """Reshape a tensor as PyTorch does; raise NoLayer if records would be mixed."""
    y = x.reshape(place.torch_result(x, *args, **kwargs).shape)
    if y.merged:
        raise NoLayer(MIXES)
    return y


def permute(place: ModulePlace, x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
    """Order a tensor's axes as PyTorch's function does."""
    result = place.torch_result(x, *args, **kwargs)
    axes = [(math.prod(x.shape[axis + 1 :]), size) for axis, size in enumerate(x.shape)]  # stride and size of each
    order = []
    for axis in zip(result.stride(), result.shape, strict=True):
        order.append(axes.index(axis))
        axes[order[-1]] = (-1, -1)
    return x.transpose(order)


def expand(place: ModulePlace, x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
    """Repeat axes of length 1; a param, equal for all records, is expanded to a batch."""
    shape = tuple(place.torch_result(x, *args, **kwargs).shape)
    own = (1,) * (len(shape) - x.rank) + x.shape
    if any(size not in (1, new) for size, new in zip(own, shape, strict=True)):
        raise NoLayer(f"to {shape}")
    return x if shape == x.shape else x.expand(shape)


def getitem(x: Tensor, key: Any) -> Tensor:
    """Return the part of a tensor that an index selects."""
    if tensors_in(key if isinstance(key, tuple) else (key,)):
        raise NoLayer("by an index that is a tensor")
    return x[key]


def split(place: ModulePlace, x: Tensor, *args: Any, **kwargs: Any) -> list[Tensor]:
    """Return the parts into which PyTorch's function cuts a tensor."""
    parts = []
    for part in place.torch_result(x, *args, **kwargs):
        axis = next((axis for axis, size in enumerate(part.shape) if size != x.shape[axis]), None)
        start = 0 if axis is None else part.storage_offset() // math.prod(x.shape[axis + 1 :])
        parts.append(x if axis is None else x.part(axis, slice(start, start + part.shape[axis])))
    return parts


def unbind(x: Tensor, dim: int = 0) -> list[Tensor]:
    """Return a tensor's parts along an axis, without the axis."""
    return x.parts(x.axis(dim))


def cat(place: ModulePlace, tensors: Sequence[Any], dim: int = 0) -> Tensor:
    """Join tensors along an axis."""
    parts = [tensor_of(place, x, tensors) for x in tensors]
    return joined(parts, parts[0].axis(dim))


def stack(place: ModulePlace, tensors: Sequence[Any], dim: int = 0) -> Tensor:
    """Join tensors along a new axis."""
    parts = [tensor_of(place, x, tensors) for x in tensors]
    axis = dim % (parts[0].rank + 1)
    return cat(place, [x.reshape((*x.shape[:axis], 1, *x.shape[axis:]), ".parts") for x in parts], axis)


def flip(x: Tensor, *dims: Any) -> Tensor:
    """Reverse a tensor along axes."""
    axes = {x.axis(axis) for axis in (dims[0] if isinstance(dims[0], (list, tuple)) else dims)}
    return x[tuple(slice(None, None, -1 if axis in axes else None) for axis in range(x.rank))]


def cast(place: ModulePlace, x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
    """Return a tensor for a cast to another dtype; raise NoLayer if the dtype could change its numbers."""
    dtypes = [value for value in (*args, *kwargs.values()) if isinstance(value, torch.dtype)]
    kind = dtypes[0] if dtypes else {"long": torch.int64, "int": torch.int64}.get(place.kind, torch.float32)
    if kind in (torch.float16, torch.bfloat16):
        raise NoLayer(f"to {kind}")
    if not kind.is_floating_point and x.dtype != BOOL and not is_input(x):
        raise NoLayer("to integers of what is no argument of the forward, which cuts off fractions")
    return x


def detach(place: ModulePlace, x: Tensor) -> Tensor:
    """Return a tensor unchanged; raise NoLayer if it depends on trained params."""
    if place.trace.learns(x):
        raise NoLayer(f"({FREEZE})")
    return x


def constants(place: ModulePlace, x: Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
    """Return PyTorch's result for a function that uses only a tensor's shape, such as zeros_like."""
    with torch._C.DisableTorchFunctionSubclass():
        result: torch.Tensor = place.function(
            torch.zeros((), dtype=torch_dtype(x.dtype)).expand(x.shape), *args, **kwargs
        )
        return result


SHAPES: Mapping[str, Callable[..., Any]] = {
    **dict.fromkeys(("view", "reshape", "flatten", "unflatten", "squeeze", "unsqueeze"), view),
    **dict.fromkeys(("permute", "transpose", "swapaxes", "movedim", "mT", "t", "T"), permute),
    **dict.fromkeys(("expand", "expand_as"), expand),
    "repeat": lambda x, *sizes: tiled(x, sizes[0] if isinstance(sizes[0], (list, tuple)) else sizes),
    **dict.fromkeys(("split", "chunk"), split),
    **dict.fromkeys(("cat", "concat", "concatenate"), cat),
    **dict.fromkeys(("to", "float", "long", "int", "type_as", "contiguous"), cast),
    **dict.fromkeys(("zeros_like", "ones_like", "full_like", "new_zeros", "new_ones", "new_full"), constants),
    **{"getitem": getitem, "unbind": unbind, "stack": stack, "detach": detach, "data": detach, "flip": flip},
    "pixel_shuffle": lambda input, upscale_factor: channels_to_blocks(input, upscale_factor),
    "pixel_unshuffle": lambda input, downscale_factor: blocks_to_channels(input, downscale_factor),
    **{"channel_shuffle": swapped_groups, "clone": lambda x, **kwargs: x},
}

"""Layers for PyTorch's operations on shapes: reshaping, permuting, cutting and joining tensors."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from dsinga import nn
from dsinga.convert.torch_tensors import FREEZE, NotConvertible, TracedTensor, tensors_in
from dsinga.convert.torch_tracing import ModulePlace
from dsinga.nn.writing.composed import blocks_to_channels, channels_to_blocks, is_input
from dsinga.nn.writing.reshaping import permuted, reshaped, rows_of
from dsinga.nn.writing.symbol import Symbol


def feature(x: Any, rank: int | None = None) -> Symbol:
    """Return the feature of a tensor of the batch; of ``rank`` axes, where one is given. Raises NotConvertible."""
    if not isinstance(x, TracedTensor) or x.unbatched or x.symbol is None:
        raise NotConvertible("computed from params and constants only")
    if rank is not None and x.dim() != rank + 1:
        raise NotConvertible(f"of a tensor with {x.dim()} axes, not {rank + 1}")
    return x.symbol


def as_rows(place: ModulePlace, x: Any) -> Any:
    """Return the feature of a tensor for a layer whose params have the shape of rows: flattened ones as vectors."""
    symbol = feature(x)
    is_flat = symbol.feature is not None and symbol.feature.flat
    return nn.Reshape(list(rows_of(symbol)), name=place.name(".rows"))(symbol) if is_flat else symbol


def like(x: Any, symbol: Symbol) -> Any:
    """Return the tensor of a feature, which is shared by all records if ``x`` is."""
    return TracedTensor(x.tracer, symbol, rows_of(symbol), unbatched=True) if x.unbatched else symbol


def moved(x: Any, symbol: Symbol, axis: int) -> Any:
    """Return the traced tensor of a feature (a layer's output) whose batch lies along ``axis``."""
    return x.tracer.wrapped(symbol, x.dtype).with_batch_axis(axis)


def in_shape(x: Any, symbol: Symbol, shape: Sequence[int], axis: int) -> Any:
    """Return the tensor of a feature in a shape whose ``axis`` is the batch; of (B,), the rows have one number."""
    return TracedTensor(x.tracer, symbol, shape, batch_axis=axis, dtype=x.dtype)


def view(place: ModulePlace, x: Any, *args: Any, **kwargs: Any) -> Any:
    """Return a tensor in the shape that PyTorch gives it. Raises NotConvertible where records would be mixed."""
    shape = tuple(place.torch_result(x, *args, **kwargs).shape)
    if x.unbatched:
        return like(x, reshaped(place, x.symbol, shape))
    before = math.prod(x.shape[: x.batch_axis])
    axes = (axis for axis, size in enumerate(shape) if size == place.trace.batch and math.prod(shape[:axis]) == before)
    if (axis := next(axes, None)) is None:
        raise NotConvertible("that mixes the records of a batch")
    return in_shape(x, reshaped(place, feature(x), (*shape[:axis], *shape[axis + 1 :]) or (1,)), shape, axis)


def permute(place: ModulePlace, x: Any, *args: Any, **kwargs: Any) -> Any:
    """Return a tensor with its axes in PyTorch's order."""
    result = place.torch_result(x, *args, **kwargs)
    axes = [(math.prod(x.shape[axis + 1 :]), size) for axis, size in enumerate(x.shape)]  # stride and size of each
    order = []
    for axis in zip(result.stride(), result.shape, strict=True):
        order.append(axes.index(axis))
        axes[order[-1]] = (-1, -1)
    if x.unbatched:
        return like(x, permuted(place, x.symbol, [axis + 1 for axis in order]))
    rows = [axis + (axis < x.batch_axis) for axis in order if axis != x.batch_axis]
    return moved(x, permuted(place, feature(x), rows), order.index(x.batch_axis))


def expand(place: ModulePlace, x: Any, *args: Any, **kwargs: Any) -> Any:
    """Return a param, which is the same for all records, with an axis of the batch."""
    shape = tuple(place.torch_result(x, *args, **kwargs).shape)
    if shape == tuple(x.shape):
        return x
    own = (1,) * (len(shape) - x.dim()) + tuple(x.shape)
    axis = shape.index(place.trace.batch) if place.trace.batch in shape else 0
    rows = (*shape[:axis], *shape[axis + 1 :]) or (1,)
    if not x.unbatched and axis == x.batch_axis == 0 and x.dim() == len(shape):  # axes of length 1 are repeated
        zeros = align(place, place.trace.constant(place.name(".zeros"), torch.zeros(rows)), len(rows))
        return nn.Layer("kArithmetic", operator="ADD", name=place.name())(feature(x), zeros)
    if not x.unbatched or own != (*shape[:axis], 1, *shape[axis + 1 :]):
        raise NotConvertible(f"to {shape}")
    shape = (*shape[:axis], place.trace.batch, *shape[axis + 1 :])
    return in_shape(x, reshaped(place, x.symbol, rows, ".aligned"), shape, axis)


def getitem(place: ModulePlace, x: Any, key: Any) -> Any:
    """Return part of a tensor."""
    key = key if isinstance(key, tuple) else (key,)
    if tensors_in(key):
        raise NotConvertible("by an index that is a tensor")
    if x.batch_axis:
        return moved_item(place, x, key)
    if x.dim() == 1 and not x.unbatched:  # (B,), whose rows have one number
        return view(place, x, key)
    symbol = x.symbol[(slice(None), *key)] if x.unbatched else feature(x)[key]
    if symbol is not x.symbol:
        symbol.builder.name = place.name()
    if not rows_of(symbol):  # (B,), of which other layers make (B, 1)
        rows = nn.Reshape([1], name=place.name(".rows"))(symbol)
        return like(x, symbol) if x.unbatched else in_shape(x, rows, (x.shape[0],), 0)
    return like(x, symbol)


def moved_item(place: ModulePlace, x: Any, key: tuple[Any, ...]) -> Any:
    """Return part of a tensor whose first axis is not the batch; of states that were joined, one of them."""
    axis, symbol = x.batch_axis, feature(x)
    while len(key) > 1 and key[-1] == slice(None):
        key = key[:-1]
    before, after = key[:axis], key[axis + 1 :]
    if key[axis : axis + 1] not in ((), (slice(None),)) or any(part is None or part is Ellipsis for part in key):
        raise NotConvertible("that cuts the batch, or adds axes, where the batch is not the first axis")
    rows = [rows_of(source)[0] for source in symbol.sources]
    if isinstance(key[0], int) and symbol.builder.kind == "Concatenate" and rows == [1] * len(x):
        symbol, before = symbol.sources[key[0]], (0, *before[1:])
    if before == (0,) and not after and rows_of(symbol)[0] == 1:
        return reshaped(place, symbol, rows_of(symbol)[1:])
    part = symbol[(slice(None), *before, *after)]
    if part is not symbol:
        part.builder.name = place.name()
    return moved(x, part, axis - sum(isinstance(number, int) for number in before))


def split(place: ModulePlace, x: Any, *args: Any, **kwargs: Any) -> Any:
    """Return the parts of a tensor that PyTorch cuts it in."""
    parts = []
    for part in place.torch_result(x, *args, **kwargs):
        axis = next((axis for axis, size in enumerate(part.shape) if size != x.shape[axis]), 0)
        start = part.storage_offset() // math.prod(x.shape[axis + 1 :])
        parts.append(getitem(place, x, (slice(None),) * axis + (slice(start, start + part.shape[axis]),)))
    return parts


def unbind(place: ModulePlace, x: Any, dim: int = 0) -> Any:
    """Return the parts of a tensor along an axis, which they no longer have."""
    axis = dim % x.dim()
    return [getitem(place, x, (slice(None),) * axis + (number,)) for number in range(x.shape[axis])]


def cat(place: ModulePlace, tensors: Sequence[Any], dim: int = 0) -> Any:
    """Return tensors joined along an axis."""
    rank = tensors[0].dim()
    if (axis := dim % rank) == 0:
        raise NotConvertible("along the axis of the batch")
    symbols = [align(place, operand(place, tensor), rank - 1) for tensor in tensors]
    return nn.Concatenate(axis=axis, name=place.name())(symbols)


def stack(place: ModulePlace, tensors: Sequence[Any], dim: int = 0) -> Any:
    """Return tensors joined along a new axis."""
    axis = dim % (tensors[0].dim() + 1)
    traced = (place.trace.wrapped(operand(place, tensor)) for tensor in tensors)
    rows = [(*x.shape[1:axis], 1, *x.shape[axis:]) for x in tensors]
    parts = [reshaped(place, feature(x), shape, ".parts") for x, shape in zip(traced, rows, strict=True)]
    return cat(place, list(map(place.trace.wrapped, parts)), axis)


def flip(place: ModulePlace, x: Any, *dims: Any) -> Any:
    """Return a tensor in the reverse order along axes."""
    axes = {axis % x.dim() for axis in (dims[0] if isinstance(dims[0], (list, tuple)) else dims)}
    return getitem(place, x, tuple(slice(None, None, -1 if axis in axes else None) for axis in range(x.dim())))


def pixel_shuffle(place: ModulePlace, input: Any, upscale_factor: int) -> Any:
    """Return images with channels of which each ``upscale_factor``² became squares of pixels."""
    return channels_to_blocks(place, feature(input, 3), upscale_factor)


def pixel_unshuffle(place: ModulePlace, input: Any, downscale_factor: int) -> Any:
    """Return images whose squares of pixels became channels, the reverse of :func:`pixel_shuffle`."""
    return blocks_to_channels(place, feature(input, 3), downscale_factor)


def channel_shuffle(place: ModulePlace, input: Any, groups: int) -> Any:
    """Return images whose channels, the first of each group first, are in another order."""
    symbol = feature(input)
    channels, *sizes = rows_of(symbol)
    y = reshaped(place, symbol, (groups, channels // groups, *sizes), ".groups")
    y = permuted(place, y, [2, 1, *range(3, len(sizes) + 3)], ".order")
    return reshaped(place, y, (channels, *sizes))


def cast(place: ModulePlace, x: Any, *args: Any, **kwargs: Any) -> Any:
    """Return a tensor in another dtype, which must hold its numbers, as codes and truth values are held by integers."""
    dtypes = [value for value in (*args, *kwargs.values()) if isinstance(value, torch.dtype)]
    kind = dtypes[0] if dtypes else {"long": torch.int64, "int": torch.int64}.get(place.kind, torch.float32)
    if kind in (torch.float16, torch.bfloat16):
        raise NotConvertible(f"to {kind}")
    if not kind.is_floating_point and x.dtype != torch.bool and not is_input(x.symbol):
        raise NotConvertible("to integers of what is no argument of the forward, which cuts off fractions")
    return copied(x)


def copied(x: Any) -> Any:
    """Return another tensor of the same feature."""
    return like(x, x.symbol) if x.unbatched else in_shape(x, x.symbol, x.shape, x.batch_axis)


def detach(place: ModulePlace, x: Any) -> Any:
    """Return a tensor whose gradients stop, if it has none."""
    if x.tracer.learns(x):
        raise NotConvertible(f"({FREEZE})")
    return copied(x)


def constants(place: ModulePlace, x: Any, *args: Any, **kwargs: Any) -> Any:
    """Return numbers that PyTorch makes in the shape of a tensor, and that do not depend on it."""
    with torch._C.DisableTorchFunctionSubclass():
        return place.function(torch.zeros((), dtype=x.dtype).expand(x.shape), *args, **kwargs)


def operand(place: ModulePlace, value: Any) -> Any:
    """Return an operand as a number or a traced tensor; a constant tensor becomes a param that keeps its value."""
    if isinstance(value, TracedTensor):
        return value
    if not isinstance(value, torch.Tensor) or value.dim() == 0:
        if float(value) in (place.trace.batch, 1 / place.trace.batch):
            raise NotConvertible("by the number of records of a batch")
        return float(value)
    if value.requires_grad or isinstance(value, torch.nn.Parameter):
        raise NotConvertible("of a param that belongs to another layer")
    if len(value) == place.trace.batch:  # made for the batch, as by torch.zeros(len(x), 3)
        if not bool((value == value[:1]).all()):
            raise NotConvertible("of constants that differ among the records of a batch")
        value = value[:1]
    return place.trace.constant(place.name(".values"), value)


def align(place: ModulePlace, x: Any, rank: int) -> Symbol:
    """Return a tensor as a feature with ``rank`` axes of rows; one that is shared gets axes of length 1 in front."""
    if not x.unbatched:
        return feature(x, rank)
    shape = tuple(x.shape)
    shape = shape[1:] if len(shape) == rank + 1 and shape[0] == 1 else shape
    if len(shape) > rank:
        raise NotConvertible(f"of a param of the shape {shape}, which would mix the records of a batch")
    aligned: Symbol = reshaped(place, x.symbol, (1,) * (rank - len(shape)) + shape, ".aligned")
    return aligned


SHAPES: Mapping[str, Callable[..., Any]] = {
    **dict.fromkeys(("view", "reshape", "flatten", "unflatten", "squeeze", "unsqueeze"), view),
    **dict.fromkeys(("permute", "transpose", "swapaxes", "movedim", "mT", "t", "T"), permute),
    **dict.fromkeys(("expand", "expand_as", "repeat"), expand),
    **dict.fromkeys(("split", "chunk"), split),
    **dict.fromkeys(("cat", "concat", "concatenate"), cat),
    **dict.fromkeys(("to", "float", "long", "int", "type_as", "contiguous"), cast),
    **dict.fromkeys(("zeros_like", "ones_like", "full_like", "new_zeros", "new_ones", "new_full"), constants),
    **{"getitem": getitem, "unbind": unbind, "stack": stack, "detach": detach, "data": detach},
    **{"flip": flip, "pixel_shuffle": pixel_shuffle, "pixel_unshuffle": pixel_unshuffle},
    "channel_shuffle": channel_shuffle,
    "clone": lambda place, x, **kwargs: copied(x),
}

"""Computations of several layers, for nets that were written elsewhere: reductions, softmax, blocks of points."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from dsinga.nn.words.activations import GELU, Activation, Softmax
from dsinga.nn.words.basic_layers import layer_of_type
from dsinga.nn.writing.reshaping import NamesLayers, permuted, reshaped, rows_of
from dsinga.nn.writing.symbol import Symbol


def reduced(
    place: NamesLayers, symbol: Symbol, shape: Sequence[int], batch: int, axes: Sequence[int], keeps: bool, pool: str
) -> tuple[Any, tuple[int, ...], int]:
    """Return the means (AVG), sums (SUM) or maxima (MAX) over axes of a tensor, their shape, and the axis of the batch.

    Args:
        place: the operation for which layers are made.
        symbol: the feature of the tensor.
        shape: of the tensor.
        batch: the axis of the batch, which is not among ``axes``.
        axes: over which it is reduced, in order.
        keeps: whether the result has these axes, with length 1.
        pool: AVG, SUM or MAX.
    """
    rank = len(shape)
    result = tuple(1 if axis in axes else size for axis, size in enumerate(shape) if keeps or axis not in axes)
    batch_after = batch if keeps else batch - sum(axis < batch for axis in axes)
    if pool == "AVG" and batch == 0 and rank in (4, 5) and list(axes) == list(range(2, rank)):  # images or volumes
        y = layer_of_type("kPooling", pool="AVG", global_pooling=True, name=place.name())(symbol)
    else:
        order = [*axes, *(axis for axis in range(rank) if axis not in axes and axis != batch)]
        y = permuted(place, symbol, [axis + (axis < batch) for axis in order], ".axes")
        count = math.prod(shape[axis] for axis in axes)
        y = reshaped(place, y, (count, math.prod(rows_of(symbol)) // count), ".steps")
        y = layer_of_type("kPooling1D", pool=pool, name=place.name())(y)
    rows = [size for axis, size in enumerate(result) if axis != batch_after] or [1]
    return reshaped(place, y, rows, ".rows"), result, batch_after


def softmax_of_last(place: NamesLayers, symbol: Symbol) -> Any:
    """Return the softmax over the last axis."""
    rows = rows_of(symbol)
    if len(rows) == 1:
        return Softmax(name=place.name())(symbol)
    return layer_of_type("kSoftmax", num_softmax_per_instance=math.prod(rows[:-1]), name=place.name())(symbol)


def softmax_over(place: NamesLayers, symbol: Symbol, axis: int) -> Any:
    """Return the softmax over an axis of rows, counted from 1."""
    last = len(rows_of(symbol))
    if axis == last:
        return softmax_of_last(place, symbol)
    swapped = [*range(1, axis), last, *range(axis + 1, last), axis]
    y = softmax_of_last(place, permuted(place, symbol, swapped, ".last"))
    return permuted(place, y, swapped, ".back")


def gelu(place: NamesLayers, x: Symbol, approximate: str = "none") -> Any:
    """Return x·Φ(x), or its approximation by tanh."""
    if approximate == "none":
        return GELU(name=place.name())(x)
    inner = Activation("tanh", name=place.name(".tanh"))((x + x**3 * 0.044715) * math.sqrt(2 / math.pi))
    return layer_of_type("kMultiply", name=place.name())(x, (inner + 1.0) * 0.5)


def channels_to_blocks(place: NamesLayers, images: Symbol, size: int, block_first: bool = False) -> Any:
    """Return images whose groups of size² channels became blocks of points.

    The channels are in order of the new channel, then the point in its block; with ``block_first`` the other way round.
    """
    channels, height, width = rows_of(images)
    count = channels // size**2
    parts = (size, size, count) if block_first else (count, size, size)
    y = reshaped(place, images, (*parts, height, width), ".squares")
    y = permuted(place, y, [3, 4, 1, 5, 2] if block_first else [1, 4, 2, 5, 3], ".order")
    return reshaped(place, y, (count, height * size, width * size))


def blocks_to_channels(place: NamesLayers, images: Symbol, size: int, block_first: bool = False) -> Any:
    """Return images whose blocks of points became channels, the reverse of :func:`channels_to_blocks`."""
    channels, height, width = rows_of(images)
    y = reshaped(place, images, (channels, height // size, size, width // size, size), ".squares")
    y = permuted(place, y, [3, 5, 1, 2, 4] if block_first else [1, 3, 5, 2, 4], ".order")
    return reshaped(place, y, (channels * size**2, height // size, width // size))


def is_input(symbol: Symbol) -> bool:
    """Whether a feature has the numbers of an input as they are, though in another shape."""
    while symbol.builder.kind in ("Reshape", "Flatten", "Permute", "index"):
        symbol = symbol.sources[0]
    return not symbol.sources

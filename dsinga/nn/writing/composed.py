"""Operations on symbolic tensors that need several layers: einsum, where, blocks of points, attention."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from dsinga.nn.words.activations import GELU, Activation
from dsinga.nn.words.attention import Attention
from dsinga.nn.words.basic_layers import Dropout
from dsinga.nn.writing.images import LARGEST
from dsinga.nn.writing.reshaping import NoLayer, reshaped, without
from dsinga.nn.writing.symbol import Symbol
from dsinga.nn.writing.tensor import BOOL, FLOAT, Operation, Tensor, arithmetic, batched, joined

MOST_PARTS = 64  # the most parts of a tensor that are cut or joined one by one
MOST_HEADS = 1024  # the most query heads that share keys
MOST_SUMMED = 4096  # the longest axis for running sums by a matrix product
HIDDEN = -1e9  # added to hidden scores; their softmax is 0


def is_input(x: Tensor) -> bool:
    """Whether a tensor has the unchanged numbers of an input, perhaps in another shape."""
    symbol = x.symbol
    while symbol.builder.kind in ("Reshape", "Flatten", "Permute", "index"):
        symbol = symbol.sources[0]
    return not symbol.sources


def gelu(x: Tensor, approximate: str = "none") -> Tensor:
    """Apply GELU, x·Φ(x), or its approximation by tanh."""
    if approximate == "none":
        return x.each(GELU)
    inner = ((x + x**3.0 * 0.044715) * math.sqrt(2 / math.pi)).each(Activation, "tanh", suffix=".tanh")
    return x * ((inner + 1.0) * 0.5)


def swapped_groups(x: Tensor, groups: int) -> Tensor:
    """Shuffle channels of images: the first of each group, then the second of each, ... (ShuffleNet)."""
    batch, channels, *sizes = x.shape
    y = x.reshape((batch, groups, channels // groups, *sizes), ".groups").swap(1, 2, ".order")
    return y.reshape(x.shape)


def channels_to_blocks(x: Tensor, size: int, block_first: bool = False) -> Tensor:
    """Turn groups of size² channels of images (B, C, H, W) into blocks of points (pixel shuffle).

    Channels are ordered by the new channel, then by the point; with ``block_first`` the other way round.
    """
    x.feature(3)
    batch, channels, height, width = x.shape
    count = channels // size**2
    parts = (size, size, count) if block_first else (count, size, size)
    y = x.reshape((batch, *parts, height, width), ".squares")
    y = y.transpose([0, 3, 4, 1, 5, 2] if block_first else [0, 1, 4, 2, 5, 3], ".order")
    return y.reshape((batch, count, height * size, width * size))


def blocks_to_channels(x: Tensor, size: int, block_first: bool = False) -> Tensor:
    """Turn blocks of points of images into channels, the reverse of :func:`channels_to_blocks`."""
    x.feature(3)
    batch, channels, height, width = x.shape
    y = x.reshape((batch, channels, height // size, size, width // size, size), ".squares")
    y = y.transpose([0, 3, 5, 1, 2, 4] if block_first else [0, 1, 3, 5, 2, 4], ".order")
    return y.reshape((batch, channels * size**2, height // size, width // size))


def split_heads(x: Tensor, count: int) -> Tensor:
    """Split sequences (B, T, n) into attention heads, (B, count, T, n/count)."""
    batch, steps, width = x.shape
    return x.reshape((batch, steps, count, width // count), ".heads").swap(1, 2, ".split")


def join_heads(x: Tensor) -> Tensor:
    """Join attention heads (B, H, T, n) to (B, T, H·n)."""
    batch, count, steps, width = x.shape
    return x.swap(1, 2, ".steps").reshape((batch, steps, count * width), ".joined")


def dense(x: Tensor, layer: Callable[[Any], Symbol], units: int) -> Tensor:
    """Apply a fully connected layer with ``units`` outputs along the last axis."""
    if x.batch_axis is None or x.batch_axis == x.rank - 1:
        raise NoLayer("of a tensor whose last axis is the batch, or that has none")
    rows, symbol = x.rows, x.symbol
    if len(rows) > 2:
        symbol = reshaped(x.place, symbol, (math.prod(rows[:-1]), rows[-1]), ".rows")
    y = reshaped(x.place, layer(symbol), (*rows[:-1], units), ".axes")
    return replace(x, source=y, shape=(*x.shape[:-1], units))


def looked_up(codes: Tensor, layer: Callable[[Any], Symbol], shape: tuple[int, ...]) -> Tensor:
    """Look up codes in an embedding layer, for vectors or arrays of a shape."""
    result = (*codes.shape, *shape)
    y = layer(reshaped(codes.place, codes.symbol, (math.prod(codes.rows),), ".codes"))
    y = reshaped(codes.place, y, without(result, codes.batch_axis), ".axes")
    return replace(codes, source=y, shape=result, dtype=FLOAT)


def tiled(x: Tensor, counts: Sequence[int]) -> Tensor:
    """Repeat a tensor along its axes; further counts add axes of length 1 in front."""
    x = x.reshape((1,) * (len(counts) - x.rank) + x.shape)
    for axis, count in enumerate(counts):
        if count > 1 and axis == x.batch_axis:
            raise NoLayer("along the records of a batch")
        if count == x.place.batch and x.batch_axis is None and x.shape[axis] == 1:
            x = x.expand([count if at == axis else size for at, size in enumerate(x.shape)])
        elif not 1 <= count <= MOST_PARTS:
            raise NoLayer(f"{count} times")
        elif count > 1:
            x = joined([x] * count, axis)
    return x


def running_sum(x: Tensor, axis: int, exclusive: bool = False, reverse: bool = False) -> Tensor:
    """Compute running sums (cumsum) along an axis of records, as a product with ones."""
    axis = x.axis(axis)
    if axis == x.batch_axis or x.shape[axis] > MOST_SUMMED:
        raise NoLayer(f"over the records of a batch, or of more than {MOST_SUMMED} numbers")
    ones = np.triu(np.ones((x.shape[axis],) * 2, np.float32), int(exclusive))
    return (x.swap(axis, -1, ".last") @ (ones.T if reverse else ones)).swap(axis, -1, ".back")


def einsum(tensors: Sequence[Tensor], equation: str) -> Tensor:
    """Compute the sum of products of two tensors (Einstein's convention), as a matrix product."""
    left, arrow, out = equation.replace(" ", "").partition("->")
    names = left.split(",")
    if len(tensors) != 2 or not arrow or any(len({*each}) < len(each) or "." in each for each in (*names, out)):
        raise NoLayer("of other than two tensors, with an axis twice, or without the axes of the result")
    pairs = [*zip(names, tensors, strict=True)]
    records = {each[x.batch_axis] for each, x in pairs if x.batch_axis is not None}
    if len(records) > 1 or records - {*out} or any(x.batch_axis is None and records & {*each} for each, x in pairs):
        raise NoLayer("over the records of a batch")
    first, second = ([x for x in each if x not in records] for each in names)
    sizes = {name: size for each, x in pairs for name, size in zip(each, x.shape, strict=True)}
    both, summed = ([x for x in first if x in second and (x in out) is kept] for kept in (True, False))
    alone = [[x for x in each if x not in other] for each, other in ((first, second), (second, first))]
    if {*alone[0], *alone[1]} - {*out}:
        raise NoLayer("that sums over an axis of one tensor")

    def matrices(number: int, *parts: list[str]) -> Tensor:
        """Transpose and reshape a tensor to matrices: the batch axis, if any, and an axis for each part."""
        front = [*records & {*names[number]}]
        order = [names[number].index(x) for x in (*front, *(x for part in parts for x in part))]
        shape = [sizes[x] for x in front] + [math.prod(sizes[x] for x in part) for part in parts]
        return tensors[number].transpose(order, ".turned").reshape(shape, ".matrices")

    y = matrices(0, both, alone[0], summed) @ matrices(1, both, summed, alone[1])
    axes = [*records, *both, *alone[0], *alone[1]]
    return y.reshape([sizes[x] for x in axes], ".axes").transpose([axes.index(x) for x in out], ".order")


def where(place: Operation, condition: Any, a: Any, b: Any) -> Tensor:
    """Select ``a`` where a condition holds, else ``b``; -infinity becomes a number that softmax makes 0."""
    mask = place.array(condition)
    shares = [condition, None] if mask is None else [mask, ~mask]
    parts: list[Any] = []
    for number, x in enumerate((a, b)):
        array, other, share = place.array(x), (b, a)[number], shares[number]
        if mask is not None and array is not None:
            if isinstance(other, Tensor) and array.size and array.max() <= HIDDEN:
                return other + share * np.float32(HIDDEN)
            if math.prod(np.broadcast_shapes(array.shape, mask.shape)) > LARGEST:
                raise NoLayer(f"that makes more than {LARGEST} numbers")
        if array is not None:
            x = np.maximum(array, HIDDEN).astype(array.dtype)
            if not x.any():
                continue
        if mask is not None:
            share = share.astype(np.float32)
        elif number:
            share = arithmetic(place, "SUBTRACT", 1.0, condition)
        is_constant = mask is not None and array is not None
        parts.append(x * share if is_constant else arithmetic(place, "MULTIPLY", share, x))
    y: Tensor = parts[0] if len(parts) == 1 else arithmetic(place, "ADD", *parts)
    dtypes = [x.dtype for x in (a, b) if isinstance(x, Tensor)] or [getattr(place.array(a), "dtype", FLOAT)]
    return y.of(y.symbol, dtypes[0])


def repeated_heads(x: Tensor, times: int) -> Tensor:
    """Repeat each head of keys or values (B, H, T, n) for several query heads."""
    if times < 2:
        return x
    if times > MOST_HEADS:
        raise NoLayer(f"with {times} heads of queries for one of keys")
    batch, count, steps, width = x.shape
    one = x.reshape((batch, count, 1, steps * width), ".heads")
    return joined([one] * times, 2).reshape((batch, count * times, steps, width), ".split")


def hides_later(mask: np.ndarray, hides: bool) -> bool:
    """Whether a mask is causal: hides exactly the later steps of (T, T), for all heads.

    Truth values hide if they equal ``hides``; numbers added to scores hide below -1e4.
    """
    steps = mask.shape[-1] if mask.ndim > 1 else 0
    if not steps or mask.size != steps**2:
        return False
    square, later = mask.reshape(steps, steps), np.triu(np.ones((steps, steps), bool), 1)
    hidden = square == hides if square.dtype == bool else square < -1e4
    return bool((hidden == later).all() and (square.dtype == bool or not square[~later].any()))


def hiding(place: Operation, mask: Any, hides: bool) -> Any:
    """Convert a mask to the numbers added to scores; truth values hide if they equal ``hides``."""
    if (array := place.array(mask)) is not None:
        added = np.where(array == hides, HIDDEN, 0.0) if array.dtype == bool else np.maximum(array, HIDDEN)
        return added.astype(np.float32)
    return (mask if hides else 1.0 - mask) * HIDDEN if mask.dtype == BOOL else mask


def attend(
    heads: Sequence[Tensor],
    scale: float | None = None,
    causal: bool = False,
    masks: Sequence[Any] = (),
    hides: bool = True,
    bound: float = 0.0,
    ratio: float = 0.0,
    fused: bool = True,
) -> Tensor:
    """Compute attention of heads (B, H, T, n), by kAttention, or by products if it lacks the settings.

    Args:
        heads: queries, keys and values.
        scale: factor of scores, 1/√n by default.
        causal: whether later steps are hidden.
        masks: numbers that are added to scores, or truth values.
        hides: truth value that hides in masks.
        bound: b, if scores s become b·tanh(s/b), or 0.
        ratio: share of the weights that training drops.
        fused: whether it may be a kAttention.
    """
    q, k, v = heads
    place, steps, keys, width = q.place, q.shape[2], k.shape[2], q.shape[3]
    later = [mask for mask in masks if (array := place.array(mask)) is not None and hides_later(array, hides)]
    causal, masks = causal or bool(later), [mask for mask in masks if not any(mask is each for each in later)]
    if scale is not None and not math.isclose(scale, 1 / math.sqrt(width), rel_tol=1e-5):
        q = q * (scale * math.sqrt(width))
    if fused and not (masks or bound or ratio) and (not causal or steps == keys):
        sources, count = [join_heads(x).symbol for x in (q, v, k)], q.shape[1]
        layer = Attention(num_heads=count, score_mode="scaled_dot", use_causal_mask=causal, name=place.name())
        return split_heads(batched(place, layer(sources)), count)
    scores = (q @ k.swap(2, 3, ".keys")) * (1 / math.sqrt(width))
    if bound:
        scores = (scores / bound).each(Activation, "tanh", suffix=".tanh") * bound
    if causal:
        scores = scores + np.triu(np.full((steps, keys), HIDDEN, np.float32), 1)
    for mask in masks:
        scores = scores + hiding(place, mask, hides)
    weights = scores.softmax()
    return (weights.each(Dropout, ratio, suffix=".dropout") if ratio else weights) @ v

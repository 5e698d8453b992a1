"""Computations of several layers on symbolic tensors: blocks of points, attention by products of matrices."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from dsinga.nn.words.activations import GELU, Activation
from dsinga.nn.words.attention import Attention
from dsinga.nn.words.basic_layers import Dropout
from dsinga.nn.writing.tensor import Tensor, batched

HIDDEN = -1e9  # added to the scores of what is not seen; the softmax of numbers with it is 0 there


def is_input(x: Tensor) -> bool:
    """Whether a tensor has the numbers of an input as they are, though in another shape."""
    symbol = x.symbol
    while symbol.builder.kind in ("Reshape", "Flatten", "Permute", "index"):
        symbol = symbol.sources[0]
    return not symbol.sources


def gelu(x: Tensor, approximate: str = "none") -> Tensor:
    """Return x·Φ(x), or its approximation by tanh."""
    if approximate == "none":
        return x.each(GELU)
    inner = ((x + x**3.0 * 0.044715) * math.sqrt(2 / math.pi)).each(Activation, "tanh", suffix=".tanh")
    return x * ((inner + 1.0) * 0.5)


def swapped_groups(x: Tensor, groups: int) -> Tensor:
    """Return images whose channels, in groups, are in another order: the first of each group first."""
    batch, channels, *sizes = x.shape
    y = x.reshape((batch, groups, channels // groups, *sizes), ".groups").swap(1, 2, ".order")
    return y.reshape(x.shape)


def channels_to_blocks(x: Tensor, size: int, block_first: bool = False) -> Tensor:
    """Return images (B, C, H, W) whose groups of size² channels became blocks of points.

    The channels are in order of the new channel, then the point in its block; with ``block_first`` the other way round.
    """
    x.feature(3)
    batch, channels, height, width = x.shape
    count = channels // size**2
    parts = (size, size, count) if block_first else (count, size, size)
    y = x.reshape((batch, *parts, height, width), ".squares")
    y = y.transpose([0, 3, 4, 1, 5, 2] if block_first else [0, 1, 4, 2, 5, 3], ".order")
    return y.reshape((batch, count, height * size, width * size))


def blocks_to_channels(x: Tensor, size: int, block_first: bool = False) -> Tensor:
    """Return images whose blocks of points became channels, the reverse of :func:`channels_to_blocks`."""
    x.feature(3)
    batch, channels, height, width = x.shape
    y = x.reshape((batch, channels, height // size, size, width // size, size), ".squares")
    y = y.transpose([0, 3, 5, 1, 2, 4] if block_first else [0, 1, 3, 5, 2, 4], ".order")
    return y.reshape((batch, channels * size**2, height // size, width // size))


def split_heads(x: Tensor, count: int) -> Tensor:
    """Return sequences (B, T, n) with an axis of heads, (B, count, T, n/count)."""
    batch, steps, width = x.shape
    return x.reshape((batch, steps, count, width // count), ".heads").swap(1, 2, ".split")


def join_heads(x: Tensor) -> Tensor:
    """Return sequences of heads (B, H, T, n) as (B, T, H·n)."""
    batch, count, steps, width = x.shape
    return x.swap(1, 2, ".steps").reshape((batch, steps, count * width), ".joined")


def hides_later(mask: np.ndarray, hides: Any = True) -> bool:
    """Whether a mask hides exactly the later steps of (T, T), for all heads.

    Truth values hide where they are ``hides``; other numbers, which are added to scores, where they are below -1e4.
    """
    steps = mask.shape[-1] if mask.ndim > 1 else 0
    if not steps or mask.size != steps**2:
        return False
    square, later = mask.reshape(steps, steps), np.triu(np.ones((steps, steps), bool), 1)
    if square.dtype == bool:
        return bool(((square == hides) == later).all())
    return bool(((square < -1e4) == later).all() and not square[~later].any())


def attend(
    heads: Sequence[Tensor],
    scale: float | None = None,
    causal: bool = False,
    masks: Sequence[Any] = (),
    bound: float = 0.0,
    ratio: float = 0.0,
    fused: bool = True,
) -> Tensor:
    """Return attention of heads (B, H, T, n): a kAttention, or products where it has settings that this layer lacks.

    Args:
        heads: queries, keys and values.
        scale: of scores, 1/√n by default.
        causal: whether later steps are hidden.
        masks: numbers that are added to scores.
        bound: b, of scores s that become b·tanh(s/b), 0 for none.
        ratio: the share of the weights that are dropped in training.
        fused: whether it may be a kAttention.
    """
    q, k, v = heads
    steps, keys, width = q.shape[2], k.shape[2], q.shape[3]
    if scale is not None and not math.isclose(scale, 1 / math.sqrt(width), rel_tol=1e-5):
        q = q * (scale * math.sqrt(width))
    if fused and not (masks or bound or ratio) and (not causal or steps == keys):
        sources, count = [join_heads(x).symbol for x in (q, v, k)], q.shape[1]
        layer = Attention(num_heads=count, score_mode="scaled_dot", use_causal_mask=causal, name=q.place.name())
        return split_heads(batched(q.place, layer(sources)), count)
    scores = (q @ k.swap(2, 3, ".keys")) * (1 / math.sqrt(width))
    if bound:
        scores = (scores / bound).each(Activation, "tanh", suffix=".tanh") * bound
    later = [np.triu(np.full((steps, keys), HIDDEN, np.float32), 1)] if causal else []
    for mask in (*later, *masks):
        scores = scores + mask
    weights = scores.softmax()
    return (weights.each(Dropout, ratio, suffix=".dropout") if ratio else weights) @ v

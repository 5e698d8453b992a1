"""Attention of ONNX's operator, and of the products and the softmax by which PyTorch's exporters spell it out."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from dsinga.addons.onnx.node_place import NodePlace
from dsinga.addons.onnx.values import Constant
from dsinga.nn.writing.composed import attend, join_heads, split_heads
from dsinga.nn.writing.images import check_size
from dsinga.nn.writing.reshaping import NoLayer, refuse
from dsinga.nn.writing.symbol import Symbol
from dsinga.nn.writing.tensor import Tensor, batched, joined

MOST_HEADS = 1024  # of queries that share keys
SETTINGS = {
    "q_num_heads", "kv_num_heads", "scale", "is_causal", "softcap", "softmax_precision", "qk_matmul_output_mode",
}  # fmt: skip


def attention(
    place: NodePlace, query: Tensor, key: Tensor, value: Tensor, mask: Any = None, past_key: Any = None,
    past_value: Any = None, lengths: Any = None, *, q_num_heads: int = 1, kv_num_heads: int = 1,
    scale: float | None = None, is_causal: int = 0, softcap: float = 0.0,
) -> Any:  # fmt: skip
    """Return attention of heads (B, H, T, n), or of sequences (B, T, H·n), as the operator of version 23 has it."""
    refuse(
        {
            "keys of earlier calls": past_key is not None or past_value is not None,
            "lengths of keys": lengths is not None,
            "further outputs": any(place.node.output[1:]),
            **{attribute.name: attribute.name not in SETTINGS for attribute in place.node.attribute},
        }
    )
    heads = [query, key, value]
    if query.rank != 4:
        for x in heads:
            x.feature(2)
        heads = [split_heads(x, n) for x, n in zip(heads, (q_num_heads, *[kv_num_heads] * 2), strict=True)]
    for x in heads:
        x.feature()
    heads[1:] = [repeated_heads(x, heads[0].shape[1] // x.shape[1]) for x in heads[1:]]
    masks = [] if mask is None else [mask]
    if masks or softcap:  # it becomes products
        check_size((heads[0].shape[2], heads[1].shape[2]))
    y = attend(heads, scale, bool(is_causal), masks, hides=False, bound=softcap)
    return y if query.rank == 4 else join_heads(y)


def repeated_heads(x: Tensor, times: int) -> Tensor:
    """Return keys or values (B, H, T, n) of which each head is that of several heads of queries."""
    if times < 2:
        return x
    if times > MOST_HEADS:
        raise NoLayer(f"with {times} heads of queries for one of keys")
    batch, count, steps, width = x.shape
    one = x.reshape((batch, count, 1, steps * width), ".heads")
    return joined([one] * times, 2).reshape((batch, count * times, steps, width), ".split")


def spelled_out(weights: Tensor, values: Tensor) -> Tensor | None:
    """Return the attention that a product of weights and values is; None for one that is not spelled as PyTorch's.

    Its exporters multiply queries and keys by a number each, before their product.
    """
    place = weights.place
    if not is_of(weights.symbol, "kSoftmax") or (weights.batch_axis, weights.rank, values.rank) != (0, 4, 4):
        return None
    scores, mask = weights.symbol.sources[0], None
    if is_of(scores, "ADD") and len(scores.sources) == 2:
        scores, mask = scores.sources
    if not is_of(scores, "MATMUL") or not all(is_of(x, "MULTIPLY") and len(x.sources) == 1 for x in scores.sources):
        return None
    q, k = (batched(place, x.sources[0]) for x in scores.sources)
    scale = math.prod(x.builder.settings["number"] for x in scores.sources)
    masks = [] if mask is None else [mask_of(place, mask)]
    return attend([q, k.swap(2, 3, ".keys"), values], scale, masks=masks)


def is_of(symbol: Symbol, kind: str) -> bool:
    """Whether a feature is of a layer of a type, or of a kArithmetic of an operator."""
    settings = symbol.builder.settings
    return kind in (settings.get("type"), settings.get("operator")) and settings.get("type") != "kLearnedVector"


def mask_of(place: NodePlace, symbol: Symbol) -> Any:
    """Return what is added to scores: the numbers of a constant, or what layers compute."""
    source = symbol
    while source.builder.kind in ("Reshape", "Flatten"):
        source = source.sources[0]
    array = place.made.arrays.get((source.builder.name or "", "vector"))
    return batched(place, symbol) if array is None or source.builder.trainable else Constant(array)


ATTENTION: Mapping[str, Callable[..., Any]] = {"Attention": attention}

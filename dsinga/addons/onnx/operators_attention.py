"""Makes attention of ONNX's operator, and of the products and the softmax by which PyTorch's exporters spell it out."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from dsinga import nn
from dsinga.addons.onnx.node_place import NodePlace
from dsinga.addons.onnx.operators_arithmetic import BOOL, HIDDEN, add, multiply, subtract
from dsinga.addons.onnx.operators_images import check_size
from dsinga.addons.onnx.values import Constant, NotImportable, Operand, Value, feature
from dsinga.nn.writing.composed import softmax_of_last
from dsinga.nn.writing.reshaping import join_heads, permuted, reshaped, rows_of, split_heads
from dsinga.nn.writing.symbol import Symbol

MOST_HEADS = 1024  # of queries that share keys
SETTINGS = {
    "q_num_heads", "kv_num_heads", "scale", "is_causal", "softcap", "softmax_precision", "qk_matmul_output_mode",
}  # fmt: skip


def attention(
    place: NodePlace, query: Value, key: Value, value: Value, mask: Operand | None = None, past_key: Any = None,
    past_value: Any = None, lengths: Any = None,
) -> Any:  # fmt: skip
    """Return attention of heads (B, H, T, n), or of sequences (B, T, H·n), as the operator of version 23 has it."""
    lacking = {
        "keys of earlier calls": past_key is not None or past_value is not None,
        "lengths of keys": lengths is not None,
        "further outputs": any(place.node.output[1:]),
        **{attribute.name: attribute.name not in SETTINGS for attribute in place.node.attribute},
    }
    if wrong := [name for name, lacks in lacking.items() if lacks]:
        raise NotImportable(f"with {', '.join(wrong)}")
    is_split = query.rank == 4
    counts = [place.attribute(f"{x}_num_heads") for x in ("q", "kv", "kv")]
    q, k, v = (
        feature(x) if is_split else split_heads(place, feature(x, 2), count)
        for x, count in zip((query, key, value), counts, strict=True)
    )
    k, v = (repeated_heads(place, x, rows_of(q)[0] // rows_of(x)[0]) for x in (k, v))
    scale = place.attribute("scale", 1 / math.sqrt(rows_of(q)[-1]))
    is_causal, bound = bool(place.attribute("is_causal", 0)), place.attribute("softcap", 0.0)
    y = attend(place, (q, k, v), scale, is_causal, mask, bound)
    return y if is_split else join_heads(place, y)


def repeated_heads(place: NodePlace, x: Symbol, times: int) -> Any:
    """Return keys or values (B, H, T, n) of which each head is that of several heads of queries."""
    if times < 2:
        return x
    if times > MOST_HEADS:
        raise NotImportable(f"with {times} heads of queries for one of keys")
    count, steps, width = rows_of(x)
    one = reshaped(place, x, (count, 1, steps * width), ".heads")
    several = nn.Concatenate(axis=2, name=place.name(".repeated"))([one] * times)
    return reshaped(place, several, (count * times, steps, width), ".split")


def attend(
    place: NodePlace, heads: tuple[Any, Any, Any], scale: float, causal: bool, mask: Any = None, bound: float = 0.0
) -> Any:
    """Return attention of heads (B, H, T, n): a kAttention, or products where a mask hides more than later steps.

    With a bound b, scores s become b·tanh(s/b).
    """
    q, k, v = heads
    count, steps, width = rows_of(q)
    if isinstance(mask, Constant) and hides_later(hiding(place, mask).array):
        causal, mask = True, None
    if mask is None and not bound and (not causal or steps == rows_of(k)[1]):
        if not math.isclose(scale, 1 / math.sqrt(width), rel_tol=1e-5):
            q = q * (scale * math.sqrt(width))
        sources = [join_heads(place, x) for x in (q, v, k)]
        layer = nn.Attention(num_heads=count, score_mode="scaled_dot", use_causal_mask=causal, name=place.name())
        return split_heads(place, layer(sources), count)
    check_size((steps, rows_of(k)[1]))
    product = q @ permuted(place, k, (1, 3, 2), ".keys") * scale
    if bound:
        product = nn.Activation("tanh", name=place.name(".tanh"))(product / bound) * bound
    scores = place.value(product)
    if causal:
        scores = add(place, scores, Constant(np.triu(np.full((steps, rows_of(k)[1]), HIDDEN, np.float32), 1)))
    if mask is not None:
        scores = add(place, scores, hiding(place, mask))
    return softmax_of_last(place, scores.symbol) @ v


def hiding(place: NodePlace, mask: Operand) -> Any:
    """Return the numbers that a mask adds to scores: of truth values, true stands for what is seen."""
    if isinstance(mask, Constant):
        if mask.array.dtype == BOOL:
            return Constant(np.where(mask.array, 0, HIDDEN))
        if (mask.array >= HIDDEN).all():
            return mask
        place.keep(mask)
        return Constant(np.maximum(mask.array, HIDDEN))
    return multiply(place, subtract(place, 1.0, mask), HIDDEN) if mask.dtype == BOOL else mask


def hides_later(mask: np.ndarray) -> bool:
    """Whether numbers that are added to scores (T, T) hide exactly the later steps."""
    steps = mask.shape[-1]
    if mask.size != steps**2:
        return False
    later = np.triu(np.ones((steps, steps), bool), 1)
    return bool(((mask.reshape(steps, steps) < -1e4) == later).all() and not mask.reshape(steps, steps)[~later].any())


def spelled_out(place: NodePlace, weights: Symbol, values: Symbol) -> Any:
    """Return the attention that a product of weights and values is; None for one that is not spelled as PyTorch's.

    Its exporters multiply queries and keys by a number each, before their product.
    """
    if not is_of(weights, "kSoftmax") or len(rows_of(weights)) != 3:
        return None
    scores, mask = weights.sources[0], None
    if is_of(scores, "ADD") and len(scores.sources) == 2:
        scores, mask = scores.sources
    if not is_of(scores, "MATMUL") or not all(is_of(x, "MULTIPLY") and len(x.sources) == 1 for x in scores.sources):
        return None
    q, k = (x.sources[0] for x in scores.sources)
    scale = math.prod(x.builder.settings["number"] for x in scores.sources)
    given = None if mask is None else mask_of(place, mask)
    return attend(place, (q, permuted(place, k, (1, 3, 2), ".keys"), values), scale, False, given)


def is_of(symbol: Symbol, kind: str) -> bool:
    """Whether a feature is of a layer of a type, or of a kArithmetic of an operator."""
    settings = symbol.builder.settings
    return kind in (settings.get("type"), settings.get("operator")) and settings.get("type") != "kLearnedVector"


def mask_of(place: NodePlace, symbol: Symbol) -> Operand:
    """Return what is added to scores: the numbers of a constant, or what layers compute."""
    source = symbol
    while source.builder.kind in ("Reshape", "Flatten"):
        source = source.sources[0]
    array = place.made.arrays.get((source.builder.name or "", "vector"))
    if array is not None and not source.builder.trainable:
        return Constant(array)
    return place.value(symbol)


ATTENTION: Mapping[str, Callable[..., Any]] = {"Attention": attention}

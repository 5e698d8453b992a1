"""The layers for attention of PyTorch: torch.nn.MultiheadAttention and scaled_dot_product_attention."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Any

import torch

from dsinga import nn
from dsinga.convert import torch_shapes as shapes
from dsinga.convert.torch_layers import linear_layer
from dsinga.convert.torch_operations import HIDDEN, add, drops, multiply, softmax, subtract
from dsinga.convert.torch_shapes import feature, permuted, reshaped
from dsinga.convert.torch_tensors import NotConvertible, TracedTensor, rows_of
from dsinga.convert.torch_tracing import ModulePlace
from dsinga.nn.writing.symbol import Symbol


def hides_later(mask: Any, hidden: bool) -> bool:
    """Whether a mask (T, T) hides exactly the later steps; ``hidden`` says that True stands for what is hidden."""
    if isinstance(mask, TracedTensor) or mask.dim() < 2 or mask.numel() != mask.shape[-1] ** 2:
        return False
    square = mask.reshape(mask.shape[-1], -1)
    hides = square == hidden if square.dtype == torch.bool else square < -1e4
    return bool((hides == torch.ones_like(hides).triu(1)).all())


def heads(place: ModulePlace, symbol: Symbol, count: int) -> Any:
    """Return sequences (B, T, n) with an axis of heads, (B, count, T, n/count)."""
    steps, width = rows_of(symbol)
    return permuted(place, reshaped(place, symbol, (steps, count, width // count), ".heads"), (2, 1, 3), ".split")


def join_heads(place: ModulePlace, symbol: Symbol) -> Any:
    """Return sequences of heads (B, H, T, n) as (B, T, H·n)."""
    count, steps, width = rows_of(symbol)
    return reshaped(place, permuted(place, symbol, (2, 1, 3), ".steps"), (steps, count * width), ".joined")


def hiding(place: ModulePlace, mask: Any, hidden: bool) -> Any:
    """Return what a mask adds to scores; ``hidden`` says that True stands for what is hidden."""
    if mask.dtype == torch.bool and isinstance(mask, TracedTensor):
        shares = mask if hidden else place.trace.wrapped(subtract(place, 1.0, mask))
        return place.trace.wrapped(multiply(place, shares, HIDDEN))
    if mask.dtype == torch.bool:
        return torch.where(mask == hidden, HIDDEN, 0.0)
    if isinstance(mask, TracedTensor) and not mask.unbatched and shapes.is_argument(mask):
        raise NotConvertible("with a mask that is an argument as it is; give it mask.bool()")
    return mask if isinstance(mask, TracedTensor) else mask.clamp(min=HIDDEN)


def attend(
    place: ModulePlace, q: Symbol, k: Symbol, v: Symbol, ratio: float, causal: bool, added: Sequence[Any] = ()
) -> Any:
    """Return attention of heads (B, H, T, n), by products of matrices, with what is added to scores.

    In training a share of the weights is dropped at random.
    """
    wrapped = place.trace.wrapped
    scores = q @ permuted(place, k, (1, 3, 2), ".keys") * (1 / math.sqrt(rows_of(q)[-1]))
    later = [torch.ones(rows_of(q)[1], rows_of(k)[1]).triu(1) * HIDDEN] if causal else []
    for mask in (*later, *added):
        scores = add(place, wrapped(scores), mask)
    weights = softmax(place, wrapped(scores), -1)
    return (nn.Dropout(ratio, name=place.name(".dropout"))(weights) if ratio else weights) @ v


def scaled_dot_product_attention(
    place: ModulePlace, query: Any, key: Any, value: Any, attn_mask: Any = None, dropout_p: float = 0.0,
    is_causal: bool = False, scale: float | None = None, enable_gqa: bool = False,
) -> Any:  # fmt: skip
    """Return attention of heads (B, H, T, n)."""
    causal = is_causal or (attn_mask is not None and hides_later(attn_mask, hidden=False))
    if enable_gqa:
        raise NotConvertible("with enable_gqa")
    added = [] if attn_mask is None or causal else [hiding(place, attn_mask, hidden=False)]
    q, k, v = (feature(x, 3) for x in (query, key, value))
    if scale is not None and not math.isclose(scale, 1 / math.sqrt(rows_of(q)[-1])):
        q = q * (scale * math.sqrt(rows_of(q)[-1]))
    if drops(place, dropout_p, True) or added or not place.trace.fused:
        return attend(place, q, k, v, dropout_p, causal, added)
    joined, count = [join_heads(place, x) for x in (q, v, k)], rows_of(q)[0]
    layer = nn.Attention(num_heads=count, score_mode="scaled_dot", use_causal_mask=causal, name=place.name())
    return heads(place, layer(joined), count)


def attend_heads(
    place: ModulePlace, module: Any, query: Any, key: Any, value: Any, key_padding_mask: Any = None,
    need_weights: bool = True, attn_mask: Any = None, average_attn_weights: bool = True, is_causal: bool = False,
) -> Any:  # fmt: skip
    """Return attention of several heads, and None for its weights."""
    axis = int(not module.batch_first)
    causal = is_causal if attn_mask is None else hides_later(attn_mask, hidden=True)
    lacking = {
        f"batch_first={module.batch_first} where another axis is the batch": any(
            getattr(x, "batch_axis", axis) != axis for x in (query, key, value)
        ),
        "kdim, vdim, add_bias_kv or add_zero_attn": not module._qkv_same_embed_dim
        or module.bias_k is not None
        or module.add_zero_attn,
        "an attn_mask of 3 axes": attn_mask is not None and attn_mask.dim() != 2,
    }
    if wrong := [name for name, lacks in lacking.items() if lacks]:
        raise NotConvertible(f"with {', '.join(wrong)}")
    has_bias, count = module.in_proj_bias is not None, module.num_heads
    settings = {"use_bias": has_bias, "trainable": module.in_proj_weight.requires_grad}

    def project(part: str, x: Any) -> Any:
        name = f"{place.base}.in_proj_{part}"
        make = functools.partial(nn.Dense, module.embed_dim, name=name, **settings)
        return place.trace.layer(module, part, make)(feature(x))

    q, k, v = map(project, "qkv", (query, key, value))
    added = [] if attn_mask is None or causal else [hiding(place, attn_mask, hidden=True)]
    if key_padding_mask is not None:
        mask = hiding(place, key_padding_mask, hidden=True)
        added.append(place.trace.wrapped(reshaped(place, feature(mask, 1), (1, 1, mask.shape[1]), ".mask")))
    if module.dropout or added or not place.trace.fused:
        ratio = module.dropout if drops(place, module.dropout, module.training) else 0.0
        query_heads, key_heads, value_heads = (heads(place, x, count) for x in (q, k, v))
        y = join_heads(place, attend(place, query_heads, key_heads, value_heads, ratio, causal, added))
    else:
        y = nn.Attention(num_heads=count, score_mode="scaled_dot", use_causal_mask=causal, name=place.name())([q, v, k])
    out = ModulePlace(place.trace, f"{place.base}.out_proj", module.out_proj)
    return shapes.moved(query, linear_layer(out, module.out_proj, place.trace.wrapped(y)), axis), None

"""Converts ONNX's matrix products: fully connected layers, and attention, also as spelled out by exporters."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from dsinga.addons.onnx.naming import is_lone
from dsinga.addons.onnx.node_place import NodePlace
from dsinga.addons.onnx.operators_norms import is_one_param
from dsinga.addons.onnx.values import Constant
from dsinga.nn.words.basic_layers import Dense
from dsinga.nn.writing import composed
from dsinga.nn.writing.composed import attend, join_heads, repeated_heads, split_heads
from dsinga.nn.writing.images import check_size
from dsinga.nn.writing.reshaping import NoLayer, refuse
from dsinga.nn.writing.symbol import Symbol
from dsinga.nn.writing.tensor import Tensor, batched

SETTINGS = {
    "q_num_heads", "kv_num_heads", "scale", "is_causal", "softcap", "softmax_precision", "qk_matmul_output_mode",
}  # fmt: skip


def attention(
    place: NodePlace, query: Tensor, key: Tensor, value: Tensor, mask: Any = None, past_key: Any = None,
    past_value: Any = None, lengths: Any = None, *, q_num_heads: int = 1, kv_num_heads: int = 1,
    scale: float | None = None, is_causal: int = 0, softcap: float = 0.0,
) -> Any:  # fmt: skip
    """Convert Attention of heads (B, H, T, n), or of sequences (B, T, H·n), as in the operator's version 23."""
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


def spelled_out(weights: Tensor, values: Tensor) -> Tensor | None:
    """Recognise attention in a product of weights and values; None if not spelled as PyTorch's."""
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
    """Whether a feature's layer has this type, or is a kArithmetic with this operator."""
    settings = symbol.builder.settings
    return kind in (settings.get("type"), settings.get("operator")) and settings.get("type") != "kLearnedVector"


def mask_of(place: NodePlace, symbol: Symbol) -> Any:
    """Return the mask that is added to scores: a constant's numbers, or a feature of layers."""
    source = symbol
    while source.builder.kind in ("Reshape", "Flatten"):
        source = source.sources[0]
    array = place.made.arrays.get((source.builder.name or "", "vector"))
    return batched(place, symbol) if array is None or source.builder.trainable else Constant(array)


def dense(place: NodePlace, x: Any, weight: Any, bias: Any = None, transposed: bool = False) -> Any:
    """Create a fully connected layer of the last axis; ``weight`` is (inputs, outputs), or ``transposed``.

    It is a product of matrices if layers compute the weight, or the input comes from params alone.
    """
    is_part = isinstance(weight, Constant) and weight.made is not None and not weight.name
    if is_part and any(map(is_lone, weight.params())):  # of a param of no module
        weight = place.vector(weight)
    if isinstance(weight, Tensor) or x.batch_axis is None:
        weight = place.tensor(weight, [x])
        y = product(place, x, weight.swap(0, 1) if transposed else weight)
        return y if bias is None else y + bias
    if isinstance(bias, Tensor) or is_one_param(bias, weight.array.shape[:1] if transposed else weight.array.shape[1:]):
        return dense(place, x, weight, None, transposed) + bias
    if weight.array.ndim != 2:
        raise NoLayer("with a weight that is no matrix of the file")
    array = np.asarray(weight.array, np.float32)
    array = array if transposed else array.T
    units, settings = len(array), dict[str, Any]()
    is_as_given = not transposed and weight.is_param and weight.made is None and is_lone(weight.name)
    if not place.made.is_owned(weight, array) and (place.made.is_owned(weight, array.T) or is_as_given):
        # The weight of another layer, as a decoder takes it, or a param of no module in the form that the file has.
        array, settings = array.T, {"transpose": True}
    params = {"weight": (weight, array)}
    if bias is not None:
        if not isinstance(bias, Constant) or bias.array.size not in (1, units):
            raise NoLayer("with a bias that is no row of the file")
        params["bias"] = (bias, np.broadcast_to(np.asarray(bias.array, np.float32).reshape(-1), units))
    layer = place.layer(Dense, params, units=units, use_bias=bias is not None, **settings)
    return composed.dense(x, layer, units)


def matmul(place: NodePlace, a: Any, b: Any) -> Any:
    """Convert MatMul: with a weight of the file to a fully connected layer, else to a product."""
    if isinstance(b, Constant) and b.array.ndim == 1:
        return dense(place, a, replace(b, array=b.array[:, None])).reshape(a.shape[:-1])
    if isinstance(b, Constant) and b.array.ndim == 2 and a.batch_axis not in (None, a.rank - 1):
        return dense(place, a, b)
    return product(place, a, b)


def product(place: NodePlace, a: Any, b: Any) -> Tensor:
    """Multiply matrices that are not both constant."""
    a, b = (place.tensor(x, (a, b)) for x in (a, b))
    y = spelled_out(a, b)
    return a @ b if y is None else y


def gemm(
    place: NodePlace, x: Any, weight: Any, bias: Any = None, alpha: float = 1.0, beta: float = 1.0, transA: int = 0,
    transB: int = 0,
) -> Any:  # fmt: skip
    """Convert Gemm, alpha·x·W + beta·b, to a fully connected layer."""
    if transA:
        raise NoLayer("with transA")
    apart = NodePlace(place.made, place.node, f"{place.base}.scaled")
    x = x if alpha == 1 else replace(replace(x, place=apart) * alpha, place=place)
    if bias is not None and (beta != 1 or isinstance(bias, Tensor) or (bias.array.ndim == 2 and len(bias.array) > 1)):
        bias = bias if beta == 1 else apart.tensor(bias, (x,)) * beta
        return dense(place, x, weight, None, bool(transB)) + bias
    return dense(place, x, weight, bias, bool(transB))


def summed(place: NodePlace, *operands: Any, equation: str) -> Tensor:
    """Convert Einsum: a sum of products of two tensors in Einstein's convention."""
    return composed.einsum([place.tensor(x, operands) for x in operands], equation)


PRODUCTS: Mapping[str, Callable[..., Any]] = {
    **{"Attention": attention, "Gemm": gemm, "MatMul": matmul, "Dense": dense, "Einsum": summed},
}

"""Puts low-rank layers beside dense layers and embeddings of a job, W + alpha/rank·B·A, and takes them out again.

Hu et al., LoRA: Low-Rank Adaptation of Large Language Models (2021). The layer "x" becomes "x.base"; "x.lora_a" gives
``rank`` features of the same source, "x.lora_b" brings these to the features of "x", and the sum of both is called "x",
so that other layers need no change. Params of "x" keep their names.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from dsinga.base.arrays import ParamArrays
from dsinga.job import LayerConf, LayerType, ParamConf

BASE, A, SCALED, B = ".base", ".lora_a", ".lora_scaled", ".lora_b"  # what is added to the name of a layer
ROLES = {LayerType.kInnerProduct: ("weight", "bias"), LayerType.kEmbedding: ("weight",)}  # of params
ZEROS = {"type": "kConstant", "value": 0.0}
UNIFORM = {"type": "kUniformSqrtFanIn", "value": 3**-0.5}  # U(-1, 1)/√columns, as a dense layer of PyTorch begins
NORMAL = {"type": "kGaussian"}


class LowRank(NamedTuple):
    """The low-rank layers beside a layer: their rank, alpha, and whether the second computes each step of sequences."""

    rank: int
    alpha: float
    per_step: bool = False


def weight_names(layers: Sequence[LayerConf]) -> dict[str, str]:
    """Return the name of the param that is the weight of each dense layer and embedding, by the name of the layer."""
    confs = {layer.name: layer.param[0] if layer.param else ParamConf() for layer in layers if layer.type in ROLES}
    names = {layer: conf.name or f"{layer}_weight" for layer, conf in confs.items()}
    shared = {names[layer]: conf.share_from for layer, conf in confs.items() if conf.share_from}
    for layer, name in names.items():
        while (owner := shared.get(name, name)) != name:
            name = owner
        names[layer] = name
    return names


def with_low_rank(layers: Sequence[LayerConf], added: Mapping[str, LowRank]) -> list[LayerConf]:
    """Return the layers of a job with the low-rank layers that are ``added``, by the name of the layer beside them.

    Layers that share a weight share those of its first layer.
    """
    weights, written = weight_names(layers), list[LayerConf]()
    owners = {weights[layer.name]: layer.name for layer in reversed(layers) if layer.name in added}
    for layer in layers:
        low_rank = added.get(layer.name)
        written += [layer] if low_rank is None else _low_rank(layer, low_rank, owners[weights[layer.name]])
    return written


def _low_rank(layer: LayerConf, low_rank: LowRank, owner: str) -> list[LayerConf]:
    """Return the layers in place of one, with the params of those beside the layer ``owner``."""
    dense, table, factor = layer.innerproduct_conf, layer.embedding_conf, low_rank.alpha / low_rank.rank
    outputs = table.feature_dim if dense is None else dense.num_output
    product = {"num_output": low_rank.rank, "bias_term": False}
    sizes = {"embedding_conf": table.replace(feature_dim=low_rank.rank)} if dense is None else {}

    def beside(suffix: str, type: str, source: LayerConf, init: Any = None, **fields: Any) -> LayerConf:
        """Return a layer in the phases and at the place of ``layer``."""
        none = dict.fromkeys(("innerproduct_conf", "embedding_conf", "per_step", "unroll_conn_type", "shift"))
        own = {"init": init} if layer.name == owner else {"share_from": f"{owner}{suffix}_weight"}
        fields = {"srclayers": [source.name], "param": [own] if init else [], **none, **fields}
        return layer.replace(name=f"{layer.name}{suffix}", type=type, **fields)

    base = layer.replace(name=f"{layer.name}{BASE}", param=_named(layer))
    first = beside(
        A, layer.type.name, base, UNIFORM if dense else ZEROS, srclayers=layer.srclayers, per_step=layer.per_step,
        unroll_conn_type=layer.unroll_conn_type, shift=layer.shift, **(sizes or {"innerproduct_conf": product}),
    )  # fmt: skip
    number = {"operator": "MULTIPLY", "number": factor}
    scaled = first if factor == 1 else beside(SCALED, "kArithmetic", first, arithmetic_conf=number)
    last = beside(
        B, "kInnerProduct", scaled, ZEROS if dense else NORMAL, per_step=low_rank.per_step,
        innerproduct_conf={**product, "num_output": outputs},
    )  # fmt: skip
    total = beside("", "kAdd", base, srclayers=[base.name, last.name])
    return [base, first, *([] if scaled is first else [scaled]), last, total]


def _named(layer: LayerConf) -> list[ParamConf]:
    """Return the params of a layer under the names that they have by default, whatever the layer is called."""
    roles = ROLES[layer.type]
    roles = roles if layer.innerproduct_conf is None or layer.innerproduct_conf.bias_term else roles[:1]
    given = [*layer.param, *(ParamConf() for _ in roles[len(layer.param) :])]
    return [
        conf if conf.name or conf.share_from else conf.replace(name=f"{layer.name}_{role}")
        for conf, role in zip(given, roles, strict=True)
    ]


def low_rank_layers(layers: Sequence[LayerConf]) -> dict[str, LowRank]:
    """Return the low-rank layers that a job has, by the name of the layer beside them."""
    named, found = {layer.name: layer for layer in layers}, {}
    for name in (name.removesuffix(B) for name in named if name.endswith(B)):
        if (first := named.get(f"{name}{A}")) is not None:
            rank = first.embedding_conf.feature_dim if first.embedding_conf else first.innerproduct_conf.num_output
            scaled = named.get(f"{name}{SCALED}")
            factor = 1.0 if scaled is None else scaled.arithmetic_conf.number
            found[name] = LowRank(rank, factor * rank, named[f"{name}{B}"].per_step)
    return found


def without_low_rank(layers: Sequence[LayerConf]) -> list[LayerConf]:
    """Return the layers of a job without its low-rank layers."""
    names = low_rank_layers(layers)
    added = {f"{name}{suffix}" for name in names for suffix in ("", A, SCALED, B)}
    bases = {f"{name}{BASE}": name for name in names}
    kept = [layer for layer in layers if layer.name not in added]
    return [layer.replace(name=bases.get(layer.name, layer.name)) for layer in kept]


def low_rank_shapes(layers: Sequence[LayerConf], params: Mapping[str, np.ndarray]) -> dict[str, tuple[int, ...]]:
    """Return the shapes of the params of a job's low-rank layers, by name, from those of the weights beside them."""
    weights, named = weight_names(layers), {layer.name: layer for layer in layers}
    shapes: dict[str, tuple[int, ...]] = {}
    for name, (rank, *_) in low_rank_layers(layers).items():
        dense, outputs = named[f"{name}{BASE}"].innerproduct_conf, named[f"{name}{B}"].innerproduct_conf.num_output
        inputs = params[weights[f"{name}{BASE}"]].size // outputs
        shapes[weights[f"{name}{A}"]] = (inputs, rank) if dense is None else (rank, inputs)
        shapes[weights[f"{name}{B}"]] = (outputs, rank)
    return shapes


def merged_params(layers: Sequence[LayerConf], params: Mapping[str, np.ndarray]) -> ParamArrays:
    """Return the params of a job without its low-rank layers: W + alpha/rank·B·A, computed in float64, for each W."""
    weights, named, merged = weight_names(layers), {layer.name: layer for layer in layers}, dict(params)
    for name, (rank, alpha, _) in low_rank_layers(layers).items():
        first, last = (merged.pop(weights[f"{name}{suffix}"], None) for suffix in (A, B))
        if first is None or last is None:  # those of another layer, which shares the weight
            continue
        base, weight = named[f"{name}{BASE}"], weights[f"{name}{BASE}"]
        change = last.astype(np.float64) @ (first.T if base.innerproduct_conf is None else first) * (alpha / rank)
        is_transposed = base.innerproduct_conf is None or base.innerproduct_conf.transpose
        merged[weight] = (merged[weight] + (change.T if is_transposed else change)).astype(np.float32)
    return merged

"""Adds LoRA to a job: low-rank layers for each weight W, so that it acts as W + alpha/rank·B·A; also removes them.

The layer "x" becomes "x.base". "x.lora_a" computes ``rank`` features of the same source, and "x.lora_b" brings them to
the shape of "x". The sum is called "x", so other layers need no change, and params keep their names. For a convolution,
A has its windows, and B single points, as in PEFT.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from dsinga.base.arrays import ParamArrays
from dsinga.job import LayerConf, LayerType, ParamConf

BASE, A, SCALED, B = ".base", ".lora_a", ".lora_scaled", ".lora_b"  # suffixes of a layer's name
CONVOLUTIONS = LayerType.kConvolution, LayerType.kCConvolution, LayerType.kCudnnConv
ROLES = {  # of params
    **dict.fromkeys((LayerType.kInnerProduct, *CONVOLUTIONS), ("weight", "bias")), LayerType.kEmbedding: ("weight",)
}  # fmt: skip
ZEROS = {"type": "kConstant", "value": 0.0}
UNIFORM = {"type": "kUniformSqrtFanIn", "value": 3**-0.5}  # U(-1, 1)/√columns, as a dense layer of PyTorch begins
NORMAL = {"type": "kGaussian"}


class LowRank(NamedTuple):
    """The low-rank layers of a layer: rank, alpha, and whether the second computes each step of sequences."""

    rank: int
    alpha: float
    per_step: bool = False


def has_weight(layer: LayerConf) -> bool:
    """Whether a layer's weight W supports a change B·A; a grouped convolution's does not."""
    return layer.type in ROLES and (layer.convolution_conf is None or layer.convolution_conf.group == 1)


def weight_names(layers: Sequence[LayerConf]) -> dict[str, str]:
    """Return the weight's name of each layer that supports LoRA, by layer."""
    confs = {layer.name: layer.param[0] if layer.param else ParamConf() for layer in layers if has_weight(layer)}
    names = {layer: conf.name or f"{layer}_weight" for layer, conf in confs.items()}
    shared = {names[layer]: conf.share_from for layer, conf in confs.items() if conf.share_from}
    for layer, name in names.items():
        while (owner := shared.get(name, name)) != name:
            name = owner
        names[layer] = name
    return names


def with_low_rank(layers: Sequence[LayerConf], added: Mapping[str, LowRank]) -> list[LayerConf]:
    """Add low-rank layers to a job's layers, as ``added`` says for each layer.

    Layers that share a weight share the low-rank layers of its first layer.
    """
    weights, written = weight_names(layers), list[LayerConf]()
    owners = {weights[layer.name]: layer.name for layer in reversed(layers) if layer.name in added}
    for layer in layers:
        low_rank = added.get(layer.name)
        written += [layer] if low_rank is None else _low_rank(layer, low_rank, owners[weights[layer.name]])
    return written


def _low_rank(layer: LayerConf, low_rank: LowRank, owner: str) -> list[LayerConf]:
    table, windows, factor = layer.embedding_conf, layer.convolution_conf, low_rank.alpha / low_rank.rank
    sizes: dict[str, Any]
    last_sizes: dict[str, Any] = {"innerproduct_conf": {"num_output": outputs_of(layer), "bias_term": False}}
    if table is not None:
        sizes = {"embedding_conf": table.replace(feature_dim=low_rank.rank)}
    elif windows is not None:
        sizes = {"convolution_conf": windows.replace(num_filters=low_rank.rank, bias_term=False)}
        last_sizes = {"convolution_conf": {"num_filters": windows.num_filters, "kernel": 1, "bias_term": False}}
    else:
        sizes = {"innerproduct_conf": {"num_output": low_rank.rank, "bias_term": False}}

    def beside(suffix: str, type: str, source: LayerConf, init: Any = None, **fields: Any) -> LayerConf:
        none = dict.fromkeys(
            ("innerproduct_conf", "embedding_conf", "convolution_conf", "per_step", "unroll_conn_type", "shift")
        )
        own = {"init": init} if layer.name == owner else {"share_from": f"{owner}{suffix}_weight"}
        fields = {"srclayers": [source.name], "param": [own] if init else [], **none, **fields}
        return layer.replace(name=f"{layer.name}{suffix}", type=type, **fields)

    base = layer.replace(name=f"{layer.name}{BASE}", param=_named(layer))
    first = beside(
        A, layer.type.name, base, ZEROS if table else UNIFORM, srclayers=layer.srclayers, per_step=layer.per_step,
        unroll_conn_type=layer.unroll_conn_type, shift=layer.shift, **sizes,
    )  # fmt: skip
    number = {"operator": "MULTIPLY", "number": factor}
    scaled = first if factor == 1 else beside(SCALED, "kArithmetic", first, arithmetic_conf=number)
    last = beside(
        B, layer.type.name if windows else "kInnerProduct", scaled, NORMAL if table else ZEROS,
        per_step=low_rank.per_step, **last_sizes,
    )  # fmt: skip
    total = beside("", "kAdd", base, srclayers=[base.name, last.name])
    return [base, first, *([] if scaled is first else [scaled]), last, total]


def outputs_of(layer: LayerConf) -> int:
    """Return the number of features, or channels, of a layer with a weight."""
    if layer.embedding_conf is not None:
        return int(layer.embedding_conf.feature_dim)
    return int(layer.convolution_conf.num_filters if layer.convolution_conf else layer.innerproduct_conf.num_output)


def _named(layer: LayerConf) -> list[ParamConf]:
    roles = ROLES[layer.type]
    conf = layer.innerproduct_conf or layer.convolution_conf
    roles = roles if conf is None or conf.bias_term else roles[:1]
    given = [*layer.param, *(ParamConf() for _ in roles[len(layer.param) :])]
    return [
        conf if conf.name or conf.share_from else conf.replace(name=f"{layer.name}_{role}")
        for conf, role in zip(given, roles, strict=True)
    ]


def low_rank_layers(layers: Sequence[LayerConf]) -> dict[str, LowRank]:
    """Find the low-rank layers in a job, by base layer."""
    named, found = {layer.name: layer for layer in layers}, {}
    for name in (name.removesuffix(B) for name in named if name.endswith(B)):
        first, total = named.get(f"{name}{A}"), named.get(name)
        sources = total.srclayers if total is not None and total.type is LayerType.kAdd else []
        if first is not None and list(sources) == [f"{name}{BASE}", f"{name}{B}"] and has_weight(first):
            rank = outputs_of(first)
            scaled = named.get(f"{name}{SCALED}")
            factor = 1.0 if scaled is None else scaled.arithmetic_conf.number
            found[name] = LowRank(rank, factor * rank, named[f"{name}{B}"].per_step)
    return found


def without_low_rank(layers: Sequence[LayerConf]) -> list[LayerConf]:
    """Remove the low-rank layers of a job."""
    names = low_rank_layers(layers)
    added = {f"{name}{suffix}" for name in names for suffix in ("", A, SCALED, B)}
    bases = {f"{name}{BASE}": name for name in names}
    kept = [layer for layer in layers if layer.name not in added]
    return [layer.replace(name=bases.get(layer.name, layer.name)) for layer in kept]


def low_rank_shapes(layers: Sequence[LayerConf], params: Mapping[str, np.ndarray]) -> dict[str, tuple[int, ...]]:
    """Compute the shapes of low-rank layers' params, by name, from the base weights' shapes."""
    weights, named = weight_names(layers), {layer.name: layer for layer in layers}
    shapes: dict[str, tuple[int, ...]] = {}
    for name, (rank, *_) in low_rank_layers(layers).items():
        table, outputs = named[f"{name}{BASE}"].embedding_conf, outputs_of(named[f"{name}{B}"])
        inputs = params[weights[f"{name}{BASE}"]].size // outputs
        shapes[weights[f"{name}{A}"]] = (rank, inputs) if table is None else (inputs, rank)
        shapes[weights[f"{name}{B}"]] = (outputs, rank)
    return shapes


def merged_params(layers: Sequence[LayerConf], params: Mapping[str, np.ndarray]) -> ParamArrays:
    """Merge low-rank layers into a job's params: W + alpha/rank·B·A, in float64, for each W."""
    weights, named, merged = weight_names(layers), {layer.name: layer for layer in layers}, dict(params)
    for name, (rank, alpha, _) in low_rank_layers(layers).items():
        first, last = (merged.pop(weights[f"{name}{suffix}"], None) for suffix in (A, B))
        if first is None or last is None:  # another layer, which shares the weight, has them
            continue
        base, weight = named[f"{name}{BASE}"], weights[f"{name}{BASE}"]
        change = last.astype(np.float64) @ (first.T if base.embedding_conf else first) * (alpha / rank)
        is_transposed = base.embedding_conf or (base.innerproduct_conf and base.innerproduct_conf.transpose)
        merged[weight] = (merged[weight] + (change.T if is_transposed else change)).astype(np.float32)
    return merged

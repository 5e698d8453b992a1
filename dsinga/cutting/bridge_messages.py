"""Decides what travels between two workers for a layer: whether a gradient comes back, and in which precision."""

from __future__ import annotations

import copy
from collections.abc import Collection, Sequence

from dsinga.cutting.bridges import BridgeDst
from dsinga.cutting.region_layers import RegionJoin, RegionSlice
from dsinga.layers.bridge import Bridge, BridgeEnd
from dsinga.layers.connection import Concate, SliceLayer, Split
from dsinga.layers.interface.declarations import Bfloat16
from dsinga.layers.interface.layer import Layer
from dsinga.net.dataflow import Stage, build_stages
from dsinga.net.node import Node
from dsinga.ops.layout import LAST
from dsinga.ops.types import Shape

PASSING = (Split, SliceLayer, Concate, RegionSlice, RegionJoin, Bridge, BridgeEnd)  # layers that compute nothing


def mark_bridges(nodes: Sequence[Node], static: Collection[str]) -> tuple[Node, ...]:
    """Decide for each pair of bridge layers whether a gradient comes back and what is sent in bfloat16."""
    stages = build_stages(nodes, static)
    features, gradients = features_rounded(nodes), gradients_rounded(nodes, stages)
    result = list(nodes)
    for position, (node, stage) in enumerate(zip(nodes, stages, strict=True)):
        if isinstance(node.layer, BridgeDst):
            for end in (node.sources[0], position):
                layer = copy.copy(nodes[end].layer)
                assert isinstance(layer, BridgeEnd)
                layer.returns_gradient = any(stage.needs)
                layer.bf16_feature = features[position]
                layer.bf16_gradient = gradients[node.sources[0]]
                result[end] = nodes[end]._replace(layer=layer)
    return tuple(result)


def features_rounded(nodes: Sequence[Node]) -> list[bool]:
    """Find the nodes with features that may be sent in bfloat16, because all users round them anyway."""
    takers: list[list[bool]] = [[] for _ in nodes]
    rounded = [False] * len(nodes)
    for position in reversed(range(len(nodes))):
        node, rounded[position] = nodes[position], bool(takers[position]) and all(takers[position])
        for index, source in enumerate(node.sources):
            takers[source].append(rounds_source(node.layer, index, rounded[position]))
    return rounded


def rounds_source(layer: Layer, index: int, rounded: bool) -> bool:
    """Whether a layer rounds a source to bfloat16, or passes it only to layers that do (``rounded``)."""
    return rounded if isinstance(layer, PASSING) else layer.rounds_source and index == 0


def is_bf16_image(shape: Shape, bf16_gradient: bool) -> bool:
    """Whether a feature of a kBF16 job is a bfloat16 image, as convolutions make; its gradient is bfloat16, too."""
    return len(shape) in LAST and bf16_gradient


def gradients_rounded(nodes: Sequence[Node], stages: Sequence[Stage]) -> list[bool]:
    """Find the nodes with gradients that may be sent in bfloat16, because they are rounded to it later anyway."""
    rounded: list[bool] = []
    for node, stage in zip(nodes, stages, strict=True):
        leads_to = [rounded[source] for source, need in zip(node.sources, stage.needs, strict=True) if need]
        passes = node.layer.bf16 is Bfloat16.kFeatures and bool(leads_to) and all(leads_to)
        rounded.append(passes or node.layer.rounds_gradient)
    return rounded

"""Decides what a bridge (layer pair that sends a feature to another worker) sends: gradients, bfloat16 or float32."""

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
    """Return the nodes with both ends of each bridge marked (:class:`dsinga.layers.bridge.BridgeEnd`)."""
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
    """Return for each node whether all layers that use its feature round it to bfloat16 first."""
    takers: list[list[bool]] = [[] for _ in nodes]
    rounded = [False] * len(nodes)
    for position in reversed(range(len(nodes))):
        node, rounded[position] = nodes[position], bool(takers[position]) and all(takers[position])
        for index, source in enumerate(node.sources):
            takers[source].append(rounds_source(node.layer, index, rounded[position]))
    return rounded


def rounds_source(layer: Layer, index: int, rounded: bool) -> bool:
    """Whether a layer rounds a source to bfloat16, or passes it to layers that all do (``rounded``)."""
    return rounded if isinstance(layer, PASSING) else layer.rounds_source and index == 0


def is_bf16_image(shape: Shape, bf16_gradient: bool) -> bool:
    """Whether a feature in kBF16 is a bfloat16 image: convolutions and similar layers make them.

    The gradients of such images are bfloat16, too.
    """
    return len(shape) in LAST and bf16_gradient


def gradients_rounded(nodes: Sequence[Node], stages: Sequence[Stage]) -> list[bool]:
    """Return for each node whether the gradient for its feature is later rounded to bfloat16.

    A product rounds it: of the layer itself, or of layers before it that pass on bfloat16 gradients.
    """
    rounded: list[bool] = []
    for node, stage in zip(nodes, stages, strict=True):
        leads_to = [rounded[source] for source, need in zip(node.sources, stage.needs, strict=True) if need]
        passes = node.layer.bf16 is Bfloat16.kFeatures and bool(leads_to) and all(leads_to)
        rounded.append(passes or node.layer.rounds_gradient)
    return rounded

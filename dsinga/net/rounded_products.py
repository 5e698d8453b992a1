"""Finds the products over steps that give their features in bfloat16 in a kBF16 job, as all their users take it."""

from __future__ import annotations

from collections.abc import Sequence

from dsinga.layers.dense.activation import ElementwiseFunction
from dsinga.layers.interface.declarations import Bfloat16
from dsinga.layers.interface.layer import Layer
from dsinga.layers.sequences.timedistributed import TimeDistributed
from dsinga.net.node import Node


def with_rounded_products(nodes: Sequence[Node]) -> tuple[Node, ...]:
    """Let dense layers over steps round their features, if only activations and further products use them.

    Sums, losses and normalisation thus get float32. The layers of ``nodes`` keep what they are; others are copies.
    """
    takers: list[list[bool]] = [[] for _ in nodes]
    result = list(nodes)
    for position in reversed(range(len(nodes))):
        node, rounded = nodes[position], bool(takers[position]) and all(takers[position])
        if rounded and isinstance(node.layer, TimeDistributed) and node.layer.bf16 is Bfloat16.kFeatures:
            result[position] = node._replace(layer=node.layer.rounding())
        for index, source in enumerate(node.sources):
            takers[source].append(_takes_rounded(node.layer, index, rounded))
    return tuple(result)


def _takes_rounded(layer: Layer, index: int, rounded: bool) -> bool:
    """Whether a layer uses a source as a factor of products, or hands a function of it to such layers (``rounded``)."""
    if layer.bf16 is not Bfloat16.kFeatures:
        return False
    return rounded if isinstance(layer, ElementwiseFunction) else layer.rounds_source and index == 0

"""Adds a kSplit layer where several gradients for one feature are added."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from dsinga.job import LayerConf, LayerType, SplitConf
from dsinga.layers.base import Layer
from dsinga.net.dataflow import needs_gradient
from dsinga.net.node import Node
from dsinga.registry import lookup


def insert_splits(nodes: Sequence[Node]) -> tuple[Node, ...]:
    """Add a kSplit layer ``split(<name>)`` after each layer to which several destinations send a gradient.

    Input layers get no gradient, and output layers and edges that carry labels send none; so a net without branches
    stays as it is. The kSplit layer copies nothing: its destinations read one feature, and their gradients are added in
    the order of the net.
    """
    needed = needs_gradient(nodes)
    senders = Counter(
        source for node in nodes for k, source in enumerate(node.sources) if sends_gradient(node.layer, k)
    )
    result: list[Node] = []
    moved: list[int] = []  # the new position of each node
    gradients_to: list[int] = []  # the new position to which gradients for each node are sent
    for position, node in enumerate(nodes):
        sources = tuple(
            (gradients_to if sends_gradient(node.layer, k) else moved)[source] for k, source in enumerate(node.sources)
        )
        moved.append(len(result))
        gradients_to.append(len(result))
        result.append(node._replace(sources=sources))
        if needed[position] and senders[position] > 1 and not node.layer.hands_parts:
            gradients_to[position] = len(result)
            result.append(Node(split_layer(node.layer, senders[position]), (moved[position],), ()))
    return tuple(result)


def sends_gradient(layer: Layer, source: int) -> bool:
    """Whether the layer sends a gradient to its source of this index if the source needs one."""
    return not layer.is_output and source != layer.label_source


def split_layer(layer: Layer, count: int) -> Layer:
    """Return the kSplit layer for ``count`` destinations of ``layer``."""
    conf = LayerConf(
        name=f"split({layer.name})",
        type=LayerType.kSplit,
        srclayers=[layer.name],
        partition_dim=layer.conf.partition_dim,
        location=layer.conf.location,
        split_conf=SplitConf(num_splits=count),
    )
    return lookup("layer", conf.type_name)(conf, [layer.shape])

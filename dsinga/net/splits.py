"""kSplit layers where gradients meet."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from dsinga.job import LayerConf, LayerType, SplitConf
from dsinga.layers.base import Layer
from dsinga.net.dataflow import wants_gradient
from dsinga.net.node import Node
from dsinga.registry import lookup


def insert_splits(nodes: Sequence[Node]) -> tuple[Node, ...]:
    """Put a kSplit layer ``split(<name>)`` after each layer to which several destinations send a gradient.

    Input layers need none, nor do output layers and takers of labels send any; so a net without branches stays as it
    is. The kSplit layer copies nothing: its destinations read one feature, and their gradients are added in order.
    """
    wanting = wants_gradient(nodes)
    senders = Counter(
        source for node in nodes for k, source in enumerate(node.sources) if sends_gradient(node.layer, k)
    )
    result: list[Node] = []
    moved: list[int] = []  # where each node went, and ...
    meets: list[int] = []  # ... where gradients for it are sent
    for position, node in enumerate(nodes):
        sources = tuple(
            (meets if sends_gradient(node.layer, k) else moved)[source] for k, source in enumerate(node.sources)
        )
        moved.append(len(result))
        meets.append(len(result))
        result.append(node._replace(sources=sources))
        if wanting[position] and senders[position] > 1 and not node.layer.hands_parts:
            meets[position] = len(result)
            result.append(Node(split_layer(node.layer, senders[position]), (moved[position],), ()))
    return tuple(result)


def sends_gradient(layer: Layer, source: int) -> bool:
    """Whether the layer sends a gradient to its source of this index, if that takes one."""
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

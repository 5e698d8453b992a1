"""Chooses the layers whose features are computed again in the backward pass, for a number of stretches of a net.

A stretch ends at a layer that is the only way from the layers below it to those above it, so that no feature within a
stretch is needed in another one.
"""

from __future__ import annotations

from collections.abc import Sequence

from dsinga.layers.interface.layer import float_bytes
from dsinga.net.dataflow import needs_gradient, sends_gradient
from dsinga.net.node import Node


def mark_stretches(nodes: Sequence[Node], count: int) -> None:
    """Set ``recompute`` of the layers of ``nodes`` so that ``count`` stretches keep only their last features.

    The stretches take about the same memory, as far as the net can be divided so. Layers without a gradient, losses and
    outputs keep their features, and so does the uppermost stretch, with which the backward pass begins.
    """
    ends, needed = choose_ends(nodes, count), needs_gradient(nodes)
    for position, node in enumerate(nodes[: ends[-1]] if ends else ()):
        if needed[position] and position not in ends:
            node.layer.conf = node.layer.conf.replace(recompute=True)


def choose_ends(nodes: Sequence[Node], count: int) -> list[int]:
    """Return the positions of the last layers of all stretches but the uppermost one, at most ``count`` - 1."""
    sizes = [sum([float_bytes(node.layer.shape[0], node.layer.shape), *_saved(node)]) for node in nodes]
    possible, total, ends, below = narrow_places(nodes), sum(sizes), list[int](), 0
    for position, size in enumerate(sizes):
        below += size
        if position in possible and below * count >= total * (len(ends) + 1) and len(ends) + 1 < count:
            ends.append(position)
    return ends


def narrow_places(nodes: Sequence[Node]) -> set[int]:
    """Return the positions of the layers that are the only way of a gradient from the layers above to those below."""
    needed, passed = needs_gradient(nodes), set[int]()
    for position, node in enumerate(nodes):
        for k, source in enumerate(node.sources):
            if needed[source] and sends_gradient(node.layer, k):
                passed.update(range(source + 1, position))
    return {k for k, node in enumerate(nodes) if needed[k] and k not in passed and not node.layer.part_shapes}


def _saved(node: Node) -> list[int]:
    return node.layer.saved_sizes(node.layer.shape[0])

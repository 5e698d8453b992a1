"""Fuses layers that training can compute in one kernel, which saves passes over memory.

A kBM and a following kReLU are fused, also with a kAdd of two sources between them, if no other layer reads the outputs
in between. A kInnerProduct and a following kSoftmaxLoss are fused if they compute each step of sequences
(``per_step``). A kConvolution or kInnerProduct and a following kReLU are fused on kernels that save a pass. Only the
last digits change.

A fused layer is recomputed if the job says so of all its layers. The user's net keeps its layers. Each worker fuses
after partitioning, and only neighbours, so that messages keep their order.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from dsinga.base.registry import imported, is_user_code
from dsinga.layers.interface.layer import Layer, as_class
from dsinga.net.node import Node

RECTIFIED = ("kConvolution", "kInnerProduct")  # products that have a class with the rectifier after them


def fuse(nodes: Sequence[Node], rectified: bool = False) -> tuple[Node, ...]:
    """Replace layers that one kernel can compute by one fused layer each.

    ``rectified`` includes convolutions and inner products followed by a rectifier.
    """
    uses = Counter(source for node in nodes for source in node.sources)
    fused: list[Node] = []
    moved: list[int] = []  # the new position of the feature of each node
    while len(moved) < len(nodes):
        first = len(moved)
        node, length = nodes[first], _length(first, nodes, uses, rectified)
        if length > 1:
            node = _fused(first, nodes[first : first + length])
        fused.append(node._replace(sources=tuple(moved[source] for source in node.sources)))
        moved += [len(fused) - 1] * length
    return tuple(fused)


def _length(first: int, nodes: Sequence[Node], uses: Counter[int], rectified: bool) -> int:
    """Return how many layers can be fused, starting at the layer ``first``; 1 for none."""
    if _is_step_loss(first, nodes, uses):
        return 2
    if rectified and any(_is_a(name, nodes[first].layer) for name in RECTIFIED):
        return 1 + _is_rectified(first, nodes, uses)
    if not _is_a("kBM", nodes[first].layer):
        return 1
    for last in range(first + 1, min(first + 3, len(nodes))):
        node = nodes[last]
        if last - 1 not in node.sources or uses[last - 1] > 1 or node.rows != nodes[first].rows:
            return 1
        if _rectifies(node.layer):
            return last + 1 - first
        if not _is_a("kAdd", node.layer) or len(node.sources) != 2:
            return 1
    return 1


def _is_rectified(first: int, nodes: Sequence[Node], uses: Counter[int]) -> bool:
    if first + 1 == len(nodes) or uses[first] > 1:
        return False
    node = nodes[first + 1]
    return node.sources == (first,) and node.rows == nodes[first].rows and _rectifies(node.layer)


def _is_step_loss(first: int, nodes: Sequence[Node], uses: Counter[int]) -> bool:
    """Whether a layer only gives scores to a loss, so that both can be fused."""
    if first + 1 == len(nodes) or uses[first] > 1 or uses[first + 1] or nodes[first].rows != nodes[first + 1].rows:
        return False
    scores, loss = nodes[first : first + 2]
    if loss.sources[:1] != (first,) or not (scores.layer.conf.per_step or scores.layer.conf.unroll_len):
        return False
    from dsinga.layers.losses.steploss import are_step_scores_and_loss

    return are_step_scores_and_loss(scores.layer, loss.layer)


def _fused(first: int, nodes: Sequence[Node]) -> Node:
    node = _fused_whole(first, nodes)
    recompute = all(node.layer.conf.recompute for node in nodes)
    node.layer.conf = node.layer.conf.replace(recompute=recompute)
    return node


def _fused_whole(first: int, nodes: Sequence[Node]) -> Node:
    node, *between, last = nodes
    if _is_a("kConvolution", node.layer):
        from dsinga.layers.images.convolution import RectifiedConvolution

        return node._replace(layer=as_class(RectifiedConvolution, node.layer))
    if _is_a("kInnerProduct", node.layer):
        from dsinga.layers.dense.innerproduct import RectifiedInnerProduct

        return node._replace(layer=as_class(RectifiedInnerProduct, node.layer))
    if not _is_a("kBM", node.layer):
        from dsinga.layers.losses.steploss import StepScoresLoss

        takes = *node.takes, *last.takes[1:]
        loss = StepScoresLoss.of(node.layer, last.layer)  # type: ignore[arg-type]
        return node._replace(layer=loss, sources=(*node.sources, *last.sources[1:]), takes=takes)
    from dsinga.layers.dense.batchnorm import RectifiedBatchNorm

    layer = RectifiedBatchNorm.of(node.layer, len(between))  # type: ignore[arg-type]
    if not between:
        return node._replace(layer=layer)
    (add,) = between
    second = 1 - add.sources.index(first)  # the index of the source that the kBM does not compute
    takes = *node.takes, *add.takes[second : second + 1]
    return node._replace(layer=layer, sources=(*node.sources, add.sources[second]), takes=takes)


def _rectifies(layer: Layer) -> bool:
    function: Any = getattr(layer, "function", layer) if _is_a("kActivation", layer) else layer
    return _is_a("kReLU", function) and not function.settings.negative_slope


def _is_a(name: str, layer: Layer) -> bool:
    """Whether a layer is exactly of a built-in class, not a user's subclass."""
    return type(layer) is imported("layer").get(name) and not is_user_code(type(layer))

"""Analyses a net: which layers need a gradient, and when outputs can be freed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from typing import NamedTuple

from dsinga.base.registry import lookup
from dsinga.job import LayerConf, LayerType
from dsinga.layers.bridge import BridgeEnd
from dsinga.layers.interface.context import Rows
from dsinga.layers.interface.layer import Layer
from dsinga.net.node import Node

WHOLE_FEATURE = -1  # in place of the index of a part


class Edge(NamedTuple):
    """An input of a layer: the layer that it comes from, and which part of its output.

    ``part`` is WHOLE_FEATURE, except for sources that hand out parts, such as kSlice.
    """

    node: int
    part: int = WHOLE_FEATURE
    labels: bool = False


class Stage(NamedTuple):
    """A layer in a training step: where its inputs come from, its params, and its gradients."""

    position: int
    layer: Layer
    edges: tuple[Edge, ...]
    plain: bool  # every source is a whole feature
    params: tuple[str, ...]
    rows: Rows | None  # the rows of the batch that it computes; None for all rows of the worker
    needs: tuple[bool, ...]  # for each source, whether it gets a gradient
    feeds: tuple[tuple[int, Edge], ...]  # the sources that get a gradient, as (index, edge)
    parts: int  # how many parts the layer hands out, 0 if its feature is one array
    starts: bool  # a gradient begins here: the layer is a loss or the end of a bridge
    backward: bool  # the gradient of a loss arrives here and is needed
    recompute: bool  # its feature is freed after the forward pass and computed again for the backward pass
    completes: tuple[str, ...]  # params whose gradient is complete after this node's backward
    state: tuple[tuple[int, str, str], ...]  # params that are not trainable, as (index, role, name)
    by_rows: tuple[int, ...]  # params of which the layer takes only the rows that it computes
    releases: tuple[int, ...]  # nodes whose features no later node reads once this node has its feature


def build_stages(nodes: Sequence[Node], static: Collection[str] = ()) -> tuple[Stage, ...]:
    """Prepare the layers of a net for training steps; the params ``static`` keep their values."""
    edges, parts = find_edges(nodes)
    needed = needs_gradient(nodes, static)
    backward = [False] * len(nodes)
    needs: list[tuple[bool, ...]] = [()] * len(nodes)
    for position in reversed(range(len(nodes))):
        layer = nodes[position].layer
        starts = layer.is_loss or (isinstance(layer, BridgeEnd) and layer.sends and layer.returns_gradient)
        backward[position] = (starts or backward[position]) and needs_backward(nodes[position], needed, static)
        needs[position] = tuple(
            backward[position] and needed[edge.node] and not edge.labels for edge in edges[position]
        )
        for edge, need in zip(edges[position], needs[position], strict=True):
            backward[edge.node] |= need
    recompute = recomputed(nodes, edges, backward)
    completes, releases = first_uses(nodes), last_uses(edges)
    return tuple(
        Stage(
            position,
            node.layer,
            edges[position],
            all(edge.part == WHOLE_FEATURE and not edge.labels for edge in edges[position]),
            node.params,
            node.rows or other_batch_rows(node.layer, nodes[0].layer),
            needs[position],
            tuple((i, edges[position][i]) for i, need in enumerate(needs[position]) if need),
            parts[position],
            node.layer.is_loss or (isinstance(node.layer, BridgeEnd) and node.layer.returns_gradient),
            backward[position],
            recompute[position],
            completes[position],
            tuple((k, spec.role, node.params[k]) for k, spec in enumerate(node.layer.params) if not spec.trainable),
            tuple(k for k, spec in enumerate(node.layer.params) if spec.by_rows),
            releases[position],
        )
        for position, node in enumerate(nodes)
    )


def recomputed(nodes: Sequence[Node], edges: Sequence[Sequence[Edge]], backward: Sequence[bool]) -> list[bool]:
    """Return for each layer whether its output is freed, and computed again in the backward pass."""
    marked: list[bool] = []
    for node, into in zip(nodes, edges, strict=True):
        views = bool(node.layer.part_shapes) and any(marked[edge.node] for edge in into if not edge.labels)
        marked.append((node.layer.conf.recompute or views) and not isinstance(node.layer, BridgeEnd))
    needed = list(backward)
    for position in reversed(range(len(nodes))):
        if backward[position] or (marked[position] and needed[position]):
            for edge in edges[position]:
                needed[edge.node] = needed[edge.node] or not edge.labels
    return [mark and need for mark, need in zip(marked, needed, strict=True)]


def row_share(layer: Layer, rows: Rows) -> float:
    """Return the weight of a worker's value of a lasting state, such as a running mean; all add up to 1."""
    if layer.region is not None and not layer.region.is_first:
        return 0.0
    return (rows.stop - rows.start) / rows.total


def other_batch_rows(layer: Layer, first: Layer) -> Rows | None:
    """Return all rows of a layer if its batch size is not the net's, as after a kSlice."""
    rows = layer.shape[0]
    return None if rows == first.shape[0] else Rows(0, rows, rows)


def find_edges(nodes: Sequence[Node]) -> tuple[list[tuple[Edge, ...]], list[int]]:
    """Return each layer's inputs, and how many parts its output has (0 for one array)."""
    handed = [0] * len(nodes)

    def edge(node: Node, index: int) -> Edge:
        source, labels = node.sources[index], index == node.layer.labels.source
        if labels or not nodes[source].layer.part_shapes:
            return Edge(source, WHOLE_FEATURE, labels)
        handed[source] += 1
        return Edge(source, node.takes[index] if node.takes else handed[source] - 1)

    edges = [tuple(edge(node, index) for index in range(len(node.sources))) for node in nodes]
    parts = [len(node.layer.part_shapes) if count else 0 for node, count in zip(nodes, handed, strict=True)]
    return edges, parts


def needs_gradient(nodes: Sequence[Node], static: Collection[str] = ()) -> list[bool]:
    """Return for each layer whether its output needs a gradient; none passes through a loss layer."""
    needed: list[bool] = []
    for node in nodes:
        needed.append(not node.layer.is_input and not node.layer.is_loss and needs_backward(node, needed, static))
    return needed


def needs_backward(node: Node, needed: Sequence[bool], static: Collection[str]) -> bool:
    """Whether a layer takes part in the backward pass, for its params or for a source."""
    params = zip(node.layer.params, node.params, strict=True)
    trained = any(spec.trainable and name not in static for spec, name in params)
    features = (source for k, source in enumerate(node.sources) if k != node.layer.labels.source)
    sent_back = isinstance(node.layer, BridgeEnd) and not node.layer.sends and node.layer.returns_gradient
    return trained or sent_back or any(needed[source] for source in features)


def first_uses(nodes: Sequence[Node]) -> list[tuple[str, ...]]:
    """Return for each layer the params with gradients that are complete after its backward pass."""
    seen: set[str] = set()
    uses = []
    for node in nodes:
        uses.append(tuple(dict.fromkeys(name for name in node.params if name not in seen)))
        seen.update(node.params)
    return uses


def last_uses(edges: list[tuple[Edge, ...]]) -> list[tuple[int, ...]]:
    """Return for each layer the layers with outputs that can be freed after it."""
    last = list(range(len(edges)))
    for position, into in enumerate(edges):
        for edge in into:
            last[edge.node] = position
    uses: list[list[int]] = [[] for _ in edges]
    for node, position in enumerate(last):
        uses[position].append(node)
    return [tuple(nodes) for nodes in uses]


def insert_splits(nodes: Sequence[Node]) -> tuple[Node, ...]:
    """Add a layer that sums gradients, ``split(<name>)``, after each layer that gets several.

    It copies nothing, and adds the gradients in the net's order.
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
        if needed[position] and senders[position] > 1 and not node.layer.part_shapes:
            gradients_to[position] = len(result)
            result.append(Node(split_layer(node.layer, senders[position]), (moved[position],), ()))
    return tuple(result)


def sends_gradient(layer: Layer, source: int) -> bool:
    """Whether a layer sends a gradient to its source number ``source``."""
    return not layer.is_output and source != layer.labels.source


def split_layer(layer: Layer, count: int) -> Layer:
    """Make the layer that sums the gradients of ``count`` readers of a layer."""
    conf = LayerConf(
        name=f"split({layer.name})",
        type=LayerType.kSplit,
        srclayers=[layer.name],
        partition_dim=layer.conf.partition_dim,
        partition_grid=layer.conf.partition_grid,
        location=layer.conf.location,
        copy_number=layer.conf.copy_number,
        split_conf={"num_splits": count},
    )
    return lookup("layer", conf.type_name)(conf, [layer.shape])

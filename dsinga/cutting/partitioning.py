"""Rewrites a net into one net for each worker, joined by connection layers (5.3 of the paper)."""

from __future__ import annotations

import copy
import heapq
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from dsinga.cutting.bridge_messages import mark_bridges
from dsinga.cutting.bridges import BridgeDst, BridgeSrc
from dsinga.cutting.label_redistribution import LabelRedistribution
from dsinga.cutting.layer_parts import make_part, make_region_part
from dsinga.cutting.partitioned import (
    COPIED,
    FEATURES,
    ROWS,
    WHOLE_LAYER,
    LayerCut,
    ParamPart,
    PartitionedNet,
    Place,
    cut_regions,
)
from dsinga.cutting.redistribution import GraphBuilder, NodeOutput, ShardedFeature, Sharding
from dsinga.cutting.region_redistribution import needed_shape, redistribute_any, space_sharding
from dsinga.cutting.strategy import choose_cuts
from dsinga.job import LayerType
from dsinga.layers.bridge import BridgeEnd
from dsinga.layers.dense.innerproduct import InnerProduct
from dsinga.layers.interface.context import Columns, Rows, cut_evenly
from dsinga.layers.interface.declarations import Connection
from dsinga.layers.interface.layer import Layer
from dsinga.net.dataflow import WHOLE_FEATURE, Edge
from dsinga.net.neuralnet import NeuralNet
from dsinga.net.node import Node, Param


def partition(
    net: NeuralNet,
    parts: int,
    rows: Sequence[Rows] | None = None,
    cuts: Mapping[str, LayerCut] | None = None,
    axes: Mapping[str, int | None] | None = None,
    gather: bool = False,
) -> PartitionedNet:
    """Divide ``net`` over ``parts`` workers; return the net of each.

    ``rows`` are each worker's rows of the batch, by default even ones, and ``cuts`` each layer's cut, by default as the
    job says (:func:`choose_cuts`). ``axes`` has the axis on which another phase's net cuts each param, None for uncut
    params. With ``gather``, fully connected layers cut by rows send activations instead of gradients if they are
    smaller.

    Raises JobError, naming layer and field, if a layer cannot be cut as the job asks.
    """
    cuts = cuts or choose_cuts(net, parts, axes=axes)
    if net.by_step and parts > 1:
        whole = partition(replace(net, by_step=()), parts, rows, cuts, axes, gather)
        earlier = [(step, partition(part, parts, rows, cuts, axes, gather)) for step, part in net.by_step[:-1]]
        by_step = [*earlier, (net.by_step[-1][0], whole)]  # the last is the whole net
        parts_by_step = (
            replace(local, by_step=tuple((step, each.locals[number]) for step, each in by_step))
            for number, local in enumerate(whole.locals)
        )
        return replace(whole, whole=net, locals=tuple(parts_by_step))
    if parts == 1:
        places = tuple(Place(0, node.layer.name) for node in net.nodes)
        params = {
            name: ParamPart(name, name, param.shape, (0,), gathered=param.static) for name, param in net.params.items()
        }
        return PartitionedNet(net, cuts, net.nodes, places, (net,), params)
    partitioner = _Partitioner(net, parts, rows, cuts, gather)
    for position in range(len(net.nodes)):
        partitioner.add_layer(position)
    nodes, places = _in_execution_order(partitioner.graph)
    static = {name for name, cut in partitioner.params.items() if cut.param.static}
    nodes = mark_bridges(nodes, static)
    positions: list[list[int]] = [[] for _ in range(parts)]
    for position, place in enumerate(places):
        positions[place.location].append(position)
    nets = tuple(_local_net(net, nodes, local_positions, partitioner.params) for local_positions in positions)
    return PartitionedNet(net, cuts, nodes, places, _alike(nets), _param_parts(net, nets, partitioner))


class _CutParam(NamedTuple):
    """A param of a part of a layer, with the axis and columns of the uncut param that it holds; None for all."""

    param: Param
    axis: int | None = None
    columns: Columns | None = None


class _Partitioner:
    """Builds the nets of all workers, layer by layer."""

    def __init__(
        self, net: NeuralNet, parts: int, rows: Sequence[Rows] | None, cuts: Mapping[str, LayerCut], gather: bool
    ):
        def worker_rows(total: int) -> Sequence[Rows]:
            return rows if rows and rows[-1].total == total else cut_evenly(total, parts)

        self.net, self.parts, self.cuts, self.gather = net, parts, cuts, gather
        self.graph = GraphBuilder(worker_rows, parts)
        self.params: dict[str, _CutParam] = {}
        self.gathered: set[str] = set()
        self._features: dict[Edge, ShardedFeature] = {}
        self._labels = LabelRedistribution(net, self.graph, self._features, cuts)
        self._redistributed: dict[tuple[Edge, Sharding], Mapping[int, NodeOutput]] = {}

    def add_layer(self, position: int) -> None:
        """Add a layer of the uncut net at each of its workers, and layers that bring its sources."""
        node, edges = self.net.nodes[position], self.net.stages[position].edges
        layer, cut = node.layer, self.cuts[node.layer.name]
        locations = (cut.location,) if cut.dim == WHOLE_LAYER else tuple(range(self.parts))
        axis = layer.cut.axis if cut.dim == FEATURES else cut.dim
        targets = [self._target(node, cut, locations, k) for k in range(len(edges))]
        sources = [
            self._labels.redistribute(edge, target) if edge.labels else self._redistribute(edge, target, layer.name)
            for edge, target in zip(edges, targets, strict=True)
        ]
        positions = {}
        for part, location in enumerate(locations):
            part_layer = self._part_layer(node, cut, part, targets)
            if (region := self._labels.region_of(position, part)) is not None:
                part_layer.label_region = region
            names = self._name_params(node, part_layer, part)
            total = layer.shape[0]
            rows = self.graph.rows(total)[part] if cut.dim == ROWS else Rows(0, total, total)
            outputs = [source[location] for source in sources]
            positions[location] = self.graph.add(part_layer, Place(location, layer.name), outputs, names, rows=rows)
        for part, shape in enumerate(layer.part_shapes) if layer.part_shapes else [(WHOLE_FEATURE, layer.shape)]:
            name = f"{layer.name}.{part}" if layer.part_shapes else layer.name
            while part != WHOLE_FEATURE and name in self.net.positions:  # keys of bridges must be unique
                name += "'"
            part_outputs = {location: NodeOutput(number, part) for location, number in positions.items()}
            self._features[Edge(position, part)] = ShardedFeature(name, shape, axis, part_outputs, cut.grid)

    def _target(self, node: Node, cut: LayerCut, locations: tuple[int, ...], source: int) -> Sharding:
        layer = node.layer
        if cut.grid and not layer.takes_points(source):
            return Sharding(COPIED, locations)
        if cut.grid:
            return space_sharding(layer, cut, layer.source_shapes[source])
        whole_sources = cut.dim == FEATURES and layer.cut.connection is Connection.kOneToAll
        axis = layer.cut.axis if cut.dim == FEATURES else cut.dim
        return Sharding(COPIED if whole_sources else axis, locations)

    def _redistribute(self, edge: Edge, target: Sharding, purpose: str) -> Mapping[int, NodeOutput]:
        """Bring the feature of ``edge`` to its users; return each worker's node output."""
        if self._features[edge].satisfies(target):
            return self._features[edge].outputs
        if self.net.nodes[edge.node].layer.conf.type is LayerType.kSplit:
            edge = Edge(edge.node, 0)  # its parts are all the same feature
        if (edge, target) not in self._redistributed:
            feature = self._features[edge]
            self._redistributed[edge, target] = redistribute_any(self.graph, feature, target, purpose)
        return self._redistributed[edge, target]

    def _part_layer(self, node: Node, cut: LayerCut, part: int, targets: Sequence[Sharding]) -> Layer:
        layer = node.layer
        if cut.dim == ROWS and self.gather and type(layer) is InnerProduct and self._gather_sends_less(node):
            layer = copy.copy(layer)
            layer.gathers = True
            self.gathered.update(node.params)
        if cut.grid:
            shapes = [
                needed_shape(shape, target, part) if layer.takes_points(k) else shape
                for k, (shape, target) in enumerate(zip(layer.source_shapes, targets, strict=True))
            ]
            return make_region_part(layer, shapes, cut_regions(layer.field_shape, cut.dim, cut.grid)[part])
        if cut.dim != FEATURES:
            return layer
        columns = self._columns(layer, part)
        shapes = [
            shape
            if layer.cut.connection is Connection.kOneToAll or k == layer.labels.source
            else self.graph.part_shape(shape, layer.cut.axis, part)
            for k, shape in enumerate(layer.source_shapes)
        ]
        return make_part(layer, shapes, columns)

    def _columns(self, layer: Layer, part: int) -> Columns:
        start, stop = self.graph.bounds(layer.shape, layer.cut.axis)[part : part + 2]
        return Columns(start, stop, layer.shape[layer.cut.axis])

    def _gather_sends_less(self, node: Node) -> bool:
        """Whether a fully connected layer sends fewer numbers as activations than as gradients of its weight."""
        uses = sum(name in user.params for user in self.net.nodes for name in node.params)
        inputs, outputs = math.prod(node.layer.source_shapes[0][1:]), node.layer.shape[1]
        return uses == len(node.params) and node.layer.shape[0] * (inputs + outputs) < inputs * outputs

    def _name_params(self, node: Node, part_layer: Layer, part: int) -> tuple[str, ...]:
        names = []
        for spec, name in zip(part_layer.params, node.params, strict=True):
            is_cut = part_layer.columns is not None and spec.cut_axis is not None
            names.append(f"{name}@{part}" if is_cut else name)
            uncut = self.net.params[name]
            self.params.setdefault(
                names[-1],
                _CutParam(Param(names[-1], spec, uncut.conf), spec.cut_axis, part_layer.columns)
                if is_cut
                else _CutParam(uncut),
            )
        return tuple(names)


def _in_execution_order(graph: GraphBuilder) -> tuple[tuple[Node, ...], tuple[Place, ...]]:
    order = communication_order(graph.nodes)
    moved = {old: new for new, old in enumerate(order)}
    nodes = [graph.nodes[old] for old in order]
    sorted_nodes = tuple(node._replace(sources=tuple(moved[source] for source in node.sources)) for node in nodes)
    return sorted_nodes, tuple(graph.places[old] for old in order)


def _local_net(
    net: NeuralNet, nodes: Sequence[Node], local_positions: Sequence[int], params: Mapping[str, _CutParam]
) -> NeuralNet:
    moved = {old: new for new, old in enumerate(local_positions)}
    local_nodes = []
    for position in local_positions:
        node = nodes[position]
        sources = () if isinstance(node.layer, BridgeDst) else tuple(moved[source] for source in node.sources)
        local_nodes.append(node._replace(sources=sources, takes=node.takes if sources else ()))
    used = dict.fromkeys(name for node in local_nodes for name in node.params)
    return NeuralNet(tuple(local_nodes), {name: params[name].param for name in used}, net.phase)


def _alike(nets: Sequence[NeuralNet]) -> tuple[NeuralNet, ...]:
    """Let each net refer to the first one that differs in the place of its rows only."""
    first: dict[tuple[Node, ...], NeuralNet] = {}
    found = []
    for net in nets:
        rows = net.nodes[0].rows if len({node.rows for node in net.nodes}) == 1 else None
        if rows is not None and not any(param.spec.by_rows for param in net.params.values()):
            place = Rows(0, rows.stop - rows.start, rows.total)
            like = first.setdefault(tuple(node._replace(rows=place) for node in net.nodes), net)
            net = replace(net, like=like)
        found.append(net)
    return tuple(found)


def _param_parts(net: NeuralNet, nets: Sequence[NeuralNet], partitioner: _Partitioner) -> dict[str, ParamPart]:
    parts = {}
    users: dict[str, list[int]] = {name: [] for name in partitioner.params}
    for location, local in enumerate(nets):
        for name in local.params:
            users[name].append(location)
    for name, (param, axis, columns) in partitioner.params.items():
        uncut = name if axis is None else name.rpartition("@")[0]
        start = stop = 0
        if columns and axis is not None:
            start, stop = (net.params[uncut].shape[axis] * bound // columns.total for bound in columns[:2])
        gathered = name in partitioner.gathered or param.static
        parts[name] = ParamPart(name, uncut, param.shape, tuple(users[name]), axis, start, stop, gathered)
    order = {name: number for number, name in enumerate(net.params)}
    return dict(sorted(parts.items(), key=lambda item: order[item[1].param]))


def communication_order(nodes: Sequence[Node]) -> list[int]:
    """Return the positions of ``nodes`` in an order in which all workers can run them without deadlock.

    Bridges send as soon as they can; layers closer to a sending bridge run first; bridges receive when nothing else can
    run. The backward pass reverses the order. The parts of a layer that is cut by rows or space follow each other,
    because they may wait for each other's sums (``Context.all_reduce``).
    """
    groups = _groups(nodes)
    group_of = {position: group for group in groups for position in group}
    missing = {group: sum(len(nodes[position].sources) for position in group) for group in groups}
    followers: list[list[int]] = [[] for _ in nodes]
    for position, node in enumerate(nodes):
        for source in node.sources:
            followers[source].append(position)
    urgency = _steps_to_sending(nodes, followers)

    def rank(group: tuple[int, ...]) -> tuple[int, float, tuple[int, ...]]:
        layer = nodes[group[0]].layer
        kind = 0 if isinstance(layer, BridgeSrc) else 2 if isinstance(layer, BridgeDst) else 1
        # Receiving bridges keep the order of the net: one closer to a sending bridge may itself wait for another.
        return kind, 0.0 if kind == 2 else min(urgency[position] for position in group), group

    ready = [rank(group) for group, count in missing.items() if not count]
    heapq.heapify(ready)
    order: list[int] = []
    while ready:
        group = heapq.heappop(ready)[-1]
        order.extend(group)
        for follower in (follower for position in group for follower in followers[position]):
            waiting = group_of[follower]
            missing[waiting] -= 1
            if not missing[waiting]:
                heapq.heappush(ready, rank(waiting))
    assert len(order) == len(nodes), "the nodes form a cycle"
    return order


def _groups(nodes: Sequence[Node]) -> list[tuple[int, ...]]:
    """Return groups of positions that must stay together: the parts of a layer cut by rows or space."""
    parts: dict[int | str, list[int]] = {}
    for position, (layer, _, _, rows, *_) in enumerate(nodes):
        whole = rows is None or (rows.stop - rows.start == rows.total and layer.region is None)
        alone = whole or isinstance(layer, BridgeEnd)
        parts.setdefault(position if alone else layer.name, []).append(position)
    return [tuple(group) for group in parts.values()]


def _steps_to_sending(nodes: Sequence[Node], followers: Sequence[Sequence[int]]) -> list[float]:
    """Return each node's number of layers to the next sending bridge, inf if none follows."""
    steps = [math.inf] * len(nodes)
    for position in reversed(range(len(nodes))):
        if isinstance(nodes[position].layer, BridgeSrc):
            steps[position] = 0
        elif followers[position]:
            steps[position] = 1 + min(steps[follower] for follower in followers[position])
    return steps

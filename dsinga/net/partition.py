"""Partitioning: a net is rewritten into one net a worker, joined by connection layers (5.3 of the paper)."""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from dsinga.job import LayerType
from dsinga.layers.base import Connection, Layer
from dsinga.layers.bridge import BridgeDst, BridgeSrc
from dsinga.layers.context import Columns, Rows
from dsinga.layers.contract import make_part
from dsinga.layers.innerproduct import InnerProduct
from dsinga.net.cut import cut_rows
from dsinga.net.dataflow import WHOLE, Edge, build_stages
from dsinga.net.labels import Labels
from dsinga.net.neuralnet import NeuralNet
from dsinga.net.node import Node
from dsinga.net.order import communication_order
from dsinga.net.param import Param
from dsinga.net.partitioned import FEATURES, ROWS, WHOLE_LAYER, Cut, ParamPart, PartitionedNet, Place
from dsinga.net.redistribute import Feature, Graph, Held, Wanted, bring
from dsinga.net.strategy import choose_cuts


def partition(
    net: NeuralNet,
    parts: int,
    rows: Sequence[Rows] | None = None,
    cuts: Mapping[str, Cut] | None = None,
    axes: Mapping[str, int | None] | None = None,
    gather: bool = False,
) -> PartitionedNet:
    """Cut ``net`` for ``parts`` workers.

    Args:
        net: the whole net of one phase.
        parts: the number of workers of a group; 1 leaves the net as it is.
        rows: the rows of the batch that each worker computes of layers cut on dimension 0; even ones by default.
        cuts: how each layer is cut, by name; by default as the job says (:func:`choose_cuts`).
        axes: how the params are cut already by the net of another phase: param to axis, None for whole ones.
        gather: whether fully connected layers cut by rows send activations in place of gradients where that is less.

    Raises JobError, naming layer and field, where a layer cannot be cut as the job wants it.
    """
    cuts = cuts or choose_cuts(net, parts, axes=axes)
    if parts == 1:
        places = tuple(Place(0, node.layer.name) for node in net.nodes)
        whole = {name: ParamPart(name, name, param.shape, (0,)) for name, param in net.params.items()}
        return PartitionedNet(net, cuts, net.nodes, places, (net,), whole)
    rewriting = _Rewriting(net, parts, rows, cuts, gather)
    for position in range(len(net.nodes)):
        rewriting.place(position)
    nodes, places = _sort(rewriting.graph)
    nodes = _with_gradients(nodes)
    nets = tuple(_local(net, nodes, places, rewriting.params, location) for location in range(parts))
    return PartitionedNet(net, cuts, nodes, places, nets, _param_parts(net, nets, rewriting))


class _Part(NamedTuple):
    """A param as a part of a layer has it; of one that is cut, along which axis, and to which columns it belongs."""

    param: Param
    axis: int | None = None
    columns: Columns | None = None


class _Rewriting:
    """The graph of all workers, built layer by layer."""

    def __init__(self, net: NeuralNet, parts: int, rows: Sequence[Rows] | None, cuts: Mapping[str, Cut], gather: bool):
        def of(total: int) -> Sequence[Rows]:
            return rows if rows and rows[-1].total == total else cut_rows(total, parts)

        self.net, self.parts, self.cuts, self.gather = net, parts, cuts, gather
        self.graph = Graph(of, parts)
        self.params: dict[str, _Part] = {}
        self.gathered: set[str] = set()
        self._features: dict[Edge, Feature] = {}
        self._labels = Labels(net, self.graph, self._features, cuts)
        self._brought: dict[tuple[Edge, Wanted], Mapping[int, Held]] = {}

    def place(self, position: int) -> None:
        """Add a layer of the whole net on each worker that computes it, and what brings its sources there."""
        node, edges = self.net.nodes[position], self.net.stages[position].edges
        layer, cut = node.layer, self.cuts[node.layer.name]
        locations = (cut.location,) if cut.dim == WHOLE_LAYER else tuple(range(self.parts))
        if cut.dim == FEATURES and layer.connection is Connection.kOneToAll:
            wanted = Wanted(WHOLE_LAYER, locations)
        else:
            wanted = Wanted(cut.dim, locations)
        sources = [self._labels.bring(edge, wanted) if edge.labels else self._bring(edge, wanted) for edge in edges]
        held = {}
        for part, location in enumerate(locations):
            own = self._layer(node, cut, part)
            names = self._name_params(node, own, part)
            total = layer.shape[0]
            rows = self.graph.rows(total)[part] if cut.dim == ROWS else Rows(0, total, total)
            into = [source[location] for source in sources]
            held[location] = self.graph.add(own, Place(location, layer.name), into, names, rows=rows)
        for part, shape in enumerate(layer.part_shapes) if layer.hands_parts else [(WHOLE, layer.shape)]:
            name = f"{layer.name}.{part}" if layer.hands_parts else layer.name
            while part != WHOLE and name in self.net.positions:  # a layer is called so: mail must not be mistaken
                name += "'"
            spots = {location: Held(number, part) for location, number in held.items()}
            self._features[Edge(position, part)] = Feature(name, shape, cut.dim, spots)

    def _bring(self, edge: Edge, wanted: Wanted) -> Mapping[int, Held]:
        """Return where the workers find what ``edge`` carries; it is brought once for all layers that want it so."""
        if self._features[edge].serves(wanted):
            return self._features[edge].held
        if self.net.nodes[edge.node].layer.conf.type is LayerType.kSplit:
            edge = Edge(edge.node, 0)  # its parts are all the same feature
        if (edge, wanted) not in self._brought:
            self._brought[edge, wanted] = bring(self.graph, self._features[edge], wanted)
        return self._brought[edge, wanted]

    def _layer(self, node: Node, cut: Cut, part: int) -> Layer:
        """Return the layer that computes this part of the layer of ``node``."""
        layer = node.layer
        if cut.dim == ROWS and self.gather and type(layer) is InnerProduct and self._pays(node):
            layer = copy.copy(layer)
            layer.gathers = True
            self.gathered.update(node.params)
        if cut.dim != FEATURES:
            return layer
        columns = self._columns(layer, part)
        shapes = [
            shape
            if layer.connection is Connection.kOneToAll or k == layer.label_source
            else self.graph.part_shape(shape, FEATURES, part)
            for k, shape in enumerate(layer.source_shapes)
        ]
        return make_part(layer, shapes, columns)

    def _columns(self, layer: Layer, part: int) -> Columns:
        start, stop = self.graph.bounds(layer.shape, FEATURES)[part : part + 2]
        return Columns(start, stop, layer.shape[1])

    def _pays(self, node: Node) -> bool:
        """Whether the activations and deltas of a fully connected layer are fewer numbers than its weight.

        Not of one whose params other layers use too: these have gradients to send anyway.
        """
        uses = sum(name in other.params for other in self.net.nodes for name in node.params)
        inputs, outputs = math.prod(node.layer.source_shapes[0][1:]), node.layer.shape[1]
        return uses == len(node.params) and node.layer.shape[0] * (inputs + outputs) < inputs * outputs

    def _name_params(self, node: Node, own: Layer, number: int) -> tuple[str, ...]:
        """Return the names of the params of a part of a layer, noting those that are seen for the first time."""
        names = []
        for spec, name in zip(own.params, node.params, strict=True):
            cut = own.columns is not None and spec.cut_axis is not None
            names.append(f"{name}@{number}" if cut else name)
            whole = self.net.params[name]
            part = _Part(Param(names[-1], spec, whole.conf), spec.cut_axis, own.columns) if cut else _Part(whole)
            self.params.setdefault(names[-1], part)
        return tuple(names)


def _sort(graph: Graph) -> tuple[tuple[Node, ...], tuple[Place, ...]]:
    """Return the nodes in the order in which they run, with their places."""
    order = communication_order(graph.nodes)
    moved = {old: new for new, old in enumerate(order)}
    nodes = [graph.nodes[old] for old in order]
    sorted_nodes = tuple(node._replace(sources=tuple(moved[source] for source in node.sources)) for node in nodes)
    return sorted_nodes, tuple(graph.places[old] for old in order)


def _with_gradients(nodes: tuple[Node, ...]) -> tuple[Node, ...]:
    """Tell the bridges over which a gradient comes back."""
    stages = build_stages(nodes)
    result = list(nodes)
    for position, (node, stage) in enumerate(zip(nodes, stages, strict=True)):
        if isinstance(node.layer, BridgeDst) and any(stage.needs):
            src, dst = copy.copy(nodes[node.sources[0]].layer), copy.copy(node.layer)
            assert isinstance(src, BridgeSrc)
            src.starts_gradient = dst.wants_gradient = True
            result[node.sources[0]] = result[node.sources[0]]._replace(layer=src)
            result[position] = node._replace(layer=dst)
    return tuple(result)


def _local(
    net: NeuralNet,
    nodes: Sequence[Node],
    places: Sequence[Place],
    params: Mapping[str, _Part],
    location: int,
) -> NeuralNet:
    """Return the net of one worker: its nodes, in the common order."""
    own = [position for position, place in enumerate(places) if place.location == location]
    moved = {old: new for new, old in enumerate(own)}
    local = []
    for position in own:
        node = nodes[position]
        sources = () if isinstance(node.layer, BridgeDst) else tuple(moved[source] for source in node.sources)
        local.append(node._replace(sources=sources, takes=node.takes if sources else ()))
    used = dict.fromkeys(name for node in local for name in node.params)
    return NeuralNet(tuple(local), {name: params[name].param for name in used}, net.phase)


def _param_parts(net: NeuralNet, nets: Sequence[NeuralNet], rewriting: _Rewriting) -> dict[str, ParamPart]:
    """Return the parts of the params, in the order of the whole net's params."""
    found = {}
    for name, (param, axis, columns) in rewriting.params.items():
        users = tuple(location for location, local in enumerate(nets) if name in local.params)
        whole = name if axis is None else name.rpartition("@")[0]
        start = stop = 0
        if columns and axis is not None:
            start, stop = (net.params[whole].shape[axis] * bound // columns.total for bound in columns[:2])
        found[name] = ParamPart(name, whole, param.shape, users, axis, start, stop, name in rewriting.gathered)
    order = {name: number for number, name in enumerate(net.params)}
    return dict(sorted(found.items(), key=lambda item: order[item[1].param]))

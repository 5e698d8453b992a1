"""Moves features between workers: adds the slice, split, bridge and concate layers that a cut net needs.

SINGA's rule, for parts of any size: if source and destination have the same cut, the edge stays as it is. If the
destination needs the whole feature, a split layer hands it to each worker. Otherwise a slice layer cuts it on the
destination's dimension. Parts from several workers are concatenated on the source's dimension. An edge between two
workers becomes a pair of bridge layers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from dsinga.cutting.bridges import BridgeDst, BridgeSrc
from dsinga.cutting.partitioned import COPIED, ROWS, Place
from dsinga.cutting.point_runs import PointRun
from dsinga.job import LayerConf, LayerType
from dsinga.layers.connection import Concate, SliceLayer, Split
from dsinga.layers.interface.context import Rows, cut_evenly
from dsinga.layers.interface.layer import Layer, Shape
from dsinga.net.dataflow import WHOLE_FEATURE
from dsinga.net.node import Node


class NodeOutput(NamedTuple):
    """A node's feature, or one part of it if the layer hands out parts."""

    node: int
    part: int = WHOLE_FEATURE


class Sharding(NamedTuple):
    """How a feature is distributed over workers: cut along the axis ``dim``, or whole at each (COPIED).

    Axis 0 has the rows. Features are on axis 1, and on axis 2 in layers that compute sequences. With a ``grid`` the
    feature is cut by space, into ``grid`` parts along the axes from ``dim``. ``needs`` then has the points that each
    part needs, by axis, unless they are its own; points of padding are ``fill``.
    """

    dim: int
    locations: tuple[int, ...]
    grid: tuple[int, ...] = ()
    needs: tuple[tuple[tuple[PointRun, ...], ...], ...] = ()
    fill: float = 0.0

    def __str__(self) -> str:
        if self.dim == COPIED:
            return "all" if len(self.locations) > 1 else f"all@{self.locations[0]}"
        if self.grid:
            return "points"
        return ("rows", "features", "features of steps")[self.dim]


class ShardedFeature(NamedTuple):
    """A feature of the uncut net with its distribution; ``outputs`` has each worker's node output."""

    name: str
    shape: Shape
    dim: int
    outputs: Mapping[int, NodeOutput]
    grid: tuple[int, ...] = ()

    def satisfies(self, target: Sharding) -> bool:
        """Whether every worker of ``target`` already has the part that it needs."""
        if (self.dim, self.grid) != (target.dim, target.grid) or target.needs:
            return False
        return self.dim != COPIED or set(target.locations) <= self.outputs.keys()


class GraphBuilder:
    """Collects the nodes of a cut net while it is built, sources always before their destinations."""

    def __init__(self, rows: Callable[[int], Sequence[Rows]], parts: int):
        self.nodes: list[Node] = []
        self.places: list[Place] = []
        self.rows = rows  # the row range of each worker in a batch of the given size
        self.parts = parts

    def add(
        self, layer: Layer, place: Place, sources: Sequence[NodeOutput], params: tuple[str, ...] = (), *, rows: Rows
    ) -> int:
        """Append a node; return its position."""
        positions, takes = tuple(source.node for source in sources), tuple(source.part for source in sources)
        self.nodes.append(Node(layer, positions, params, rows, takes))
        self.places.append(place)
        return len(self.nodes) - 1

    def bounds(self, shape: Shape, dim: int) -> list[int]:
        """Return where the parts of a feature cut along ``dim`` begin, and where the last ends."""
        ranges = self.rows(shape[0]) if dim == ROWS else cut_evenly(shape[dim], self.parts)
        return [0, *(range_.stop for range_ in ranges)]

    def part_shape(self, shape: Shape, dim: int, part: int) -> Shape:
        """Return the shape of one part of a feature of ``shape`` cut along ``dim``."""
        if dim == COPIED:
            return shape
        start, stop = self.bounds(shape, dim)[part : part + 2]
        return (*shape[:dim], stop - start, *shape[dim + 1 :])


def redistribute(graph: GraphBuilder, feature: ShardedFeature, target: Sharding) -> Mapping[int, NodeOutput]:
    """Add the layers that bring ``feature`` to the workers as ``target`` requires; return each worker's output."""
    if feature.satisfies(target):
        return feature.outputs
    arriving: dict[int, list[tuple[NodeOutput, Shape]]] = {destination: [] for destination in target.locations}
    for part, (location, output) in enumerate(feature.outputs.items()):
        shape = graph.part_shape(feature.shape, feature.dim, part)
        sent = _cut_for_destinations(graph, feature, target, location, output, shape)
        for destination, (sent_output, sent_shape) in sent.items():
            arrived = sent_output
            if destination != location:
                key = f"{feature.name}:{target}@{location}-{destination}"
                arrived = add_bridge(graph, feature, key, sent_output, sent_shape, location, destination)
            arriving[destination].append((arrived, sent_shape))
    return {destination: _join(graph, feature, target, destination, parts) for destination, parts in arriving.items()}


def _cut_for_destinations(
    graph: GraphBuilder, feature: ShardedFeature, target: Sharding, location: int, output: NodeOutput, shape: Shape
) -> dict[int, tuple[NodeOutput, Shape]]:
    """Return the outputs of one worker for each destination: a slice, or its whole part."""
    destinations = target.locations
    if target.dim == COPIED and len(destinations) == 1:
        return {destinations[0]: (output, shape)}
    layer: Layer
    if target.dim == COPIED:
        settings = Split.Conf(num_splits=len(destinations))
        layer = Split(connection_conf(LayerType.kSplit, feature, target, split_conf=settings), [shape])
    else:
        slice_conf = SliceLayer.Conf(slice_dim=target.dim, num_slices=len(destinations))
        conf = connection_conf(LayerType.kSlice, feature, target, slice_conf=slice_conf)
        layer = SliceLayer.of(conf, shape, target.dim, graph.bounds(feature.shape, target.dim))
    node = graph.add(
        layer, Place(location, feature.name), [output], rows=rows_at(graph, feature, feature.dim, location)
    )
    return {destination: (NodeOutput(node, k), layer.part_shapes[k]) for k, destination in enumerate(destinations)}


def add_bridge(
    graph: GraphBuilder,
    feature: ShardedFeature,
    key: str,
    output: NodeOutput,
    shape: Shape,
    location: int,
    destination: int,
) -> NodeOutput:
    """Add a pair of bridge layers between two workers; later it is decided whether a gradient comes back."""
    src = BridgeSrc(connection_conf(LayerType.kBridgeSrc, feature, key), shape, destination, key)
    dst = BridgeDst(connection_conf(LayerType.kBridgeDst, feature, key), shape, location, key)
    rows = Rows(0, feature.shape[0], feature.shape[0])
    sent = graph.add(src, Place(location, feature.name), [output], rows=rows)
    return NodeOutput(graph.add(dst, Place(destination, feature.name), [NodeOutput(sent)], rows=rows))


def _join(
    graph: GraphBuilder,
    feature: ShardedFeature,
    target: Sharding,
    destination: int,
    parts: list[tuple[NodeOutput, Shape]],
) -> NodeOutput:
    if len(parts) == 1:
        return parts[0][0]
    settings = Concate.Conf(concate_dim=feature.dim, num_concates=len(parts))
    conf = connection_conf(LayerType.kConcate, feature, target, concate_conf=settings)
    layer = Concate(conf, [shape for _, shape in parts])
    rows = rows_at(graph, feature, target.dim, destination)
    outputs = [output for output, _ in parts]
    return NodeOutput(graph.add(layer, Place(destination, feature.name), outputs, rows=rows))


def rows_at(graph: GraphBuilder, feature: ShardedFeature, dim: int, location: int) -> Rows:
    """Return the rows of a feature cut along ``dim`` that a worker has."""
    total = feature.shape[0]
    return graph.rows(total)[location] if dim == ROWS else Rows(0, total, total)


def connection_conf(type: LayerType, feature: ShardedFeature, purpose: Sharding | str, **settings: Any) -> LayerConf:
    """Return the configuration of a connection layer, with a name from its kind, feature and purpose."""
    kind = {"kSplit": "split", "kSlice": "slice", "kConcate": "concate", "kBridgeSrc": "send", "kBridgeDst": "receive"}
    name = purpose if isinstance(purpose, str) else f"{feature.name}:{purpose}"
    return LayerConf(name=f"{kind[type.name]}({name})", type=type, srclayers=[feature.name], **settings)

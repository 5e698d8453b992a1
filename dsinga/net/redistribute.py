"""How a feature gets from the workers that have it to those that want it: slice, split, bridge and concate layers.

SINGA's rule, for parts of any size: where both ends are cut alike the edge goes straight. Where all of a feature is
wanted, it is split (handed to each worker), else sliced on the dimension of the destination; what comes from several
workers is concatenated on the dimension of the source. Where an edge leaves its worker, it crosses a pair of bridge
layers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from dsinga.job import ConcateConf, LayerConf, LayerType, SliceConf, SplitConf
from dsinga.layers.base import Layer, Shape
from dsinga.layers.bridge import BridgeDst, BridgeSrc
from dsinga.layers.connection import Concate, Slice, Split
from dsinga.layers.context import Rows
from dsinga.net.cut import cut_rows
from dsinga.net.dataflow import WHOLE
from dsinga.net.node import Node
from dsinga.net.partitioned import ROWS, WHOLE_LAYER, Place


class Held(NamedTuple):
    """Where a worker has a feature: the position of the node, and the part of it if that hands out parts."""

    node: int
    part: int = WHOLE


class Feature(NamedTuple):
    """A feature of the whole net as the workers have it: all of it, or the parts of a cut along ``dim``."""

    name: str
    shape: Shape
    dim: int
    held: Mapping[int, Held]

    def serves(self, wanted: Wanted) -> bool:
        """Whether every worker that wants the feature has what it wants."""
        return self.dim == wanted.dim and (self.dim != WHOLE_LAYER or set(wanted.locations) <= self.held.keys())


class Wanted(NamedTuple):
    """What a layer wants of a source: its rows, its features or (WHOLE_LAYER) all of it, at these workers."""

    dim: int
    locations: tuple[int, ...]

    def __str__(self) -> str:
        if self.dim == WHOLE_LAYER:
            return "all" if len(self.locations) > 1 else f"all@{self.locations[0]}"
        return ("rows", "features")[self.dim]


class Graph:
    """The nodes of a partitioned net as it grows, sources always before their destinations."""

    def __init__(self, rows: Callable[[int], Sequence[Rows]], parts: int):
        self.nodes: list[Node] = []
        self.places: list[Place] = []
        self.rows = rows  # of a batch of so many rows, by worker
        self.parts = parts

    def add(
        self, layer: Layer, place: Place, sources: Sequence[Held], params: tuple[str, ...] = (), *, rows: Rows
    ) -> int:
        """Append a node; return its position."""
        into, takes = tuple(source.node for source in sources), tuple(source.part for source in sources)
        self.nodes.append(Node(layer, into, params, rows, takes))
        self.places.append(place)
        return len(self.nodes) - 1

    def bounds(self, shape: Shape, dim: int) -> list[int]:
        """Return where the parts of a feature that is cut along ``dim`` begin, and where the last one ends."""
        ranges = self.rows(shape[0]) if dim == ROWS else cut_rows(shape[1], self.parts)
        return [0, *(one.stop for one in ranges)]

    def part_shape(self, shape: Shape, dim: int, part: int) -> Shape:
        """Return the shape of one part of a feature of ``shape`` that is cut along ``dim``."""
        if dim == WHOLE_LAYER:
            return shape
        start, stop = self.bounds(shape, dim)[part : part + 2]
        return (*shape[:dim], stop - start, *shape[dim + 1 :])


def bring(graph: Graph, feature: Feature, wanted: Wanted) -> Mapping[int, Held]:
    """Return where each worker that wants the feature finds it, putting in the layers that bring it there."""
    if feature.serves(wanted):
        return feature.held
    arriving: dict[int, list[tuple[Held, Shape]]] = {target: [] for target in wanted.locations}
    for part, (location, held) in enumerate(feature.held.items()):
        shape = graph.part_shape(feature.shape, feature.dim, part)
        for target, (piece, piece_shape) in _hand_out(graph, feature, wanted, location, held, shape).items():
            arrived = piece
            if target != location:
                arrived = _bridge(graph, feature, wanted, piece, piece_shape, location, target)
            arriving[target].append((arrived, piece_shape))
    return {target: _join(graph, feature, wanted, target, pieces) for target, pieces in arriving.items()}


def _hand_out(
    graph: Graph, feature: Feature, wanted: Wanted, location: int, held: Held, shape: Shape
) -> dict[int, tuple[Held, Shape]]:
    """Return what a worker has for each target: a slice, or all that it holds, handed out by a kSplit layer."""
    targets = wanted.locations
    if wanted.dim == WHOLE_LAYER and len(targets) == 1:
        return {targets[0]: (held, shape)}
    layer: Layer
    if wanted.dim == WHOLE_LAYER:
        settings = SplitConf(num_splits=len(targets))
        layer = Split(_conf(LayerType.kSplit, feature, wanted, split_conf=settings), [shape])
    else:
        cut = SliceConf(slice_dim=wanted.dim, num_slices=len(targets))
        conf = _conf(LayerType.kSlice, feature, wanted, slice_conf=cut)
        layer = Slice.of(conf, shape, wanted.dim, graph.bounds(feature.shape, wanted.dim))
    node = graph.add(layer, Place(location, feature.name), [held], rows=_rows(graph, feature, feature.dim, location))
    return {target: (Held(node, k), layer.part_shapes[k]) for k, target in enumerate(targets)}


def _bridge(
    graph: Graph, feature: Feature, wanted: Wanted, piece: Held, shape: Shape, location: int, target: int
) -> Held:
    """Put a bridge between two workers; whether a gradient comes back is not known yet."""
    key = f"{feature.name}:{wanted}@{location}-{target}"
    src = BridgeSrc(_conf(LayerType.kBridgeSrc, feature, key), shape, target, key, backward=False)
    dst = BridgeDst(_conf(LayerType.kBridgeDst, feature, key), shape, location, key, backward=False)
    rows = Rows(0, feature.shape[0], feature.shape[0])
    sent = graph.add(src, Place(location, feature.name), [piece], rows=rows)
    return Held(graph.add(dst, Place(target, feature.name), [Held(sent)], rows=rows))


def _join(graph: Graph, feature: Feature, wanted: Wanted, target: int, pieces: list[tuple[Held, Shape]]) -> Held:
    """Return the one piece that came, or where several are joined."""
    if len(pieces) == 1:
        return pieces[0][0]
    settings = ConcateConf(concate_dim=feature.dim, num_concates=len(pieces))
    conf = _conf(LayerType.kConcate, feature, wanted, concate_conf=settings)
    layer = Concate(conf, [shape for _, shape in pieces])
    rows = _rows(graph, feature, wanted.dim, target)
    return Held(graph.add(layer, Place(target, feature.name), [held for held, _ in pieces], rows=rows))


def _rows(graph: Graph, feature: Feature, dim: int, location: int) -> Rows:
    """Return the rows of the feature that a worker has if it is cut along ``dim``."""
    total = feature.shape[0]
    return graph.rows(total)[location] if dim == ROWS else Rows(0, total, total)


def _conf(type: LayerType, feature: Feature, what: Wanted | str, **settings: Any) -> LayerConf:
    """Return the configuration of a connection layer, named after its kind, the feature, and what it is for."""
    kind = {"kSplit": "split", "kSlice": "slice", "kConcate": "concate", "kBridgeSrc": "send", "kBridgeDst": "receive"}
    name = what if isinstance(what, str) else f"{feature.name}:{what}"
    return LayerConf(name=f"{kind[type.name]}({name})", type=type, srclayers=[feature.name], **settings)

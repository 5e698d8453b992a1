"""Lays out a partitioned net in swimlanes, one for each worker, with the parts of a layer side by side."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from graphlib import TopologicalSorter
from typing import NamedTuple

from dsinga.addons.pictures.drawing.layered_layout import layered_layout
from dsinga.cutting.bridges import BridgeDst, BridgeSrc
from dsinga.cutting.partitioned import PartitionedNet

Key = tuple[object, ...]


class LayerBox(NamedTuple):
    """A box of the picture: its nodes (positions in ``PartitionedNet.nodes``), their worker, and its source boxes."""

    nodes: tuple[int, ...]
    location: int
    sources: tuple[int, ...]


@dataclass(frozen=True)
class SwimlaneLayout:
    """Positions in a partitioned net's picture: ``x`` and ``rank`` (row) of boxes, ``routes`` of edges, lanes."""

    x: list[float]
    rank: list[int]
    routes: Mapping[tuple[int, int], list[float]]
    extents: list[tuple[float, float]]


def find_boxes(net: PartitionedNet) -> list[LayerBox]:
    """Group the nodes of a partitioned net into boxes, sources first."""
    destinations = find_destinations(net)
    keys = [_box_key(net, destinations, position) for position in range(len(net.nodes))]
    members: dict[Key, list[int]] = {}
    for position, key in enumerate(keys):
        members.setdefault(key, []).append(position)
    follows = {
        key: dict.fromkeys(keys[source] for position in positions for source in net.nodes[position].sources)
        for key, positions in members.items()
    }
    order = list(TopologicalSorter(follows).static_order())
    number = {key: k for k, key in enumerate(order)}
    return [
        LayerBox(
            tuple(members[key]), net.places[members[key][0]].location, tuple(number[source] for source in follows[key])
        )
        for key in order
    ]


def place_boxes(
    net: PartitionedNet, boxes: Sequence[LayerBox], width: Callable[[LayerBox], float], edge_width: float, gap: float
) -> SwimlaneLayout:
    """Place boxes in swimlanes ``gap`` apart; an edge is ``edge_width`` wide in a row that it passes."""
    rank = rank_boxes(net, boxes)
    x, extents, left = [0.0] * len(boxes), [], 0.0
    routes: dict[tuple[int, int], list[float]] = {}
    for location in range(len(net.locals)):
        lane = sorted((k for k, box in enumerate(boxes) if box.location == location), key=rank.__getitem__)
        place = {k: number for number, k in enumerate(lane)}
        sources = [[place[source] for source in boxes[k].sources if source in place] for k in lane]
        for k, above in _exchanges(net, boxes, rank, lane):
            sources[place[k]].append(place[above])
        grid = layered_layout(sources, [width(boxes[k]) for k in lane], edge_width, [rank[k] for k in lane])
        for k, number in place.items():
            x[k] = left + grid.x[number]
        routes.update({(lane[a], lane[b]): [left + bend for bend in bends] for (a, b), bends in grid.routes.items()})
        extents.append((left, left + grid.width))
        left += grid.width + gap
    return SwimlaneLayout(x, rank, routes, extents)


def _exchanges(
    net: PartitionedNet, boxes: Sequence[LayerBox], rank: Sequence[int], lane: Sequence[int]
) -> Iterator[tuple[int, int]]:
    """Yield pairs of a receiving box and a sending box above it, to be placed as if joined by an edge."""
    senders = {rank[k]: k for k in lane if isinstance(net.nodes[boxes[k].nodes[0]].layer, BridgeSrc)}
    for k in lane:
        if isinstance(net.nodes[boxes[k].nodes[0]].layer, BridgeDst) and rank[k] - 1 in senders:
            yield k, senders.pop(rank[k] - 1)


def rank_boxes(net: PartitionedNet, boxes: Sequence[LayerBox]) -> list[int]:
    """Choose the row of each box: below its sources, level with the other parts of its layer."""
    destinations = find_destinations(net)
    rows = [_row_key(net, destinations, box) for box in boxes]
    follows: dict[Key, dict[Key, None]] = {row: {} for row in rows}
    for box, row in zip(boxes, rows, strict=True):
        follows[row].update(dict.fromkeys(rows[source] for source in box.sources))
    rank: dict[Key, int] = {}
    for row in TopologicalSorter(follows).static_order():
        rank[row] = max((rank[source] + 1 for source in follows[row]), default=0)
    for row in follows:
        receivers = [rank[receiver] for receiver, sources in follows.items() if row in sources]
        if row[0] is BridgeSrc:
            rank[row] = min(receivers) - 1
    return [rank[row] for row in rows]


def find_destinations(net: PartitionedNet) -> list[tuple[int, ...]]:
    """Return, for each node, the nodes that it feeds."""
    destinations: list[list[int]] = [[] for _ in net.nodes]
    for position, node in enumerate(net.nodes):
        for source in node.sources:
            destinations[source].append(position)
    return [tuple(positions) for positions in destinations]


def _box_key(net: PartitionedNet, destinations: Sequence[tuple[int, ...]], position: int) -> Key:
    node, location = net.nodes[position], net.places[position].location
    if isinstance(node.layer, BridgeSrc):
        return BridgeSrc, location, node.sources
    if isinstance(node.layer, BridgeDst):
        return BridgeDst, location, destinations[position]
    return (position,)


def _row_key(net: PartitionedNet, destinations: Sequence[tuple[int, ...]], box: LayerBox) -> Key:
    node = net.nodes[box.nodes[0]]
    if isinstance(node.layer, BridgeSrc):
        return BridgeSrc, net.nodes[node.sources[0]].layer.name
    if isinstance(node.layer, BridgeDst):
        return BridgeDst, *(net.nodes[destination].layer.name for destination in destinations[box.nodes[0]])
    return (node.layer.name,)

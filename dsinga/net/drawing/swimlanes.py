"""Where the boxes of a partitioned net go: a lane for each worker, parts of the same layer side by side."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from graphlib import TopologicalSorter
from typing import NamedTuple

from dsinga.layers.bridge import BridgeDst, BridgeSrc
from dsinga.net.drawing.layered_layout import arrange
from dsinga.net.partitioned import PartitionedNet

Key = tuple[object, ...]


class Box(NamedTuple):
    """A box of the picture: positions in ``PartitionedNet.nodes``, their location, and the boxes that they follow.

    It stands for one node, but for bridges: those that send the same, and those that one layer waits for, are one box.
    """

    nodes: tuple[int, ...]
    location: int
    sources: tuple[int, ...]


@dataclass(frozen=True)
class Lanes:
    """``x`` of each box and its ``rank``; ``routes`` of edges within a lane, as in Arrangement; each lane's extent."""

    x: list[float]
    rank: list[int]
    routes: Mapping[tuple[int, int], list[float]]
    extents: list[tuple[float, float]]


def find_boxes(net: PartitionedNet) -> list[Box]:
    """Return the boxes of the picture of ``net``, sources before their destinations."""
    takers = find_takers(net)
    keys = [_box_key(net, takers, position) for position in range(len(net.nodes))]
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
        Box(tuple(members[key]), net.places[members[key][0]].location, tuple(number[source] for source in follows[key]))
        for key in order
    ]


def place_boxes(
    net: PartitionedNet, boxes: Sequence[Box], width: Callable[[Box], float], passing: float, gap: float
) -> Lanes:
    """Place the boxes: lanes side by side, ``gap`` apart; ``passing`` is the room that a passing edge takes."""
    rank = rank_boxes(net, boxes)
    x, extents, left = [0.0] * len(boxes), [], 0.0
    routes: dict[tuple[int, int], list[float]] = {}
    for location in range(len(net.locals)):
        own = sorted((k for k, box in enumerate(boxes) if box.location == location), key=rank.__getitem__)
        place = {k: number for number, k in enumerate(own)}
        sources = [[place[source] for source in boxes[k].sources if source in place] for k in own]
        for k, above in _exchanges(net, boxes, rank, own):
            sources[place[k]].append(place[above])
        grid = arrange(sources, [width(boxes[k]) for k in own], passing, [rank[k] for k in own])
        for k, number in place.items():
            x[k] = left + grid.x[number]
        routes.update({(own[a], own[b]): [left + one for one in bends] for (a, b), bends in grid.routes.items()})
        extents.append((left, left + grid.width))
        left += grid.width + gap
    return Lanes(x, rank, routes, extents)


def _exchanges(
    net: PartitionedNet, boxes: Sequence[Box], rank: Sequence[int], own: Sequence[int]
) -> Iterator[tuple[int, int]]:
    """Yield what a worker receives with what it sends right above, to be placed as if one followed the other."""
    senders = {rank[k]: k for k in own if isinstance(net.nodes[boxes[k].nodes[0]].layer, BridgeSrc)}
    for k in own:
        if isinstance(net.nodes[boxes[k].nodes[0]].layer, BridgeDst) and rank[k] - 1 in senders:
            yield k, senders.pop(rank[k] - 1)


def rank_boxes(net: PartitionedNet, boxes: Sequence[Box]) -> list[int]:
    """Return the row of each box: below its sources, beside the other parts of its layer.

    What is sent stands right above where it is received, which keeps edges between lanes short.
    """
    takers = find_takers(net)
    rows = [_row_key(net, takers, box) for box in boxes]
    follows: dict[Key, dict[Key, None]] = {row: {} for row in rows}
    for box, row in zip(boxes, rows, strict=True):
        follows[row].update(dict.fromkeys(rows[source] for source in box.sources))
    rank: dict[Key, int] = {}
    for row in TopologicalSorter(follows).static_order():
        rank[row] = max((rank[source] + 1 for source in follows[row]), default=0)
    for row in follows:
        receivers = [rank[other] for other, sources in follows.items() if row in sources]
        if row[0] is BridgeSrc:
            rank[row] = min(receivers) - 1
    return [rank[row] for row in rows]


def find_takers(net: PartitionedNet) -> list[tuple[int, ...]]:
    """Return for each node the nodes that have it as a source."""
    takers: list[list[int]] = [[] for _ in net.nodes]
    for position, node in enumerate(net.nodes):
        for source in node.sources:
            takers[source].append(position)
    return [tuple(one) for one in takers]


def _box_key(net: PartitionedNet, takers: Sequence[tuple[int, ...]], position: int) -> Key:
    node, location = net.nodes[position], net.places[position].location
    if isinstance(node.layer, BridgeSrc):
        return BridgeSrc, location, node.sources
    if isinstance(node.layer, BridgeDst):
        return BridgeDst, location, takers[position]
    return (position,)


def _row_key(net: PartitionedNet, takers: Sequence[tuple[int, ...]], box: Box) -> Key:
    node = net.nodes[box.nodes[0]]
    if isinstance(node.layer, BridgeSrc):
        return BridgeSrc, net.nodes[node.sources[0]].layer.name
    if isinstance(node.layer, BridgeDst):
        return BridgeDst, *(net.nodes[taker].layer.name for taker in takers[box.nodes[0]])
    return (node.layer.name,)

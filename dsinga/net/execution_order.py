"""Orders the nodes of a partitioned net so that workers wait little for each other (5.4.2 of the paper)."""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence

from dsinga.layers.connect.bridge import BridgeDst, BridgeEnd, BridgeSrc
from dsinga.net.node import Node


def communication_order(nodes: Sequence[Node]) -> list[int]:
    """Return the positions of ``nodes`` in an order in which they can run.

    Bridges send as soon as they can; layers closer to a sending bridge run first; bridges receive when nothing else
    can run. The backward pass runs in reverse order, which keeps all three rules. The parts of a layer that is cut by
    rows or space follow each other, because they may wait for each other's sums (``Context.all_reduce``). Every worker
    follows this order, so no two workers can wait for each other.
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
    """Return groups of positions that must follow each other: the parts of a layer cut by rows or space."""
    parts: dict[int | str, list[int]] = {}
    for position, (layer, _, _, rows, *_) in enumerate(nodes):
        whole = rows is None or (rows.stop - rows.start == rows.total and layer.region is None)
        alone = whole or isinstance(layer, BridgeEnd)
        parts.setdefault(position if alone else layer.name, []).append(position)
    return [tuple(group) for group in parts.values()]


def _steps_to_sending(nodes: Sequence[Node], followers: Sequence[Sequence[int]]) -> list[float]:
    """Return for each node the number of layers to the next sending bridge, inf where none follows."""
    steps = [math.inf] * len(nodes)
    for position in reversed(range(len(nodes))):
        if isinstance(nodes[position].layer, BridgeSrc):
            steps[position] = 0
        elif followers[position]:
            steps[position] = 1 + min(steps[follower] for follower in followers[position])
    return steps

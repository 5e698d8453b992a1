"""The order in which partitioned layers run: topological, then by how much other workers wait for them (5.4.2)."""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence

from dsinga.layers.bridge import BridgeDst, BridgeSrc
from dsinga.net.neuralnet import Node


def communication_order(nodes: Sequence[Node]) -> list[int]:
    """Return the positions of ``nodes`` in an order in which they can run.

    What is to be sent is sent at once; what another worker is nearer to needing comes first; what is received is
    waited for when there is nothing else to do. The backward pass goes the other way round and so keeps all three.
    The workers' own orders are taken from this one, so no two of them can wait for each other.
    """
    missing = [len(node.sources) for node in nodes]
    followers: list[list[int]] = [[] for _ in nodes]
    for position, node in enumerate(nodes):
        for source in node.sources:
            followers[source].append(position)
    urgency = _steps_to_sending(nodes, followers)

    def rank(position: int) -> tuple[int, float, int]:
        layer = nodes[position].layer
        kind = 0 if isinstance(layer, BridgeSrc) else 2 if isinstance(layer, BridgeDst) else 1
        return kind, urgency[position], position

    ready = [rank(position) for position, count in enumerate(missing) if not count]
    heapq.heapify(ready)
    order: list[int] = []
    while ready:
        position = heapq.heappop(ready)[-1]
        order.append(position)
        for follower in followers[position]:
            missing[follower] -= 1
            if not missing[follower]:
                heapq.heappush(ready, rank(follower))
    assert len(order) == len(nodes), "the nodes form a cycle"
    return order


def _steps_to_sending(nodes: Sequence[Node], followers: Sequence[Sequence[int]]) -> list[float]:
    """Return for each node how many layers it is away from the next one that sends, inf where none follows."""
    steps = [math.inf] * len(nodes)
    for position in reversed(range(len(nodes))):
        if isinstance(nodes[position].layer, BridgeSrc):
            steps[position] = 0
        elif followers[position]:
            steps[position] = 1 + min(steps[follower] for follower in followers[position])
    return steps

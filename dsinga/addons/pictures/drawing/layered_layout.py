"""Lays out a directed graph in rows: sources above their destinations, few crossings, straight edges.

The method of Sugiyama, Tagawa and Toda (1981). Nodes are ranked by longest path, rows ordered by barycentres, and nodes
placed near their neighbours.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

SWEEPS = 24
STRAIGHTENING_ROUNDS = 3  # a line that became straight makes room for others
PASSING_PULL = 0.1  # how strongly an edge that passes ranks pulls a box; an edge to the next rank pulls with 1


@dataclass(frozen=True)
class LayeredLayout:
    """The ``x`` and ``rank`` (row) of each node; ``routes[a, b]`` has the x of an edge at each rank between."""

    x: list[float]
    rank: list[int]
    routes: dict[tuple[int, int], list[float]]
    width: float


def layered_layout(
    sources: Sequence[Sequence[int]],
    box_width: float | Sequence[float] = 1.0,
    edge_width: float = 0.3,
    rank: Sequence[int] | None = None,
) -> LayeredLayout:
    """Lay out a graph in rows, sources above their destinations.

    ``sources`` are each node's sources, earlier nodes. ``box_width`` is the width of all or each node, ``edge_width``
    of an edge in each row that it passes.
    """
    rank = longest_paths(sources) if rank is None else list(rank)
    rows: list[list[int]] = [[] for _ in range(max(rank, default=-1) + 1)]
    for node, row in enumerate(rank):
        rows[row].append(node)
    chains = {(a, b): [a] for b, node_sources in enumerate(sources) for a in node_sources}
    points = len(sources)
    for (a, b), chain in chains.items():
        for row in range(rank[a] + 1, rank[b]):
            rows[row].append(points)
            chain.append(points)
            points += 1
        chain.append(b)
    above: list[list[int]] = [[] for _ in range(points)]
    below: list[list[int]] = [[] for _ in range(points)]
    for chain in chains.values():
        for upper, lower in zip(chain, chain[1:], strict=False):
            below[upper].append(lower)
            above[lower].append(upper)
    boxes = [box_width] * len(sources) if isinstance(box_width, (int, float)) else list(box_width)
    size = boxes + [edge_width] * (points - len(sources))
    order_rows(rows, above, below)
    x = place_rows(rows, above, below, size)
    lines = straight_lines(len(sources), above, below)
    for _ in range(STRAIGHTENING_ROUNDS):
        for line in lines:
            straighten(rows, line, size, x)
        for first, *line, last in chains.values():
            straighten(rows, line, size, x, (x[first] + x[last]) / 2)
    left = min((x[k] - size[k] / 2 for k in range(points)), default=0.0)
    right = max((x[k] + size[k] / 2 for k in range(points)), default=0.0)
    x = [value - left for value in x]
    routes = {edge: [x[point] for point in chain[1:-1]] for edge, chain in chains.items()}
    return LayeredLayout(x[: len(sources)], rank, routes, right - left)


def longest_paths(sources: Sequence[Sequence[int]]) -> list[int]:
    """Return, for each node, the number of edges of the longest path to it."""
    rank: list[int] = []
    for node_sources in sources:
        rank.append(max((rank[source] + 1 for source in node_sources), default=0))
    return rank


def order_rows(rows: list[list[int]], above: Sequence[Sequence[int]], below: Sequence[Sequence[int]]) -> None:
    """Sort each row by its neighbours' mean places, sweeping down and up; keep the order with fewest crossings."""
    best, fewest = [list(row) for row in rows], count_crossings(rows, below)
    for sweep in range(SWEEPS):
        down = sweep % 2 == 0
        neighbours = above if down else below
        place = {node: float(k) for row in rows for k, node in enumerate(row)}
        for row in rows if down else reversed(rows):
            mean = {
                node: sum(place[neighbour] for neighbour in neighbours[node]) / len(neighbours[node])
                if neighbours[node]
                else place[node]
                for node in row
            }
            row.sort(key=mean.__getitem__)
            place.update((node, float(k)) for k, node in enumerate(row))
        crossings = count_crossings(rows, below)
        if crossings < fewest:
            best, fewest = [list(row) for row in rows], crossings
    rows[:] = best


def count_crossings(rows: Sequence[Sequence[int]], below: Sequence[Sequence[int]]) -> int:
    """Return how many pairs of lines between neighbouring rows cross."""
    place = {node: k for row in rows for k, node in enumerate(row)}
    crossings = 0
    for row in rows:
        ends = [end for node in row for end in sorted(place[lower] for lower in below[node])]
        crossings += sum(first > second for k, first in enumerate(ends) for second in ends[k + 1 :])
    return crossings


def place_rows(
    rows: Sequence[Sequence[int]], above: Sequence[Sequence[int]], below: Sequence[Sequence[int]], size: Sequence[float]
) -> list[float]:
    """Compute the x of each point: near the mean of its neighbours, in its row's order, without overlap."""
    x = [0.0] * len(size)
    for row in rows:
        spread(row, [0.0] * len(row), [1.0] * len(row), size, x)
    largest = max(size, default=0.0)
    for sweep in range(SWEEPS):
        down = sweep % 2 == 0
        for row in rows if down else reversed(rows):
            targets, weights = [], []
            for node in row:
                near = [*above[node], *below[node]] if sweep > SWEEPS // 2 else (above if down else below)[node]
                pull = [PASSING_PULL if size[neighbour] < size[node] else 1.0 for neighbour in near]
                total = sum(pull)
                targets.append(sum(w * x[k] for w, k in zip(pull, near, strict=True)) / total if near else x[node])
                weights.append(total * size[node] / largest or PASSING_PULL)
            spread(row, targets, weights, size, x)
    return x


def straight_lines(boxes: int, above: Sequence[Sequence[int]], below: Sequence[Sequence[int]]) -> list[list[int]]:
    """Return the chains of boxes without branches, ignoring edges that pass a row."""
    lines: list[list[int]] = []
    line_of: dict[int, list[int]] = {}
    for box in range(boxes):
        upper = [point for point in above[box] if point < boxes]
        if len(upper) == 1 and [point for point in below[upper[0]] if point < boxes] == [box]:
            line_of[box] = line_of[upper[0]]
        else:
            line_of[box] = []
            lines.append(line_of[box])
        line_of[box].append(box)
    return lines


def straighten(
    rows: Sequence[Sequence[int]],
    line: Sequence[int],
    size: Sequence[float],
    x: list[float],
    target: float | None = None,
) -> None:
    """Move the points of a line, one a row, to as few different x as the rows' free space allows.

    They are as near as possible to ``target``, by default the points' mean.
    """
    spaces = [free_space(next(row for row in rows if point in row), point, size, x) for point in line]
    start = 0
    while start < len(line):
        (low, high), stop = spaces[start], start + 1
        while stop < len(line) and max(low, spaces[stop][0]) <= min(high, spaces[stop][1]):
            low, high, stop = max(low, spaces[stop][0]), min(high, spaces[stop][1]), stop + 1
        near = sum(x[point] for point in line[start:stop]) / (stop - start) if target is None else target
        for point in line[start:stop]:
            x[point] = min(max(near, low), high)
        start = stop


def free_space(row: Sequence[int], point: int, size: Sequence[float], x: Sequence[float]) -> tuple[float, float]:
    """Return the smallest and largest x at which ``point`` does not touch its neighbours in the row."""
    k = row.index(point)
    left = x[row[k - 1]] + (size[row[k - 1]] + size[point]) / 2 if k else float("-inf")
    right = x[row[k + 1]] - (size[row[k + 1]] + size[point]) / 2 if k + 1 < len(row) else float("inf")
    return left, right


def spread(
    row: Sequence[int], targets: Sequence[float], weights: Sequence[float], size: Sequence[float], x: list[float]
) -> None:
    """Set ``x`` of a row to the nearest values to ``targets`` (weighted least squares) that keep order and distance.

    This is isotonic regression by pooling adjacent violators.
    """
    offset, offsets = 0.0, []
    for k, node in enumerate(row):
        offset += (size[row[k - 1]] + size[node]) / 2 if k else 0.0
        offsets.append(offset)
    blocks: list[tuple[float, float, int]] = []  # (mean, weight, points)
    for target, weight, shift in zip(targets, weights, offsets, strict=True):
        mean, count = target - shift, 1
        while blocks and blocks[-1][0] > mean:
            before, heavy, points = blocks.pop()
            mean = (before * heavy + mean * weight) / (heavy + weight)
            weight, count = heavy + weight, count + points
        blocks.append((mean, weight, count))
    places = [mean for mean, _, count in blocks for _ in range(count)]
    for node, place, shift in zip(row, places, offsets, strict=True):
        x[node] = place + shift

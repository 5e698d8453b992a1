"""Which way the updates of one server group come to all the others, along the edges between neighbours.

What a group has done travels along a shortest-path tree rooted at it, so that it reaches every other group exactly
once. A group that passes something on need not know where it comes from, only where it still has to go: the part of
the tree below the receiver. Whatever has the same way to go is added up and sent as one: between neighbours in an
all-to-all, a star, or any tree, that is everything; on a ring it depends on how many groups are still to be reached.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from dsinga.errors import UserError

Edge = tuple[int, int]


class Route(NamedTuple):
    """A way that is still to go: to ``group``, and from there along the routes ``onward``, by their numbers."""

    group: int
    onward: tuple[int, ...]


class Routes(NamedTuple):
    """All routes between server groups. ``own[g]`` are those on which group g sends what it has done itself."""

    own: tuple[tuple[int, ...], ...]
    routes: tuple[Route, ...]


def routes(edges: Iterable[Edge], groups: int) -> Routes:
    """Return the routes between groups 0 to ``groups`` - 1, of which ``edges`` are the pairs of neighbours.

    Raises UserError if some groups cannot be reached.
    """
    neighbours = _neighbours(edges, groups)
    numbers: dict[Route, int] = {}

    def number(group: int, tree: dict[int, list[int]]) -> int:
        route = Route(group, tuple(number(child, tree) for child in tree[group]))
        return numbers.setdefault(route, len(numbers))

    trees = [_tree(origin, neighbours) for origin in range(groups)]
    own = tuple(tuple(number(child, tree) for child in tree[origin]) for origin, tree in enumerate(trees))
    return Routes(own, tuple(numbers))


def _neighbours(edges: Iterable[Edge], groups: int) -> list[list[int]]:
    found: list[set[int]] = [set() for _ in range(groups)]
    for one, other in edges:
        assert one != other, (one, other)
        found[one].add(other)
        found[other].add(one)
    return [sorted(groups) for groups in found]


def _tree(origin: int, neighbours: Sequence[Sequence[int]]) -> dict[int, list[int]]:
    """Return the children of each group in the breadth-first tree rooted at ``origin``.

    Among the neighbours nearest to the origin the parent is the lowest, so that trees of different origins agree where
    they can, and have routes in common.
    """
    children: dict[int, list[int]] = {origin: []}
    queue = deque([origin])
    while queue:
        group = queue.popleft()
        for neighbour in neighbours[group]:
            if neighbour not in children:
                children[neighbour] = []
                children[group].append(neighbour)
                queue.append(neighbour)
    if len(children) < len(neighbours):
        apart = [str(group) for group in range(len(neighbours)) if group not in children]
        raise UserError(
            f"server group{'s' if len(apart) > 1 else ''} {', '.join(apart)} would never hear of group {origin}: add a "
            "sync_edge between them, or choose a sync_topology without sync_edge"
        )
    return children

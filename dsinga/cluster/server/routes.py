"""The routes by which server groups send their changes to all other server groups, along the edges of a topology.

The changes of a group are sent along a shortest-path tree rooted at it, so they reach every other group exactly once. A
group that forwards changes needs to know only where they must still go: the subtree below the receiver, which is a
:class:`Route`. Changes on the same route are added up and sent as one message. In an all-to-all, a star or any tree
there is one route for each pair of linked groups; on a ring there are more, since the subtrees differ in length.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from dsinga.base.errors import UserError

Edge = tuple[int, int]


class Route(NamedTuple):
    """A subtree that changes are sent to: to ``group``, and from there along the routes numbered ``onward``."""

    group: int
    onward: tuple[int, ...]


class Routes(NamedTuple):
    """All routes between server groups; ``starts[g]`` are the numbers of those that begin at group g."""

    starts: tuple[tuple[int, ...], ...]
    routes: tuple[Route, ...]

    def reaches(self, number: int, group: int) -> bool:
        """Return whether changes on the route ``number`` come to a group, at once or later."""
        route = self.routes[number]
        return route.group == group or any(self.reaches(onward, group) for onward in route.onward)


def routes(edges: Iterable[Edge], groups: int) -> Routes:
    """Return the routes between groups 0 to ``groups`` - 1, where ``edges`` are the pairs of linked groups.

    Raises UserError if some groups cannot be reached.
    """
    links = _links(edges, groups)
    numbers: dict[Route, int] = {}

    def number(group: int, tree: dict[int, list[int]]) -> int:
        route = Route(group, tuple(number(child, tree) for child in tree[group]))
        return numbers.setdefault(route, len(numbers))

    trees = [_tree(origin, links) for origin in range(groups)]
    starts = tuple(tuple(number(child, tree) for child in tree[origin]) for origin, tree in enumerate(trees))
    return Routes(starts, tuple(numbers))


def _links(edges: Iterable[Edge], groups: int) -> list[list[int]]:
    """Return the groups that each group is linked to, in rising order."""
    links: list[set[int]] = [set() for _ in range(groups)]
    for a, b in edges:
        assert a != b, (a, b)
        links[a].add(b)
        links[b].add(a)
    return [sorted(peers) for peers in links]


def _tree(origin: int, links: Sequence[Sequence[int]]) -> dict[int, list[int]]:
    """Return the children of each group in the breadth-first tree rooted at ``origin``.

    If several linked groups are equally near to the origin, the lowest is the parent, so that trees of different
    origins share as many routes as possible.
    """
    children: dict[int, list[int]] = {origin: []}
    queue = deque([origin])
    while queue:
        group = queue.popleft()
        for peer in links[group]:
            if peer not in children:
                children[peer] = []
                children[group].append(peer)
                queue.append(peer)
    if len(children) < len(links):
        unreachable = [str(group) for group in range(len(links)) if group not in children]
        raise UserError(
            f"no sync_edge connects server group{'s' if len(unreachable) > 1 else ''} {', '.join(unreachable)} with "
            f"group {origin}: add a sync_edge between them, or choose a sync_topology without sync_edge"
        )
    return children

"""The interface that keeps server groups in step, and the routes of their changes.

A job's ``sync_method`` or ``user_sync_method`` names a function of the registry's kind "sync_method". It receives a
run's topology and the updater's average, or None, and returns a :data:`Policy`, which each server calls with a
:class:`LinkedShard`.

A group's changes are sent along a shortest-path tree rooted at it, so they reach every other group exactly once. A
forwarding group needs to know only the subtree below the receiver, a :class:`Route`. Changes on the same route are
added up and sent as one message.
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from typing import Any, NamedTuple

import numpy as np

from dsinga.base.errors import UserError
from dsinga.cluster.server.gradient_accumulator import Generations
from dsinga.cluster.server.served_slice import ServedSlice, ShardCopy

Edge = tuple[int, int]


class Route(NamedTuple):
    """A way that changes are sent: to ``group``, and from there along the routes numbered ``onward``."""

    group: int
    onward: tuple[int, ...]


class Routes(NamedTuple):
    """All routes between server groups; ``starts[g]`` are the numbers of the routes that begin at group g."""

    starts: tuple[tuple[int, ...], ...]
    routes: tuple[Route, ...]

    def reaches(self, number: int, group: int) -> bool:
        """Whether changes on the route ``number`` reach a group, directly or forwarded."""
        route = self.routes[number]
        return route.group == group or any(self.reaches(onward, group) for onward in route.onward)


def routes(edges: Iterable[Edge], groups: int) -> Routes:
    """Find the routes that bring each group's changes to every other; ``edges`` are the pairs of linked groups.

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
    links: list[set[int]] = [set() for _ in range(groups)]
    for a, b in edges:
        assert a != b, (a, b)
        links[a].add(b)
        links[b].add(a)
    return [sorted(peers) for peers in links]


def _tree(origin: int, links: Sequence[Sequence[int]]) -> dict[int, list[int]]:
    """Return the children of each group in the breadth-first tree rooted at ``origin``."""
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


# Sends arrays to the shard of a linked group: (group, route, keys, arrays). The shard there gets them by ``receive``,
# with the number of the route. A key is an integer or a sequence of integers.
Send = Callable[[int, int, Sequence[Any], Sequence[np.ndarray]], Future]


class LinkedShard(NamedTuple):
    """A shard with its connections to other server groups, for a :class:`GroupSync`.

    Attributes:
        patience: how many seconds a linked server group may be silent; 0 for no bound.
        generation: the first generation of all server groups.
    """

    group: int
    routes: Routes
    slices: Mapping[int, ServedSlice]
    send: Send
    fail: Callable[[BaseException], None]
    patience: float = 0.0
    generation: int = 0


class GroupSync(ABC):
    """Base of the ways to keep a shard's slices in step with other server groups. Thread-safe."""

    def __init__(self, shard: LinkedShard):
        self._group, self._slices = shard.group, shard.slices
        self._starts, self._routes = shard.routes.starts[shard.group], shard.routes.routes
        self._lock = threading.Lock()
        self._generations = Generations(shard.generation)

    @abstractmethod
    def begin(self, served_slice: ServedSlice) -> None:
        """Start from the present value of a slice; a repeated call changes nothing."""

    def slice_updated(self, served_slice: ServedSlice, version: int, on_averaged: Callable[[], None]) -> None:
        """Call ``on_averaged`` when a slice updated to ``version`` may go on: at once, or after averaging.

        No thread changes the value before that.
        """
        on_averaged()

    def push_applied(self, served_slices: Iterable[ServedSlice]) -> None:  # noqa: B027
        """Count updates of these slices, which the shard's executor runs."""

    @abstractmethod
    def receive(
        self, route: int, keys: Sequence[Any], arrays: Sequence[np.ndarray], sender: int, generation: int
    ) -> None:
        """Accept arrays of the server group ``sender`` on a route, and forward them on the onward routes.

        Each message is received once. Raises RunError for another generation of the sender.
        """

    @abstractmethod
    def flush(self) -> Future[int]:
        """Give all groups the same values; return a future of the number of messages ever sent.

        Called on all shards when all worker groups have ended their steps, until the numbers stay the same.
        """

    def values_for(self, group: int, generation: int, source: int) -> ShardCopy:
        """Return this shard's share of the first values for a linked group's lost and replaced shard."""
        raise NotImplementedError

    def link(self, group: int, generation: int) -> None:
        """Accept and send messages of a new generation of a linked server group."""
        self.accept(group, generation)

    def accept(self, group: int, generation: int) -> None:
        """Accept only messages of this generation of a server group."""
        self.check_open()
        with self._lock:
            self._generations.set(group, generation)

    def check_message(self, sender: int, generation: int) -> None:
        """Raise RunError if the shard is closed, or for another generation of the sender."""
        self.check_open()
        with self._lock:
            self._generations.check(sender, generation, f"a message of server group {sender}")

    def age(self, id: int, version: int) -> int:
        """Return how many steps old the averaged (outer) gradients are that a slice has applied last."""
        return 0

    def progress(self) -> tuple[int, int]:
        """Return the step of the slowest slice, and the largest :meth:`age` of a slice."""
        versions = {id: each.version for id, slice_ in self._slices.items() for each in slice_.accumulators.values()}
        ages = [self.age(id, version) for id, version in versions.items()]
        return min(versions.values(), default=0), max(ages, default=0)

    @abstractmethod
    def close(self, error: BaseException) -> None:
        """Refuse later messages, and fail the futures of all flushes, with ``error``."""

    @abstractmethod
    def check_open(self) -> None:
        """Raise the error of :meth:`close`, if it has been called."""

    @abstractmethod
    def pending(self) -> list[str]:
        """Name the server groups that this shard waits for, for errors."""


Policy = Callable[[LinkedShard], GroupSync]

"""In which processes the workers and servers of a group live."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple

from dsinga.job import SlicingMethod
from dsinga.layers.base import Shape
from dsinga.server import Slice, slice_for_servers


class Part(NamedTuple):
    """A param, or a part of one: its shape and the workers that compute a gradient for it."""

    shape: Shape
    users: tuple[int, ...]


class Hosts(NamedTuple):
    """The process of each worker and of each server; ``slicing`` cuts the params for the servers, if not ``whole``."""

    workers: tuple[int, ...]
    servers: tuple[int, ...]
    slicing: SlicingMethod = SlicingMethod.kSinga
    whole: bool = False

    def shares_updates(self, server: int) -> bool:
        """Whether all of the group are threads of the server's process: there they share the work of its updates."""
        return set(self.workers) == {self.servers[server]}

    def first(self, workers: int) -> Hosts:
        """Return so many of the workers, with the servers in their processes, or one where there are none."""
        if workers == len(self.workers):
            return self
        homes = self.workers[:workers]
        servers = tuple(home for home in self.servers if home in homes) or self.servers[:1]
        return self._replace(workers=homes, servers=servers)

    def slices(self, parts: Mapping[str, Part]) -> list[Slice]:
        """Return the slices of the param parts; a part with one user stays in that user's process, if it can."""
        near: dict[int, list[int]] = {}
        for server, home in enumerate(self.servers):
            near.setdefault(home, []).append(server)
        beside = {}
        for number, (name, part) in enumerate(parts.items()):
            servers = near.get(self.workers[part.users[0]])
            if len(part.users) == 1 and servers:
                beside[name] = servers[number % len(servers)]
        sizes = {name: math.prod(part.shape) for name, part in parts.items()}
        return slice_for_servers(sizes, len(self.servers), self.slicing, beside, whole=self.whole)


def hosts(workers: int, per_process: int, servers: int, slicing: SlicingMethod = SlicingMethod.kSinga) -> Hosts:
    """Return the workers of a group, ``per_process`` in each process, with servers spread over these processes."""
    homes = tuple(worker // per_process for worker in range(workers))
    processes = homes[-1] + 1
    spread = homes if servers == workers else tuple(range(processes))
    return Hosts(homes, tuple(spread[server % len(spread)] for server in range(servers)), slicing)

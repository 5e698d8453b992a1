"""The processes in which the workers and servers of a group run."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple

from dsinga.job import SlicingMethod
from dsinga.layers.interface.layer import Shape
from dsinga.net.layer_cost import FLOAT_BYTES
from dsinga.planner.wire_bytes import WireBytes
from dsinga.server import Slice, cut_into_pieces, slice_for_servers
from dsinga.server.slicing import PIECE_BYTES

# The number of pieces that are simulated; more of them hardly change the time of an iteration.
MOST_PIECES = 64


class ParamUse(NamedTuple):
    """The shape of a param, or of a part of one, and the workers that compute a gradient for it."""

    shape: Shape
    users: tuple[int, ...]


class ProcessMap(NamedTuple):
    """The process number of each worker and of each server of a group.

    ``slicing`` is how params are sliced over the servers; with ``whole`` each param stays in one slice. With
    ``several_hosts`` processes are not all on one host; if there are several processes, they exchange params in pieces.
    ``wire`` says how many bytes numbers take in messages.
    """

    workers: tuple[int, ...]
    servers: tuple[int, ...]
    slicing: SlicingMethod = SlicingMethod.kSinga
    whole: bool = False
    several_hosts: bool = False
    wire: WireBytes = WireBytes()

    def shares_updates(self, server: int) -> bool:
        """Whether all workers are threads of this server's process, where they share the work of its updates."""
        return set(self.workers) == {self.servers[server]}

    def first(self, workers: int) -> ProcessMap:
        """Return the map of the first ``workers`` workers, with the servers of their processes, at least one."""
        if workers == len(self.workers):
            return self
        processes = self.workers[:workers]
        servers = tuple(process for process in self.servers if process in processes) or self.servers[:1]
        return self._replace(workers=processes, servers=servers)

    def slices(self, params: Mapping[str, ParamUse]) -> list[Slice]:
        """Return the slices of the params; a param with one user stays in that user's process if a server is there."""
        servers_of: dict[int, list[int]] = {}
        for server, process in enumerate(self.servers):
            servers_of.setdefault(process, []).append(server)
        nearby = {}
        for number, (name, param) in enumerate(params.items()):
            servers = servers_of.get(self.workers[param.users[0]])
            if len(param.users) == 1 and servers:
                nearby[name] = servers[number % len(servers)]
        sizes = {name: math.prod(param.shape) for name, param in params.items()}
        slices = slice_for_servers(sizes, len(self.servers), self.slicing, nearby, whole=self.whole)
        piece_bytes = self.piece_bytes(sum(sizes.values()))
        if piece_bytes is None:
            return slices
        shared = {name for name, param in params.items() if len(param.users) > 1}
        return cut_into_pieces(slices, piece_bytes // FLOAT_BYTES, shared)

    def piece_bytes(self, numbers: int) -> int | None:
        """Return the size of the pieces in which workers exchange so many numbers; None if slices stay whole."""
        if not self.several_hosts or self.whole or len({*self.workers, *self.servers}) < 2:
            return None
        return max(PIECE_BYTES, FLOAT_BYTES * numbers // MOST_PIECES)


def process_map(
    workers: int, per_process: int, servers: int, slicing: SlicingMethod = SlicingMethod.kSinga
) -> ProcessMap:
    """Return the map of a group with ``per_process`` workers in each process, and servers spread over these."""
    worker_processes = tuple(worker // per_process for worker in range(workers))
    count = worker_processes[-1] + 1
    spread = worker_processes if servers == workers else tuple(range(count))
    return ProcessMap(worker_processes, tuple(spread[server % len(spread)] for server in range(servers)), slicing)

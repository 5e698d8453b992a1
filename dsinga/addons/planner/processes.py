"""Maps a group's workers and servers to processes, and counts the bytes that they send."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple

from dsinga.cluster.server import Slice, cut_into_pieces, slice_for_servers
from dsinga.cluster.server.slicing import PIECE_BYTES
from dsinga.cutting.bridge_messages import is_bf16_image
from dsinga.job import ClusterConf, Compression, Job, SlicingMethod, UpdatePlace
from dsinga.layers.bridge import BridgeEnd
from dsinga.layers.interface.layer import FLOAT_BYTES, Shape

# The number of pieces that are simulated; more of them hardly change the time of an iteration.
MOST_PIECES = 64

BF16_BYTES = 2


class WireBytes(NamedTuple):
    """How many bytes a number takes in messages: of pushed gradients, of replies, and of features."""

    gradient: int = FLOAT_BYTES
    reply: int = FLOAT_BYTES
    bf16: bool = False

    def feature(self, rounded: bool) -> int:
        """Return the bytes of each number of a feature sent between workers; ``rounded``: in the precision kBF16."""
        return BF16_BYTES if self.bf16 and rounded else FLOAT_BYTES

    def bridge(self, bridge: BridgeEnd, back: bool) -> int:
        """Return the bytes of each number that a bridge sends: of its feature or, with ``back``, of the gradient."""
        is_image = is_bf16_image(bridge.shape, bridge.bf16_gradient)
        return self.feature(bridge.bf16_gradient if back else bridge.bf16_feature or is_image)


def wire_bytes(job: Job, bf16: bool) -> WireBytes:
    """Return how many bytes each number takes in a job's messages; kOneBit and kTopK are not priced."""
    conf = job.cluster or ClusterConf()
    rounds = conf.compression is Compression.kBF16
    returns_sums = conf.update is UpdatePlace.kWorker
    return WireBytes(
        BF16_BYTES if rounds else FLOAT_BYTES, BF16_BYTES if rounds and returns_sums else FLOAT_BYTES, bf16
    )


class ParamUse(NamedTuple):
    """The shape of a param or its part, and the workers that compute its gradient."""

    shape: Shape
    users: tuple[int, ...]


class ProcessMap(NamedTuple):
    """The process number of each worker and server of a group.

    With ``whole`` each param stays in one slice. With ``several_hosts`` processes exchange params in pieces.
    """

    workers: tuple[int, ...]
    servers: tuple[int, ...]
    slicing: SlicingMethod = SlicingMethod.kSinga
    whole: bool = False
    several_hosts: bool = False
    wire: WireBytes = WireBytes()

    def shares_updates(self, server: int) -> bool:
        """Whether all workers are threads of this server's process, and share its updates."""
        return set(self.workers) == {self.servers[server]}

    def first(self, workers: int) -> ProcessMap:
        """Restrict the map to the first ``workers`` workers, with their processes' servers, at least one."""
        if workers == len(self.workers):
            return self
        processes = self.workers[:workers]
        servers = tuple(process for process in self.servers if process in processes) or self.servers[:1]
        return self._replace(workers=processes, servers=servers)

    def slices(self, params: Mapping[str, ParamUse]) -> list[Slice]:
        """Slice the params over the servers; a param with one user stays in that user's process if it has a server."""
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
        """Return the size of the pieces in which ``numbers`` numbers are exchanged; None for whole slices."""
        if not self.several_hosts or self.whole or len({*self.workers, *self.servers}) < 2:
            return None
        return max(PIECE_BYTES, FLOAT_BYTES * numbers // MOST_PIECES)


def process_map(
    workers: int, per_process: int, servers: int, slicing: SlicingMethod = SlicingMethod.kSinga
) -> ProcessMap:
    """Create the map of a group with ``per_process`` workers a process, and servers spread over processes."""
    worker_processes = tuple(worker // per_process for worker in range(workers))
    count = worker_processes[-1] + 1
    spread = worker_processes if servers == workers else tuple(range(count))
    return ProcessMap(worker_processes, tuple(spread[server % len(spread)] for server in range(servers)), slicing)

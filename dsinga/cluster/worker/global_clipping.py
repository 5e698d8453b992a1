"""Clips gradients by the global norm: the Euclidean norm of the gradients of all params, over all servers.

Servers add up the workers' gradients, and wait with their updates. One worker of the group asks each server for the
squares of its sums. A collective gives all workers the same norm and factor, which they send to the servers. The order
does not matter, because math.fsum rounds only once.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import NamedTuple

import numpy as np

from dsinga.cluster.worker.bucket_exchange import Wait
from dsinga.cluster.worker.config import WorkerConfig
from dsinga.cluster.worker.server_client import ServerClient
from dsinga.ops import Array
from dsinga.ops.update import norm_factor


class GlobalClipping(NamedTuple):
    """Clips the norm of all gradients of a step together.

    Attributes:
        slices: by server number, the ids in rising order of all slices with squares that this worker reports.
        local: by name, the place of each param without slices with squares that this worker reports.
        size: the number of all slices and params without slices.
    """

    max_norm: float
    slices: Mapping[int, list[int]]
    local: Mapping[str, int]
    size: int
    workers: int

    def clip(
        self, step: int, local: Mapping[str, float], clients: Mapping[int, ServerClient], wait: Wait,
        all_reduce: Callable[[str, Array], Array],
    ) -> float:  # fmt: skip
        """Let servers update by the gradients of ``step`` times a factor that limits their norm; return the factor.

        ``local`` has the sums of squares of gradients that no server gets, by param. If the norm is not finite, the
        factor is 1.
        """
        squares = np.zeros(self.size)
        replies = {server: clients[server].squares(step) for server in self.slices}
        for server, ids in self.slices.items():
            (squares[ids],) = wait(replies[server], f"the norm of the gradients of step {step} from server {server}")
        for name, place in self.local.items():
            squares[place] = local.get(name, 0.0)
        if self.workers > 1:
            squares = all_reduce(f"step {step}/squares of gradients", squares)
        factor = norm_factor(math.sqrt(math.fsum(squares)), self.max_norm)
        for server in self.slices:
            clients[server].clip(step, factor)
        return factor


def global_clipping(config: WorkerConfig, workers: range) -> GlobalClipping | None:
    """Make the clipping of a worker, or of a team's blocks, by the norm of all gradients; None without a bound."""
    max_norm = config.updater.conf.clip_global_norm
    if not max_norm:
        return None
    clipped = [slice_ for slice_ in config.slices if config.params[slice_.param].trainable]
    users: dict[int, int] = {}
    for slice_ in clipped:
        user = config.parts[slice_.param].users[0]
        users[slice_.server] = min(user, users.get(slice_.server, user))
    sliced = {slice_.param for slice_ in config.slices}
    places = {name: len(config.slices) + number for number, name in enumerate(config.parts)}
    return GlobalClipping(
        max_norm,
        {
            server: sorted(slice_.id for slice_ in clipped if slice_.server == server)
            for server, user in users.items()
            if user in workers
        },
        {
            name: places[name]
            for name, part in config.parts.items()
            if name not in sliced and part.users[0] in workers and config.params[name].trainable
        },
        len(config.slices) + len(config.parts),
        config.topology.workers,
    )

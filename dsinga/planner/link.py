"""Latency and bandwidth of the connections between workers."""

from __future__ import annotations

import math
from typing import NamedTuple

from dsinga.planner.barrier import FREE_BARRIER, BarrierCost


class Link(NamedTuple):
    """A connection: ``latency`` in seconds a message, whatever its size, and ``bandwidth`` in bytes a second."""

    latency: float
    bandwidth: float = math.inf

    def seconds(self, size: int) -> float:
        """Return how long a message of ``size`` bytes takes."""
        return self.latency + size / self.bandwidth


class Links(NamedTuple):
    """The connections between the workers of a group.

    Attributes:
        inside: between two workers of one process: a reference is passed, and a thread wakes up.
        ends: what sending or receiving a message costs the processor of either process.
        wire: the way between processes, which takes no processor time.
        shared_memory: the processes share memory: the sender alone copies a message, and params that a server updates
            are visible to workers without being sent.
        barrier_inside: the cost of a barrier of workers of one process.
        barrier_between: the cost of a barrier of workers of several processes.
    """

    inside: Link
    ends: Link
    wire: Link
    shared_memory: bool = False
    barrier_inside: BarrierCost = FREE_BARRIER
    barrier_between: BarrierCost = FREE_BARRIER

    @property
    def between(self) -> Link:
        """The whole connection between two processes: ends and wire overlap, so the slower one's bandwidth counts."""
        return Link(self.ends.latency + self.wire.latency, min(self.ends.bandwidth, self.wire.bandwidth))


# Defaults where nothing is measured: half of an empty call between hosts, and the rate of one that carries 16.8 MB.
INSIDE = Link(100e-6)
ENDS = Link(40e-6, 3e9)
LOOPBACK = Link(0.0)

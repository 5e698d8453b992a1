"""What a message costs: on the way, and the two ends."""

from __future__ import annotations

import math
from typing import NamedTuple

from dsinga.planner.meetings import PUNCTUAL, Lateness


class Link(NamedTuple):
    """``latency`` seconds a message, whatever its size, and ``bandwidth`` bytes a second."""

    latency: float
    bandwidth: float = math.inf

    def seconds(self, size: int) -> float:
        """Return how long ``size`` bytes take."""
        return self.latency + size / self.bandwidth


class Links(NamedTuple):
    """The ways between the workers of a group.

    ``inside`` joins two workers of one process: an array changes hands, and a thread wakes. ``ends`` is what sending
    and receiving cost the processor at either end, in Dask's and the system's software. ``wire`` lies between
    processes, and costs no processor any time. ``mapped`` says that what is sent is laid where the receiver has it
    mapped, and that servers' values lie in such a place: then only who sends pays for bytes, and values do not travel.
    ``late_inside`` and ``late`` say how much later than on average workers of one process, and of several, are where
    they meet.
    """

    inside: Link
    ends: Link
    wire: Link
    mapped: bool = False
    late_inside: Lateness = PUNCTUAL
    late: Lateness = PUNCTUAL

    @property
    def between(self) -> Link:
        """The whole way between two processes: ends and wire work at the same time, at the slower one's rate."""
        return Link(self.ends.latency + self.wire.latency, min(self.ends.bandwidth, self.wire.bandwidth))


# Measured on the machine of engine-facts.md: half of an empty Actor call, and 16.8 MB in one.
INSIDE = Link(100e-6)
ENDS = Link(250e-6, 3e9)
LOOPBACK = Link(0.0)

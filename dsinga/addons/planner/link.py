"""Latency and bandwidth of the connections between workers, and of a network as a user describes it."""

from __future__ import annotations

import math
import re
from typing import NamedTuple

from dsinga.addons.planner.barrier import FREE_BARRIER, BarrierCost
from dsinga.base.errors import UserError


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


SHARED_MEMORY = Link(50e-6, 6e9)  # both ends between processes of one host: a copy by the sender
GIGABIT = Link(100e-6, 125e6)  # a switched gigabit network

NUMBER = r"\s*([\d.]+(?:e[+-]?\d+)?)\s*"
BITS = re.compile(NUMBER + r"([kKMGT]?)(?:bits?(?:/s)?|bps|b/s)\s*")
BYTES = re.compile(NUMBER + r"(?:([kmgtp])(i?)b?|b)(?:/s)?\s*", re.IGNORECASE)
TIME = re.compile(NUMBER + r"([a-z]+)\s*", re.IGNORECASE)
POWERS = {prefix: power for power, prefix in enumerate(["", "k", "m", "g", "t", "p"])}
SECONDS = {
    "ns": 1e-9, "nanosecond": 1e-9, "us": 1e-6, "microsecond": 1e-6, "ms": 1e-3, "millisecond": 1e-3,
    "s": 1.0, "second": 1.0, "m": 60.0, "minute": 60.0, "h": 3600.0, "hour": 3600.0,
}  # fmt: skip


def parse_network(bandwidth: str | None, latency: str | None) -> Link | None:
    """Return the network that a user describes, None without a description.

    A missing figure is that of a gigabit network. Raises UserError for bad figures.
    """
    if bandwidth is None and latency is None:
        return None
    return Link(
        parse_latency(latency) if latency is not None else GIGABIT.latency,
        parse_bandwidth(bandwidth) if bandwidth is not None else GIGABIT.bandwidth,
    )


def parse_bandwidth(text: str) -> float:
    """Return a bandwidth in bytes a second.

    Bits are counted in powers of 1000, as for networks (``1Gbit`` is 125,000,000 bytes a second; ``/s`` may follow),
    and bytes in powers of 1000 or 1024 (``100MB``, ``1GiB/s``). Raises UserError for any other text, and for 0.
    """
    rate = 0.0
    try:
        if bits := BITS.fullmatch(text):
            rate = float(bits[1]) * 1000.0 ** POWERS[bits[2].lower()] / 8
        elif size := BYTES.fullmatch(text):
            rate = float(size[1]) * (1024.0 if size[3] else 1000.0) ** POWERS[(size[2] or "").lower()]
    except ValueError:  # not a number, such as 1..2
        pass
    if not 0 < rate < math.inf:
        raise UserError(f"{text!r} is no bandwidth; write one such as 1Gbit, 200Mbit or 100MB/s")
    return rate


def parse_latency(text: str) -> float:
    """Return a latency in seconds. Raises UserError for a text that is not a number with a unit of time."""
    seconds = math.inf
    try:
        if time := TIME.fullmatch(text):
            unit = time[2].lower()
            seconds = float(time[1]) * SECONDS.get(unit, SECONDS.get(unit.removesuffix("s"), math.inf))
    except ValueError:
        pass
    if not 0 <= seconds < math.inf:
        raise UserError(f"{text!r} is no latency; write one such as 0.1ms or 50us")
    return seconds

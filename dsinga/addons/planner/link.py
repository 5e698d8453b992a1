"""The connections between workers: their latency and bandwidth, and what a barrier costs.

Workers with equal work take different times, so the faster one waits. Delays add up like a random walk, so a barrier's
cost grows with the square root of the time since the last one.
"""

from __future__ import annotations

import functools
import math
import re
import statistics
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import numpy as np

from dsinga.base.errors import UserError
from dsinga.cluster.transport.interface import DirectTransport, Transport
from dsinga.cluster.worker.exchange_options import Meter
from dsinga.cluster.worker.mailbox import GroupPeers

NUMBERS = 1 << 16  # float32 to compute tanh of: about 0.25 ms, and they fit into a core's cache
BLOCKS = 6  # repetitions; the first one is a warm-up
BARRIERS = {8: 12, 96: 4}  # passes over NUMBERS before each barrier -> barriers in a block


class BarrierCost(NamedTuple):
    """Measured seconds of a barrier after ``short`` and ``long`` seconds of computing."""

    short: float
    long: float
    after_short: float
    after_long: float

    def seconds(self, computed: float) -> float:
        """Interpolate the cost after ``computed`` seconds by the square root."""
        near, far = math.sqrt(self.short), math.sqrt(self.long)
        rise = max(self.after_long - self.after_short, 0.0) / (far - near)
        return max(self.after_short + rise * (min(math.sqrt(computed), far) - near), 0.0)


FREE_BARRIER = BarrierCost(1e-3, 2e-3, 0.0, 0.0)


def time_barriers(wait: Callable[[], object]) -> list[tuple[float, float]]:
    """Compute and wait at a barrier repeatedly, together with other threads or processes, and time both.

    Returns medians of (seconds of computing, seconds added by the barrier) for the short and the long interval.
    """
    numbers = np.linspace(-1, 1, NUMBERS, dtype=np.float32)
    tanh = np.empty_like(numbers)

    def block(passes: int, barriers: int) -> tuple[float, float]:
        wait()
        computing, started = 0.0, time.perf_counter()
        for _ in range(barriers):
            compute_started = time.perf_counter()
            for _ in range(passes):
                np.tanh(numbers, out=tanh)
            computing += time.perf_counter() - compute_started
            wait()
        return computing / barriers, (time.perf_counter() - started - computing) / barriers

    blocks = [[block(*setting) for setting in BARRIERS.items()] for _ in range(BLOCKS)][1:]
    return [_medians(pairs) for pairs in zip(*blocks, strict=True)]


def barrier_cost(timings: Sequence[Sequence[tuple[float, float]]], message_seconds: float) -> BarrierCost:
    """Compute the cost of a barrier from each participant's :func:`time_barriers`, less ``message_seconds``."""
    (short, after_short), (long, after_long) = (
        tuple(statistics.fmean(column) for column in zip(*pairs, strict=True)) for pairs in zip(*timings, strict=True)
    )
    return BarrierCost(short, long, max(after_short - message_seconds, 0.0), max(after_long - message_seconds, 0.0))


def _medians(pairs: Sequence[tuple[float, float]]) -> tuple[float, float]:
    computing, waiting = (statistics.median(column) for column in zip(*pairs, strict=True))
    return computing, waiting


TIMEOUT_SECONDS = 30.0  # for two participants to wait for each other


def measure_barrier() -> BarrierCost:
    """Measure the cost of a barrier of two threads, without its messages."""
    groups = [GroupPeers(TIMEOUT_SECONDS, Meter()) for _ in range(2)]
    transports = [DirectTransport(functools.partial(getattr, group, "mailbox"), "a thread") for group in groups[::-1]]
    with ThreadPoolExecutor(2) as pool:
        timings = list(pool.map(time_peer_barriers, groups, transports))
    return rounded_cost(timings, INSIDE.latency)


def time_peer_barriers(group: GroupPeers, transport: Transport) -> list[tuple[float, float]]:
    """Time barriers with one peer; see :func:`time_barriers`."""
    group.connect([transport])
    token = np.zeros(1, np.float32)

    def wait() -> None:
        group.begin("a measurement")
        group.send(0, "here", token)
        group.receive("here")
        group.finish()

    return time_barriers(wait)


def rounded_cost(timings: list[list[tuple[float, float]]], message_seconds: float) -> BarrierCost:
    """Compute the cost of a barrier as :func:`barrier_cost` does, rounded."""
    return BarrierCost(*map(round_figure, barrier_cost(timings, message_seconds)))


def round_figure(figure: float) -> float:
    """Round to a quarter of a power of two, so that noise below 9 percent seldom changes a partitioning."""
    return 2.0 ** (round(4 * math.log2(max(figure, 1e-9))) / 4)


class Link(NamedTuple):
    """A connection: ``latency`` in seconds a message, and ``bandwidth`` in bytes a second."""

    latency: float
    bandwidth: float = math.inf

    def seconds(self, size: int) -> float:
        """Return the seconds that a message of ``size`` bytes takes."""
        return self.latency + size / self.bandwidth


class Links(NamedTuple):
    """The measured connections between the workers of a group.

    Attributes:
        inside: within one process, by reference.
        ends: the processor time of sending or receiving a message.
        wire: the way between processes, without processor time.
        shared_memory: only the sender copies a message, and workers see params that a server updates without a message.
        barrier_inside: the cost of a barrier within a process.
        barrier_between: the cost of a barrier between processes.
    """

    inside: Link
    ends: Link
    wire: Link
    shared_memory: bool = False
    barrier_inside: BarrierCost = FREE_BARRIER
    barrier_between: BarrierCost = FREE_BARRIER

    @property
    def between(self) -> Link:
        """The connection between two processes: ends and wire overlap; the lower bandwidth counts."""
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
    """Parse the network that a user describes; None without one.

    A missing figure defaults to a gigabit network's.
    """
    if bandwidth is None and latency is None:
        return None
    return Link(
        parse_latency(latency) if latency is not None else GIGABIT.latency,
        parse_bandwidth(bandwidth) if bandwidth is not None else GIGABIT.bandwidth,
    )


def parse_bandwidth(text: str) -> float:
    """Parse a bandwidth; return bytes a second.

    Bits have prefixes of 1000 (``1Gbit`` is 125,000,000 bytes a second), bytes of 1000 or 1024 (``100MB``, ``1GiB``);
    ``/s`` may follow.
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
    """Parse a latency such as "0.1ms"; return seconds."""
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

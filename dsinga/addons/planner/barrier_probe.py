"""Measuring the cost of a barrier through the mailboxes of workers, between threads or processes."""

from __future__ import annotations

import functools
import math
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from dsinga.addons.planner.barrier import BarrierCost, barrier_cost, time_barriers
from dsinga.addons.planner.link import INSIDE
from dsinga.cluster.transport.interface import DirectTransport, Transport
from dsinga.cluster.worker.exchange_options import Meter
from dsinga.cluster.worker.mailbox import GroupPeers

TIMEOUT_SECONDS = 30.0  # for two participants to wait for each other


def measure_barrier() -> BarrierCost:
    """Return the cost of a barrier of two threads of this process, without its messages."""
    groups = [GroupPeers(TIMEOUT_SECONDS, Meter()) for _ in range(2)]
    transports = [DirectTransport(functools.partial(getattr, group, "mailbox"), "a thread") for group in groups[::-1]]
    with ThreadPoolExecutor(2) as pool:
        timings = list(pool.map(time_peer_barriers, groups, transports))
    return rounded_cost(timings, INSIDE.latency)


def time_peer_barriers(group: GroupPeers, transport: Transport) -> list[tuple[float, float]]:
    """Return what :func:`~dsinga.addons.planner.barrier.time_barriers` does, for barriers with one peer."""
    group.connect([transport])
    token = np.zeros(1, np.float32)

    def wait() -> None:
        group.begin("a measurement")
        group.send(0, "here", token)
        group.receive("here")
        group.finish()

    return time_barriers(wait)


def rounded_cost(timings: list[list[tuple[float, float]]], message_seconds: float) -> BarrierCost:
    """Return the cost of a barrier given the participants' timings, rounded as :func:`round_figure` does."""
    return BarrierCost(*map(round_figure, barrier_cost(timings, message_seconds)))


def round_figure(figure: float) -> float:
    """Return a measured figure rounded to a quarter of a power of two.

    Noise of less than 9 percent then seldom changes the figure, and the partitioning that is chosen by it.
    """
    return 2.0 ** (round(4 * math.log2(max(figure, 1e-9))) / 4)

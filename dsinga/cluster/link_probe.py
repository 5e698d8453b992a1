"""What a message between two workers of a running cluster takes, on the way that exchange and bridges would go."""

from __future__ import annotations

import statistics
import time
import uuid
import weakref
from collections.abc import Sequence
from typing import Any

import numpy as np
from distributed import Client

from dsinga.cluster.placement import host, process
from dsinga.cluster.supervision import gather
from dsinga.errors import RunError
from dsinga.planner.barrier import BarrierCost
from dsinga.planner.barrier_probe import (
    TIMEOUT_SECONDS,
    measure_barrier,
    round_figure,
    rounded_cost,
    time_peer_barriers,
)
from dsinga.planner.link import ENDS, INSIDE, LOOPBACK, Link, Links
from dsinga.transport.actor import ActorEndpoint
from dsinga.transport.endpoints import Endpoint, connect
from dsinga.transport.interface import Items
from dsinga.transport.shared_memory import SharedMemoryTransport, connect_to_host
from dsinga.worker.mailbox import GroupPeers
from dsinga.worker.meter import Meter

SMALL, LARGE = 1 << 16, 1 << 24  # bytes
CALLS = {0: 40, SMALL: 20, LARGE: 5}


class EchoService:
    """A service that accepts arrays and drops them."""

    def handle(self, method: str, fields: Sequence[Any], items: Items) -> None:
        """Accept arrays."""

    def close(self, message: str) -> None:
        """Do nothing."""


class EchoActor(ActorEndpoint):
    """Actor: accepts arrays as a server does, from its own host through shared memory."""

    def __init__(self, name: str):
        service = EchoService()
        super().__init__(service, TIMEOUT_SECONDS)
        weakref.finalize(self, Endpoint(name, service).close, "the measurement has ended")


def measure_links(client: Client, addresses: Sequence[str]) -> Links:
    """Return the ways between the Dask workers at ``addresses``, the first two processes standing for all.

    Figures are rounded to a quarter of a power of two: what is chosen by them must not change with the noise of the
    next measurement. Raises RunError where a worker is lost meanwhile.
    """
    homes = list({process(address): address for address in reversed(addresses)}.values())[::-1]
    here = client.submit(measure_barrier, workers=[homes[0]], pure=False)
    (inside,) = gather(client, [here], homes[:1])
    if len(homes) < 2:
        return Links(INSIDE, ENDS, LOOPBACK, False, inside, inside)
    one, other = homes[:2]
    name = uuid.uuid4().hex
    echo = client.submit(EchoActor, name, workers=[other], actor=True, pure=False)  # it lives as long as this future
    timed = client.submit(_time_calls, echo, name, workers=[one], pure=False)
    seconds, mapped = gather(client, [timed], homes[:2])[0]
    found = link_of(seconds)
    if host(one) != host(other):
        wire = found._replace(latency=max(found.latency - ENDS.latency, 0.0))
        return Links(INSIDE, ENDS, wire, False, inside, inside)
    late = _measure_barrier_between(client, one, other, found) if mapped else inside
    return Links(INSIDE, found, LOOPBACK, mapped, inside, late)


def _measure_barrier_between(client: Client, one: str, other: str, link: Link) -> BarrierCost:
    """Return the cost of a barrier of two Dask workers, without its two messages."""
    names = uuid.uuid4().hex, uuid.uuid4().hex
    both = [
        client.submit(_time_barriers_with, names[0], names[1], workers=[one], pure=False),
        client.submit(_time_barriers_with, names[1], names[0], workers=[other], pure=False),
    ]
    return rounded_cost(gather(client, both, [one, other]), 2 * link.latency)


def link_of(seconds: dict[int, float]) -> Link:
    """Return the link that takes so many seconds for calls, there and back, with so many bytes."""
    rate = (LARGE - SMALL) / max(seconds[LARGE] - seconds[SMALL], 1e-9)
    return Link(round_figure(seconds[0] / 2), round_figure(rate))


def _time_calls(actor: Any, name: str) -> tuple[dict[int, float], bool]:
    """Task: return the median seconds of a call by the bytes that it carries, and whether shared memory carries it."""
    transport = connect(name, actor)
    medians = {}
    for size, calls in CALLS.items():
        array = np.zeros(size, np.uint8)
        transport.call("echo", (), [array]).result()
        times = []
        for _ in range(calls):
            started = time.perf_counter()
            transport.call("echo", (), [array]).result()
            times.append(time.perf_counter() - started)
        medians[size] = statistics.median(times)
    transport.close()
    return medians, isinstance(transport, SharedMemoryTransport)


def _time_barriers_with(name: str, other: str) -> list[tuple[float, float]]:
    """Task: return the times of computing and of barriers with the process that serves under ``other``."""
    peers = GroupPeers(TIMEOUT_SECONDS, Meter())
    endpoint = Endpoint(name, peers.mailbox)
    try:
        deadline = time.monotonic() + TIMEOUT_SECONDS
        while (transport := connect_to_host(other)) is None:
            if time.monotonic() > deadline:
                raise RunError(f"waited {TIMEOUT_SECONDS:g} s for another process of this host")
            time.sleep(0.01)  # until Dask starts the other process's task
        return time_peer_barriers(peers, transport)
    finally:
        endpoint.close("the measurement has ended")

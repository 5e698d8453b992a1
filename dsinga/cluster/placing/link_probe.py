"""Measures messages and barriers between Dask workers of a running cluster, by the transports that a run would use."""

from __future__ import annotations

import statistics
import time
import uuid
import weakref
from collections.abc import Sequence
from typing import Any

import numpy as np
from distributed import Client

from dsinga.cluster.dask.dask_workers import host, process
from dsinga.cluster.dask.run_span import run_span
from dsinga.cluster.dask.supervision import gather
from dsinga.cluster.on_workers.connections import connection_to, serve_connections
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
from dsinga.transport.endpoints import Endpoint, connect
from dsinga.transport.handshake import Secret
from dsinga.transport.interface import Items
from dsinga.transport.shared_memory import SharedMemoryTransport, connect_to_host
from dsinga.worker.exchange_options import Meter
from dsinga.worker.mailbox import GroupPeers

SMALL, LARGE = 1 << 16, 1 << 24  # bytes
CALLS = {0: 40, SMALL: 20, LARGE: 5}  # the number of timed calls, by the bytes that each carries
CONNECT_CHECK_SECONDS = 0.01  # between two attempts to connect to a task that may not have started


class EchoService:
    """A service that accepts arrays and drops them, to time calls."""

    def handle(self, method: str, fields: Sequence[Any], items: Items) -> None:
        """Accept arrays and return nothing."""

    def close(self, message: str) -> None:
        """Do nothing."""


class EchoActor:
    """An Actor that offers :class:`EchoService` as a server offers its shard."""

    def __init__(self, name: str, secret: Secret):
        serve_connections()
        weakref.finalize(self, Endpoint(name, EchoService(), secret=secret).close, "the measurement has ended")


def measure_links(client: Client, addresses: Sequence[str]) -> Links:
    """Measure the links between Dask workers; those between the first two processes stand for all.

    Figures are rounded to a quarter of a power of two, so that the noise of measurements seldom changes a partitioning
    that is chosen by them. Raises RunError where a Dask worker is lost meanwhile.
    """
    process_addresses = list({process(address): address for address in reversed(addresses)}.values())[::-1]
    first = process_addresses[0]
    with run_span():
        barrier = client.submit(measure_barrier, workers=[first], pure=False)
    (inside,) = gather(client, [barrier], [first])
    if len(process_addresses) < 2:
        return Links(INSIDE, ENDS, LOOPBACK, False, inside, inside)
    second = process_addresses[1]
    name, secret = uuid.uuid4().hex, Secret()
    with run_span():
        # It lives as long as this future.
        echo = client.submit(EchoActor, name, secret, workers=[second], actor=True, pure=False)
        calls = client.submit(_time_calls, second, name, secret, echo, workers=[first], pure=False)
    seconds, shared_memory = gather(client, [calls], [first, second])[0]
    link = link_of(seconds)
    if host(first) != host(second):
        wire = link._replace(latency=max(link.latency - ENDS.latency, 0.0))
        return Links(INSIDE, ENDS, wire, False, inside, inside)
    between = _measure_barrier_between(client, first, second, link) if shared_memory else inside
    return Links(INSIDE, link, LOOPBACK, shared_memory, inside, between)


def _measure_barrier_between(client: Client, first: str, second: str, link: Link) -> BarrierCost:
    """Return the cost of a barrier of two Dask workers, without its two messages."""
    names, secret = (uuid.uuid4().hex, uuid.uuid4().hex), Secret()
    with run_span():
        timings = [
            client.submit(_time_barriers, names[0], names[1], secret, workers=[first], pure=False),
            client.submit(_time_barriers, names[1], names[0], secret, workers=[second], pure=False),
        ]
    return rounded_cost(gather(client, timings, [first, second]), 2 * link.latency)


def link_of(seconds: dict[int, float]) -> Link:
    """Return the link on which calls take these ``seconds``, by the bytes that they carry, reply included."""
    rate = (LARGE - SMALL) / max(seconds[LARGE] - seconds[SMALL], 1e-9)
    return Link(round_figure(seconds[0] / 2), round_figure(rate))


def _time_calls(address: str, name: str, secret: Secret, echo: Any) -> tuple[dict[int, float], bool]:
    """Task: return the median seconds of a call, by the bytes that it carries, and whether it uses shared memory.

    The service ``name`` is on the Dask worker ``address``, and lives as long as the Actor ``echo``.
    """
    transport = connect(name, connection_to(address, name), secret)
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


def _time_barriers(name: str, peer_name: str, secret: Secret) -> list[tuple[float, float]]:
    """Task: return the seconds of computing and of barriers with the process that serves under ``peer_name``."""
    peers = GroupPeers(TIMEOUT_SECONDS, Meter())
    endpoint = Endpoint(name, peers.mailbox, secret=secret)
    try:
        deadline = time.monotonic() + TIMEOUT_SECONDS
        while (transport := connect_to_host(peer_name, secret)) is None:
            if time.monotonic() > deadline:
                raise RunError(f"waited {TIMEOUT_SECONDS:g} s for the other Dask worker to take part in a measurement")
            time.sleep(CONNECT_CHECK_SECONDS)
        return time_peer_barriers(peers, transport)
    finally:
        endpoint.close("the measurement has ended")

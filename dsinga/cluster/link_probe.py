"""What a message between two workers of a running cluster takes, on the way that exchange and bridges would go."""

from __future__ import annotations

import contextlib
import statistics
import time
import uuid
import weakref
from collections.abc import Callable, Sequence
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
from dsinga.transport.hostcalls import Guest, Listener, connect
from dsinga.worker.mailbox import Courier, GroupPeers
from dsinga.worker.meter import Meter

SMALL, LARGE = 1 << 16, 1 << 24  # bytes
CALLS = {0: 40, SMALL: 20, LARGE: 5}


class EchoActor:
    """Actor: takes arrays and forgets them, from its own host through shared memory, as a server does."""

    def __init__(self, name: str):
        with contextlib.suppress(OSError, AttributeError):
            weakref.finalize(self, Listener(name, _acknowledge).close)

    async def take(self, array: Any) -> None:
        """Take an array."""


def _acknowledge(guest: Guest, number: int | None, array: Any) -> None:
    guest.answer(number)


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
    taker = client.submit(EchoActor, name, workers=[other], actor=True, pure=False)  # it lives as long as this future
    timed = client.submit(_time_calls, taker, name, workers=[one], pure=False)
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


def _time_calls(taker: Any, name: str) -> tuple[dict[int, float], bool]:
    """Task: return the median seconds of a call, by the bytes that it carries, and whether memory is mapped for it."""
    found = connect(name)
    take: Callable[[Any], Any] = taker.take if found is None else found[0].call
    medians = {}
    for size, calls in CALLS.items():
        array = np.zeros(size, np.uint8)
        take(array).result()
        times = []
        for _ in range(calls):
            started = time.perf_counter()
            take(array).result()
            times.append(time.perf_counter() - started)
        medians[size] = statistics.median(times)
    return medians, found is not None


def _time_barriers_with(own: str, other: str) -> list[tuple[float, float]]:
    """Task: return the times of computing and of barriers with the process that listens under ``other``."""
    mail = GroupPeers(TIMEOUT_SECONDS, Meter())
    mail.listen(own)
    try:
        deadline = time.monotonic() + TIMEOUT_SECONDS
        while (found := connect(other)) is None:
            if time.monotonic() > deadline:
                raise RunError(f"waited {TIMEOUT_SECONDS:g} s for another process of this host")
            time.sleep(0.01)  # Dask begins the other's task when it comes to it
        return time_peer_barriers(mail, Courier(found[0]))
    finally:
        mail.close()

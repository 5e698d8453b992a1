"""What a message between two workers of a running cluster takes, on the way that exchange and bridges would go."""

from __future__ import annotations

import contextlib
import math
import statistics
import time
import uuid
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from distributed import Client

from dsinga.cluster.hostcalls import Guest, Listener, connect
from dsinga.cluster.placement import host, process
from dsinga.cluster.watch import gather
from dsinga.planner.link import ENDS, INSIDE, LOOPBACK, Link, Links

SMALL, LARGE = 1 << 16, 1 << 24  # bytes
CALLS = {0: 40, SMALL: 20, LARGE: 5}


class Taker:
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
    if len(homes) < 2:
        return Links(INSIDE, ENDS, LOOPBACK)
    one, other = homes[:2]
    name = uuid.uuid4().hex
    taker = client.submit(Taker, name, workers=[other], actor=True, pure=False)  # it lives as long as this future
    timed = client.submit(_time_calls, taker, name, workers=[one], pure=False)
    seconds, mapped = gather(client, [timed], homes[:2])[0]
    found = link_of(seconds)
    if host(one) == host(other):
        return Links(INSIDE, found, LOOPBACK, mapped)
    return Links(INSIDE, ENDS, found._replace(latency=max(found.latency - ENDS.latency, 0.0)))


def link_of(seconds: dict[int, float]) -> Link:
    """Return the link that takes so many seconds for calls, there and back, with so many bytes."""
    rate = (LARGE - SMALL) / max(seconds[LARGE] - seconds[SMALL], 1e-9)
    return Link(_near(seconds[0] / 2), _near(rate))


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


def _near(figure: float) -> float:
    """Return the figure within 9 percent, so that a choice that rests on it seldom changes from run to run."""
    return 2.0 ** (round(4 * math.log2(max(figure, 1e-9))) / 4)

"""Server groups that tell each other, from whichever thread an update runs in."""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from distributed import Client, get_worker

from dsinga.cluster.server_links import _way
from dsinga.worker.local_servers import ServerKey

pytestmark = pytest.mark.process


class Listener:
    """What a server of another group is to the one that tells it."""

    def __init__(self) -> None:
        self._heard: list[tuple[int, list[int], list[float]]] = []

    async def receive(self, route: int, ids: Sequence[int], joined: np.ndarray) -> None:
        self._heard.append((route, list(ids), joined.tolist()))

    async def heard(self) -> list[tuple[int, list[int], list[float]]]:
        return self._heard


def tell_from_a_thread_that_dask_does_not_know(actor: Any) -> None:
    """Task: have the actor as such a thread gets it, and tell it something from there."""
    loop = get_worker().loop.asyncio_loop
    with ThreadPoolExecutor(1) as strange:
        received = strange.submit(pickle.loads, pickle.dumps(actor)).result()
        way = _way(ServerKey("run", 0, 1, 0), received, loop)
        strange.submit(way, 2, [5], [np.ones(3, np.float32)]).result().result(timeout=10)


def test_an_update_in_any_thread_tells_the_neighbours(processes: Client) -> None:
    """Calls from another process of this host come in a thread of the road's own, which Dask knows nothing of."""
    there, here = list(processes.scheduler_info()["workers"])[:2]
    with processes.as_current():
        listener = processes.submit(Listener, actor=True, workers=[there]).result(timeout=30)
        processes.submit(tell_from_a_thread_that_dask_does_not_know, listener, workers=[here]).result(timeout=30)
        assert listener.heard().result(timeout=10) == [(2, [5], [1.0, 1.0, 1.0])]

"""Servers send their changes to linked server groups from whichever thread an update runs in."""

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


class ChangeRecorder:
    """An actor in place of a server of a linked group, which keeps the changes that it receives."""

    def __init__(self) -> None:
        self._changes: list[tuple[int, list[int], list[float]]] = []

    async def receive(self, route: int, ids: Sequence[int], joined: np.ndarray) -> None:
        self._changes.append((route, list(ids), joined.tolist()))

    async def changes(self) -> list[tuple[int, list[int], list[float]]]:
        return self._changes


def send_from_a_thread_unknown_to_dask(actor: Any) -> None:
    """Task: unpickle the actor in a thread unknown to Dask, and send it a change from another one."""
    loop = get_worker().loop.asyncio_loop
    with ThreadPoolExecutor(1) as pool:
        received = pool.submit(pickle.loads, pickle.dumps(actor)).result()
        way = _way(ServerKey("run", 0, 1, 0), received, loop)
        pool.submit(way, 2, [5], [np.ones(3, np.float32)]).result().result(timeout=10)


def test_changes_are_sent_from_any_thread(processes: Client) -> None:
    """Calls from another process of this host run in a thread of the transport, which Dask does not know."""
    remote, local = list(processes.scheduler_info()["workers"])[:2]
    with processes.as_current():
        recorder = processes.submit(ChangeRecorder, actor=True, workers=[remote]).result(timeout=30)
        processes.submit(send_from_a_thread_unknown_to_dask, recorder, workers=[local]).result(timeout=30)
        assert recorder.changes().result(timeout=10) == [(2, [5], [1.0, 1.0, 1.0])]

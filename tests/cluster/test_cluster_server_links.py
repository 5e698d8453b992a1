"""Servers of other groups get changes from whichever thread an update runs in."""

from __future__ import annotations

import socket
import uuid
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import dask
import numpy as np
import pytest
from distributed import Client

from dsinga.cluster.on_workers.connections import connection_to, serve_connections
from dsinga.cluster.on_workers.server_actor import ServerLink
from dsinga.errors import RunError, WorkerLost
from dsinga.transport.endpoints import Endpoint, connect
from dsinga.transport.remote import RemoteTransport
from dsinga.worker.config import ServerKey

pytestmark = pytest.mark.process


class Receiver:
    """A service that keeps what it receives."""

    def __init__(self) -> None:
        self.received: list[tuple[int, list[int], list[float]]] = []

    def handle(self, method: str, fields: Sequence[Any], items: Sequence[Any]) -> None:
        route, ids, sender, generation = fields
        assert (sender, generation) == (1, 3)
        self.received.append((route, list(ids), items[0].tolist()))

    def close(self, message: str) -> None: ...


class ReceiverActor:
    """A server of another group."""

    def __init__(self, name: str):
        serve_connections()
        self._receiver = Receiver()
        self._endpoint = Endpoint(name, self._receiver)

    async def received(self) -> list[tuple[int, list[int], list[float]]]:
        return self._receiver.received


def send(link: ServerLink) -> None:
    try:
        for route in range(3):
            link.send(route, [5], [np.full(3, route, np.float32)]).result(timeout=10)
    finally:
        link.close("the test is over")


def send_from_a_thread_that_dask_does_not_know(address: str, name: str, shared: bool) -> bool:
    """Task: connect to the service, and send changes from a thread that has no Dask worker."""
    connection = connection_to(address, name)
    transport = connect(name) if shared else RemoteTransport(connection())
    with ThreadPoolExecutor(1) as pool:
        pool.submit(send, ServerLink(transport, ServerKey("run", 3, 1, 0), 10.0)).result(timeout=30)
    return transport.crosses_host


@pytest.mark.parametrize("shared", [False, True])
def test_changes_are_sent_from_any_thread(processes: Client, shared: bool) -> None:
    there, here = list(processes.scheduler_info()["workers"])[:2]
    name = uuid.uuid4().hex
    with processes.as_current():
        actor = processes.submit(ReceiverActor, name, actor=True, workers=[there]).result(timeout=30)
        task = processes.submit(send_from_a_thread_that_dask_does_not_know, there, name, shared, workers=[here])
        assert task.result(timeout=30) is not shared
        expected = [(route, [5], [route] * 3) for route in range(3)]
        assert actor.received().result(timeout=10) == expected


def test_a_service_that_has_left_this_process_is_missed_at_once() -> None:
    """Else a worker that begins when its run has ended already would hold its thread until Dask's time limit."""
    connect = connection_to("inproc://192.0.2.1/1/2", "server 0", node=object())
    with pytest.raises(RunError, match="server 0 is not on the Dask worker inproc://192.0.2.1/1/2: the run has ended"):
        connect()


def test_a_process_that_has_ended_is_missed_soon(processes: Client) -> None:
    with socket.socket() as ended:
        ended.bind(("127.0.0.1", 0))  # nobody listens there
        address = f"tcp://127.0.0.1:{ended.getsockname()[1]}"
        with dask.config.set({"distributed.comm.timeouts.connect": "10m"}):
            opening = ThreadPoolExecutor(1).submit(connection_to(address, "server", processes))
            with pytest.raises(WorkerLost, match=f"no connection to the Dask worker {address}"):
                opening.result(timeout=60)

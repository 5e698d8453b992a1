"""Connections to a service that has left, or to a process that has ended, are refused soon."""

import socket
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import dask
import numpy as np
import pytest
from distributed import Client

from dsinga.base.errors import RunError, WorkerLost
from dsinga.cluster.on_workers.connections import connection_to
from dsinga.cluster.on_workers.server_actor import ServerLink
from dsinga.cluster.transport.handshake import PROCESS_SECRET
from dsinga.cluster.transport.remote import RemoteCaller, RemoteTransport
from dsinga.cluster.worker.config import ServerKey
from tests.support.refusals import refused

pytestmark = pytest.mark.process


def test_a_service_that_has_left_this_process_is_missed_at_once() -> None:
    """Else a worker that begins when its run has ended already would hold its thread until Dask's time limit."""
    connect = connection_to("inproc://192.0.2.1/1/2", "server 0", node=object())
    refused(connect, "server 0 is not on the Dask worker inproc://192.0.2.1/1/2: the run has ended", error=RunError)


def test_a_process_that_has_ended_is_missed_soon(processes: Client) -> None:
    with socket.socket() as ended:
        ended.bind(("127.0.0.1", 0))  # nobody listens there
        address = f"tcp://127.0.0.1:{ended.getsockname()[1]}"
        with dask.config.set({"distributed.comm.timeouts.connect": "10m"}):
            opening = ThreadPoolExecutor(1).submit(connection_to(address, "server", processes))
            refused(lambda: opening.result(timeout=60), f"no connection to the Dask worker {address}", error=WorkerLost)


class AnswersWhenAllHaveCome:
    """A service that answers the calls only when so many have come."""

    def __init__(self, count: int):
        self.count, self.answers = count, list[Future[Any]]()

    def handle(self, method: str, fields: Sequence[Any], items: Any) -> Future[Any]:
        self.answers.append(Future())
        if len(self.answers) == self.count:
            for answer in self.answers:
                answer.set_result([])
        return self.answers[-1]

    def close(self, message: str) -> None:
        pass


def test_changes_to_another_host_do_not_wait_for_each_other() -> None:
    """Else an outer step would take a round trip for each slice, 40 ms between sites."""
    ours, theirs = socket.socketpair()
    caller = RemoteCaller(theirs, AnswersWhenAllHaveCome(3), None, lambda caller: None)
    link = ServerLink(RemoteTransport(ours), ServerKey("run", 0, 0, 0, PROCESS_SECRET), 30.0)
    try:
        received = [link.send(0, [id, 25, 0], [np.ones(8, np.float32)]) for id in range(3)]
        assert [list(future.result(30)) for future in received] == [[], [], []]
        assert link.sent == 3 * 32
    finally:
        link.close("the test has ended")
        caller.close()


class UnansweredTransport:
    """A transport to another host, whose replies come when the test says so."""

    crosses_process = crosses_host = True

    def __init__(self) -> None:
        self.replies = list[Future[Any]]()

    def call(self, *_: Any) -> Future[Any]:
        self.replies.append(Future())
        return self.replies[-1]

    def close(self) -> None:
        pass


def test_the_seconds_of_a_link_count_while_changes_overlap() -> None:
    """Else a link that is always in use would show none."""
    transport = UnansweredTransport()
    link = ServerLink(transport, ServerKey("run", 0, 0, 0, PROCESS_SECRET), 30.0)  # type: ignore[arg-type]
    seconds = []
    for id in range(3):
        link.send(0, [id, 25, 0], [np.ones(8, np.float32)])
        if id:
            transport.replies[id - 1].set_result([])
            seconds.append(link.seconds)
    transport.replies[-1].set_result([])
    assert 0 < seconds[0] < seconds[1] < link.seconds

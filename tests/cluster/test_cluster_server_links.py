"""Connections to a service that has left, or to a process that has ended, are refused soon."""

from __future__ import annotations

import socket
from concurrent.futures import ThreadPoolExecutor

import dask
import pytest
from distributed import Client

from dsinga.base.errors import RunError, WorkerLost
from dsinga.cluster.on_workers.connections import connection_to

pytestmark = pytest.mark.process


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

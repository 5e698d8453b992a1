"""Clients of tasks."""

import threading

from dsinga.cluster import connect
from dsinga.cluster.dask.dask_workers import task_client

_both = threading.Barrier(2)


def test_there_is_none_outside_of_tasks() -> None:
    assert task_client() is None


def test_dask_workers_of_one_process_that_ask_at_once_have_connected_clients() -> None:
    for _ in range(5):  # the first question in a cluster makes the client
        with connect(workers=2) as client:
            addresses = client.scheduler_info()["workers"]
            states = [client.submit(state_of_client, workers=[address], pure=False) for address in addresses]
            assert client.gather(states) == ["running", "running"]


def state_of_client() -> str:
    """Return the state of the client of this task, after another one has come as far."""
    _both.wait(60)
    client = task_client()
    return client.status

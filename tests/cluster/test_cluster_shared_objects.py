"""Objects that several Dask workers keep, and what happens when one of these dies."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator

import dask.config
import pytest
from distributed import Client, LocalCluster, worker_client

from dsinga import RunError
from dsinga.cluster import available_workers
from dsinga.cluster.dask.shared_objects import share


@pytest.fixture(scope="module")
def client() -> Iterator[Client]:
    """A client of seven Dask workers; the scheduler would try for an hour to reach one that has gone."""
    with (
        dask.config.set({"distributed.comm.timeouts.connect": "1h"}),
        LocalCluster(
            n_workers=7, threads_per_worker=1, processes=False, dashboard_address=":0", memory_limit=0
        ) as local,
        Client(local, set_as_default=False) as client,
    ):
        yield client


def holders(client: Client, key: str) -> set[str]:
    """The addresses of the Dask workers that have a key in memory."""
    held = client.run(lambda dask_worker: key in dask_worker.data)
    return {address for address, has_key in held.items() if has_key}


@pytest.mark.parametrize("count", [1, 2, 3, 4, 7])
def test_all_workers_and_the_scheduler_know_of_it_until_it_is_released(client: Client, count: int) -> None:
    addresses = list(available_workers(client))[:count]
    future = share(client, {"count": count}, [*addresses, addresses[0]])
    key = future.key
    assert holders(client, key) == set(client.who_has([future])[key]) == set(addresses)
    assert future.result(timeout=20) == {"count": count}
    del future
    deadline = time.monotonic() + 20
    while holders(client, key):
        assert time.monotonic() < deadline
        threading.Event().wait(0.02)


def share_in_task(addresses: list[str], scheduler: str | None = None) -> set[str]:
    """Task: share an object in its own cluster, or in that of another scheduler; return which workers have it."""
    with contextlib.ExitStack() as stack:
        client = stack.enter_context(Client(scheduler, set_as_default=False) if scheduler else worker_client())
        return holders(client, share(client, [1], addresses).key)


def test_a_task_shares_with_other_workers_than_its_own(client: Client) -> None:
    own, *others = list(available_workers(client))[:4]
    assert client.submit(share_in_task, others, workers=[own]).result(20) == set(others)


def test_a_task_shares_in_another_cluster(client: Client) -> None:
    with (
        LocalCluster(
            n_workers=1, threads_per_worker=1, processes=False, dashboard_address=":0", memory_limit=0
        ) as local,
        Client(local, set_as_default=False) as second,
    ):
        addresses = list(available_workers(second))
        future = client.submit(share_in_task, addresses, local.scheduler_address)
        assert future.result(20) == set(addresses)


def test_a_worker_that_has_gone_keeps_nobody_else_from_sharing(client: Client) -> None:
    addresses = list(available_workers(client))
    gone = addresses[-1]
    client.retire_workers([gone])
    with pytest.raises(RunError, match=f"the Dask worker {gone} was lost"):
        share(client, [1], [gone])
    with pytest.raises(RunError, match=f"the Dask worker {gone} was lost"):
        share(client, [1], sorted(addresses, key=lambda address: address == gone))
    assert share(client, [2], addresses[:-1]).result(timeout=20) == [2]

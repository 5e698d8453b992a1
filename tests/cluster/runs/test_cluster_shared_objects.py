"""Objects that are sent to Dask workers: in pickled form, and shared by several of them."""

import contextlib
import pickle
import threading
import weakref
from collections.abc import Iterator
from typing import Any

import dask.config
import pytest
from distributed import Client, worker_client

from dsinga import RunError, train
from dsinga.base.registry import register
from dsinga.cluster import available_workers, connect
from dsinga.cluster.dask.worker_memory import Packed, share, unpacked
from dsinga.job import Job
from tests.support.polling import wait_until
from tests.support.small_job import with_topology
from tests.support.user_layers import Identity, with_user_layer


@pytest.fixture(scope="module")
def client() -> Iterator[Client]:
    """A client of seven Dask workers; the scheduler would try for an hour to reach one that has gone."""
    with dask.config.set({"distributed.comm.timeouts.connect": "1h"}), connect(workers=7) as client:
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
    assert future.result(timeout=60) == {"count": count}
    del future
    wait_until(lambda: not holders(client, key))


def share_in_task(addresses: list[str], scheduler: str | None = None) -> set[str]:
    """Task: share an object in its own cluster, or in that of another scheduler; return which workers have it."""
    with contextlib.ExitStack() as stack:
        client = stack.enter_context(Client(scheduler, set_as_default=False) if scheduler else worker_client())
        return holders(client, share(client, [1], addresses).key)


def test_a_task_shares_with_other_workers_than_its_own(client: Client) -> None:
    own, *others = list(available_workers(client))[:4]
    assert client.submit(share_in_task, others, workers=[own]).result(60) == set(others)


def test_a_task_shares_in_another_cluster(client: Client) -> None:
    with connect(workers=1) as second:
        addresses = list(available_workers(second))
        future = client.submit(share_in_task, addresses, second.scheduler.address)
        assert future.result(60) == set(addresses)


def test_a_worker_that_has_gone_keeps_nobody_else_from_sharing(client: Client) -> None:
    addresses = list(available_workers(client))
    gone = addresses[-1]
    client.retire_workers([gone])
    with pytest.raises(RunError, match=f"the Dask worker {gone} was lost"):
        share(client, [1], [gone])
    with pytest.raises(RunError, match=f"the Dask worker {gone} was lost"):
        share(client, [1], sorted(addresses, key=lambda address: address == gone))
    assert share(client, [2], addresses[:-1]).result(timeout=60) == [2]


loaders: list[str] = []


@register("layer", "Noting")
class NotingLayer(Identity):
    """Notes the thread in which it is loaded."""

    def __setstate__(self, state: dict[str, Any]) -> None:
        loaders.append(threading.current_thread().name)
        self.__dict__.update(state)


def test_the_layers_of_a_job_are_loaded_by_threads_of_tasks_only(job: Job) -> None:
    job = with_user_layer(job, "Noting")
    with connect(workers=2) as client:
        loaders.clear()
        assert train(with_topology(job, 2, 2), client, progress=False).step == 2
    assert sum("Dask-Default-Threads" in name for name in loaders) == 1, loaders
    assert "IO loop" not in loaders, "where the scheduler and the workers take messages"


def test_an_object_is_itself_or_packed() -> None:
    value = {"a": [1, 2]}
    assert unpacked(value) is value
    assert unpacked(Packed(value)) == value


def test_a_shared_object_is_loaded_once_for_as_long_as_it_is_used(job: Job) -> None:
    packed = pickle.loads(pickle.dumps(Packed(job)))
    first = packed.share()
    assert packed.share() is first
    assert packed.unpack() is not first
    assert pickle.loads(pickle.dumps(packed)).share().name == job.name
    gone = weakref.ref(first)
    del first
    assert gone() is None
    assert packed.share().name == job.name


def test_copies_that_arrived_at_several_dask_workers_of_a_process_are_unpacked_once() -> None:
    pickled = pickle.dumps(Packed(Sizes([3, 4])))
    first, second = (pickle.loads(pickled).share() for _ in range(2))
    assert first is second
    assert pickle.loads(pickle.dumps(Packed(first))).share() is not first


class Sizes(list):  # a list has no weak references
    """Something large."""

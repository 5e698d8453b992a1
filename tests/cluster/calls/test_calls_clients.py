"""Which Dask cluster a call uses, and how asynchronous clients are served."""

import asyncio
import logging
from collections.abc import Iterator
from typing import Any

import dask.config
import numpy as np
import pytest
from distributed import Client, LocalCluster, get_client, get_worker
from distributed.security import Security

import dsinga
from dsinga import UserError, nn
from dsinga.api.engines import runner_of
from dsinga.api.runners import THIS_PROCESS, TrainingOptions
from dsinga.cluster.clients import ClusterSource, find_cluster
from dsinga.job import Job
from tests.support.async_client import IN_PROCESS, async_client
from tests.support.refusals import refused
from tests.support.small_job import assert_same, with_topology

LOGGER = "dsinga.cluster.clients"


@pytest.fixture(scope="module")
def local() -> Iterator[LocalCluster]:
    """An in-process cluster of one Dask worker with one thread, which a single task occupies."""
    with LocalCluster(**IN_PROCESS) as cluster:
        yield cluster


def messages(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.message for record in caplog.records if record.name == LOGGER]


@pytest.fixture
def short(job: Job) -> Job:
    return with_topology(job, 1).replace(train_steps=3)


def test_the_current_client_is_used_and_the_log_says_so(local: LocalCluster, short: Job, caplog) -> None:
    with Client(local) as current, caplog.at_level(logging.INFO, LOGGER):
        assert find_cluster().client is current
        assert dsinga.train(short, progress=False).step == 3
    used = f"the Dask cluster at {local.scheduler_address} is used, that of the current Dask client"
    assert messages(caplog) == [used]


def test_a_client_that_is_given_comes_before_the_current_one(local: LocalCluster, threads: Client) -> None:
    with threads.as_current():
        assert find_cluster().client is threads
        with Client(local, set_as_default=False) as given:
            assert find_cluster(given).client is given


def test_the_client_of_a_worker_in_this_process_is_not_the_current_one(local: LocalCluster) -> None:
    with Client(local, set_as_default=False) as client:
        made = client.submit(lambda: get_client().id, pure=False).result(30)
        assert Client.current().id == made, "a Dask worker makes its client the default"
    assert not find_cluster().is_running


def train_in_a_task(job: Job, client: Client | None = None) -> tuple[dict[str, Any], int]:
    return dsinga.train(job, client, progress=False).params, get_worker().state.nthreads


@pytest.mark.parametrize("given", [False, True])
def test_a_task_trains_on_the_cluster_of_its_worker_whose_thread_it_leaves(
    local: LocalCluster, short: Job, given: bool
) -> None:
    """The worker has one thread: a task that kept it would wait for ever for the rounds of its own run."""

    def task(job: Job) -> Any:
        return train_in_a_task(job, get_client() if given else None)

    with Client(local, set_as_default=False) as client:
        expected = dsinga.train(short, client, progress=False).params
        params, threads = client.submit(task, short, pure=False).result(60)
        assert_same(params, expected)
        assert threads == 1
        assert client.submit(lambda: 5, pure=False).result(30) == 5, "the task is back in its thread"


def test_a_failed_run_gives_its_task_the_thread_back(local: LocalCluster, short: Job) -> None:
    broken = short.replace(train_steps=0)
    with Client(local, set_as_default=False) as client:
        with pytest.raises(UserError):
            client.submit(train_in_a_task, broken, pure=False).result(60)
        assert client.submit(lambda: 5, pure=False).result(30) == 5


def test_the_scheduler_of_dask_settings_is_used(processes: Client, short: Job, caplog) -> None:
    address = processes.scheduler.address
    with dask.config.set({"scheduler-address": address}), caplog.at_level(logging.INFO, LOGGER):
        assert dsinga.evaluate(short, dsinga.train(short, progress=False), client=None)["loss"] > 0
    used = f"the Dask cluster at {address} is used, which Dask's setting scheduler-address names"
    assert messages(caplog) == [used] * 2


def test_an_address_where_no_scheduler_answers_is_refused_by_the_name_of_the_variable(short, monkeypatch) -> None:
    address = "tcp://127.0.0.1:9"
    monkeypatch.setenv("DASK_SCHEDULER_ADDRESS", address)
    monkeypatch.setattr("dsinga.cluster.connecting.embedded.CONNECT_SECONDS", 0.2)
    with (
        dask.config.set({"scheduler-address": address}),
        pytest.raises(UserError, match=rf"{address}, which the environment variable DASK_SCHEDULER_ADDRESS names: "),
    ):
        dsinga.train(short, progress=False)


def test_a_closed_client_is_refused(local: LocalCluster) -> None:
    client = Client(local, set_as_default=False)
    client.close()
    with client.as_current(), pytest.raises(UserError, match="the current Dask client is closed; create a new one"):
        find_cluster()
    refused(lambda: find_cluster(client), "the given Dask client is", "closed")


def test_a_cluster_without_workers_that_was_not_named_is_named_in_the_log(caplog) -> None:
    with LocalCluster(**IN_PROCESS | {"n_workers": 0}) as cluster, Client(cluster), find_cluster().open():
        text = f"the Dask cluster at {cluster.scheduler_address}, that of the current Dask client, has no workers"
    assert messages(caplog) == [text]


@pytest.mark.parametrize("given", ["tcp://host:1", 3])
def test_what_is_no_client_is_refused(given: Any) -> None:
    refused(lambda: find_cluster(given), "client= takes a Dask client")


def test_an_asynchronous_client_gets_awaitables(short: Job, tmp_path) -> None:
    async def use() -> tuple[Any, ...]:
        async with async_client() as client:
            result = await dsinga.train(short, client, progress=False)
            metrics, outputs = await asyncio.gather(
                dsinga.evaluate(short, result), dsinga.predict(short, result, "ip", client=client)
            )
            refused(lambda: next(dsinga.predict_batches(short, result, "ip", client=client)), "to_thread", "function")
            return result, metrics, outputs

    result, metrics, outputs = asyncio.run(asyncio.wait_for(use(), 100))
    assert_same(result.params, dsinga.train(short, progress=False).params)
    assert metrics == dsinga.evaluate(short, result)
    np.testing.assert_array_equal(outputs, dsinga.predict(short, result, "ip"))


def test_what_can_only_wait_is_refused_in_the_event_loop_of_its_client_and_runs_in_a_thread() -> None:
    x, y = np.eye(8, dtype=np.float32), np.arange(8) % 2

    async def fit() -> Any:
        async with async_client() as client:
            model = nn.Sequential([nn.Input((8,)), nn.Dense(2)])
            model.compile("sgd", "sparse_categorical_crossentropy")
            with pytest.raises(UserError, match="cannot use an asynchronous Dask client in the event loop of that"):
                model.fit(x, y, client=client, progress=False)
            return await asyncio.to_thread(model.fit, x, y, client=client, progress=False)

    assert len(asyncio.run(asyncio.wait_for(fit(), 100))) == 1


def test_a_client_that_is_not_connected_yet_is_refused() -> None:
    async def use() -> None:
        client = Client("tcp://127.0.0.1:9", asynchronous=True, timeout=0.1)
        refused(lambda: find_cluster(client), "is not connected yet", "await it first")
        with pytest.raises(OSError, match="Timed out"):
            await client

    asyncio.run(asyncio.wait_for(use(), 30))


def test_a_thread_has_the_credentials_of_its_asynchronous_client(short: Job) -> None:
    pytest.importorskip("cryptography")

    async def use() -> Any:
        security = Security.temporary()
        async with async_client(protocol="tls", security=security) as client:
            assert client.scheduler.address.startswith("tls://")
            return await dsinga.train(short, client, progress=False)

    assert asyncio.run(asyncio.wait_for(use(), 100)).step == 3


@pytest.mark.parametrize("options", [{"grain": "graph"}, {"resources": {"GPU": 1}}, {"hosts": ["a"]}, {"retry": True}])
def test_a_cluster_is_started_for_calls_that_need_one(options: dict) -> None:
    assert TrainingOptions(**options).asks_for_cluster
    assert runner_of(THIS_PROCESS, True) == ClusterSource()
    assert runner_of(THIS_PROCESS, False) is runner_of(ClusterSource(), False) is THIS_PROCESS


@pytest.mark.parametrize("source", [ClusterSource(address="tcp://127.0.0.1:1"), ClusterSource(is_shared=True)])
def test_a_cluster_that_a_call_names_is_used(source: ClusterSource) -> None:
    assert runner_of(source, False) is source

"""Runs on chosen Dask workers: those of some hosts, or with some resources."""

import socket
from collections.abc import Iterator
from typing import Any

import pytest
from distributed import Client, LocalCluster, Worker, get_task_stream

from dsinga import cluster
from dsinga.api import evaluate, predict, roots, train
from dsinga.cluster import WorkerSelection
from dsinga.cluster.dask.dask_workers import available_workers
from dsinga.cluster.placing.prepare import prepare_run
from dsinga.cluster.queue.usable_workers import usable_workers
from dsinga.job import Job
from dsinga.loop.initial_state import RunOptions
from tests.support.gated_runs import Gate
from tests.support.refusals import refused
from tests.support.small_job import with_topology


@pytest.fixture(scope="module")
def client() -> Iterator[Client]:
    """Dask workers "a" with two threads, "b" with four and two GPUs, and "c" with one and a GPU, reached by TCP."""
    spec = {
        name: {"cls": Worker, "options": {"nthreads": threads, "resources": resources, "dashboard": False}}
        for name, threads, resources in [("a", 2, {}), ("b", 4, {"GPU": 2}), ("c", 1, {"GPU": 1})]
    }
    with (
        LocalCluster(
            n_workers=0, processes=False, protocol="tcp://", host="127.0.0.1", dashboard_address=":0",
            scheduler_kwargs={"dashboard": False},
        ) as local,
        Client(local, set_as_default=False) as client,
    ):  # fmt: skip
        local.worker_spec.update(spec)
        client.sync(local._correct_state)
        client.wait_for_workers(3, timeout=60)
        yield client


def names(client: Client, selection: WorkerSelection) -> dict[str, int]:
    """Return the threads of the Dask workers that a run may use, by their names."""
    workers = usable_workers(client, selection, available_workers(client))
    return {str(info["name"]): info["nthreads"] for info in workers.values()}


def place(client: Client, job: Job, selection: WorkerSelection, workers: int) -> list[str]:
    """Return the names of the Dask workers of a job's partitions."""
    by_address = {address: str(info["name"]) for address, info in available_workers(client).items()}
    with prepare_run(with_topology(job, workers), client, roots(job, None), selection=selection) as prepared:
        return [by_address[address] for address in prepared.placement.workers[0]]


def test_resources_and_hosts_choose_dask_workers(client: Client) -> None:
    address = next(iter(available_workers(client)))
    assert names(client, WorkerSelection()) == {"a": 2, "b": 4, "c": 1}
    assert names(client, WorkerSelection({"GPU": 1})) == {"b": 2, "c": 1}
    assert names(client, WorkerSelection({"GPU": 2})) == {"b": 1}
    assert names(client, WorkerSelection(hosts=["a", "c"])) == {"a": 2, "c": 1}
    assert names(client, WorkerSelection(hosts=[address])) == {"a": 2}
    for host in ("127.0.0.1", "localhost", socket.gethostname()):
        assert names(client, WorkerSelection(hosts=[host])) == {"a": 2, "b": 4, "c": 1}, host


def test_a_run_gets_the_dask_workers_that_it_may_use(client: Client, job: Job) -> None:
    assert place(client, job, WorkerSelection({"GPU": 1}), 3) == ["b", "c", "b"]
    assert place(client, job, WorkerSelection(hosts=["a"]), 2) == ["a", "a"]
    gate = Gate(opened=True)
    selection = WorkerSelection({"GPU": 1}, ["c"])
    assert (
        cluster.train(with_topology(job, 1), client, gate, RunOptions(roots=roots(job, None)), selection=selection).step
        == 50
    )


@pytest.mark.parametrize(
    ("selection", "workers", "message"),
    [
        (WorkerSelection({"TPU": 1}), 1, "no Dask worker has the resource TPU=1; start some with `dask worker"),
        (WorkerSelection({"GPU": 3}), 1, "no Dask worker has the resource GPU=3, the most is 2; start some"),
        (WorkerSelection({"GPU": 0}), 1, "the resource 'GPU' is 0; give the amount that each worker needs"),
        (WorkerSelection(hosts=["nowhere.invalid"]), 1, "no Dask worker is on 'nowhere.invalid'; the hosts of the cl"),
        (WorkerSelection({"GPU": 1}), 4, r"needs 4 workers, .* 3 worker threads; .* \(only Dask workers with GPU=1 c"),
        (WorkerSelection({}, []), 8, r"needs 8 workers, .* 7 worker threads; start more .*nworkers_per_group$"),
        (WorkerSelection({"GPU": 1}, ["c"]), 2, r"1 worker thread; .* \(only Dask workers with GPU=1 on c count\)"),
    ],
)  # fmt: skip
def test_what_the_cluster_does_not_have_is_refused_at_once(
    client: Client, job: Job, selection: WorkerSelection, workers: int, message: str
) -> None:
    refused(lambda: place(client, job, selection, workers), message)


def test_evaluations_and_predictions_use_the_chosen_dask_workers(client: Client, job: Job) -> None:
    params = train(job, client, progress=False, hosts=["a"]).params
    by_address = {address: str(info["name"]) for address, info in available_workers(client).items()}

    def used(where: dict[str, Any]) -> set[str]:
        with get_task_stream(client) as stream:
            metrics = evaluate(job, params, client=client, **where)
            outputs = predict(job, params, "ip", client=client, **where)
        assert metrics == everywhere
        assert outputs.shape[1] == 10
        return {by_address[record["worker"]] for record in stream.data}

    everywhere = evaluate(job, params, client=client)
    assert used({"hosts": ["c"]}) == {"c"}
    assert used({"resources": {"GPU": 2}}) == {"b"}

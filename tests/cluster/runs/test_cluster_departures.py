"""A run leaves a Dask worker in order before it goes, so that nothing is computed twice."""

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from distributed import Client, Status

from dsinga import cluster
from dsinga.cluster import connect
from dsinga.cluster.dask.dask_workers import ask_scheduler
from dsinga.cluster.dask.run_tasks import RoundLength
from dsinga.cluster.run import group_rounds, recovery
from dsinga.job import ClusterConf, Job
from tests.support.observers import Recorder, of_phase, train_observed
from tests.support.polling import wait_until
from tests.support.small_job import assert_same, with_topology

pytestmark = pytest.mark.process

# Seconds for what takes a few.
PATIENCE = 60


@pytest.fixture(autouse=True)
def looks_often(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let runs look after each round who leaves, and have short rounds, so that short ones do on any processor."""
    monkeypatch.setattr(recovery, "CHECK_SECONDS", 0.0)
    monkeypatch.setattr(group_rounds, "RoundLength", lambda _, workers: RoundLength(10, workers))


def wait_for_departure(client: Client) -> None:
    """Wait until a Dask worker is about to leave."""
    wait_until(lambda: ask_scheduler(client, "dsinga_leaving"), PATIENCE)


@pytest.mark.ci
def test_a_worker_is_retired_once_the_run_has_left_it(job: Job) -> None:
    job = job.replace(cluster=ClusterConf(nworkers_per_group=2, nservers_per_group=2), train_steps=200)
    with connect(workers=2) as client:
        unbroken = train_observed(job, client, Recorder())
    with connect(workers=3, separate_processes=True) as client, ThreadPoolExecutor() as pool:
        used, _, unused = cluster.available_workers(client)
        assert list(client.retire_workers([unused])) == [unused]
        retired: list[Any] = []

        def retire() -> None:
            retired.append(pool.submit(client.retire_workers, [used]))
            wait_for_departure(client)

        recorder = Recorder(100, retire)
        outcome = train_observed(job, client, recorder)
        assert list(retired[0].result(PATIENCE)) == [used]
    assert [row["steps_again"] for row in of_phase(recorder.rows, "recovery")] == [0]
    assert_same(outcome.params, unbroken.params)


def test_a_cluster_closes_its_own_workers(job: Job) -> None:
    """A SpecCluster names those that it closes, which Dask's scheduler does not retire besides."""
    with connect(workers=2) as client:
        train_observed(with_topology(job, 1), client, Recorder())
        *_, worker = client.cluster.workers.values()  # the run was on the first one
        assert ask_scheduler(client, "retire_workers", workers=[worker.name]) == {}
        assert worker.status == Status.running

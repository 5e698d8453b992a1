"""A run leaves a Dask worker in order before it goes, so that nothing is computed twice."""

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from distributed import Client, LocalCluster, Status

from dsinga import cluster
from dsinga.cluster import connect
from dsinga.cluster.dask.dask_workers import ask_scheduler
from dsinga.cluster.dask.run_tasks import RoundLength
from dsinga.cluster.run import group_rounds, recovery
from dsinga.job import ClusterConf, Job
from tests.support.executed_pages import ROOT
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


def long_job(job: Job, steps: int = 600) -> Job:
    """Return a job of two workers with a server each."""
    return job.replace(cluster=ClusterConf(nworkers_per_group=2, nservers_per_group=2), train_steps=steps)


def unbroken_params(job: Job) -> dict[str, np.ndarray]:
    """Return the params of the run when nothing happens."""
    with connect(workers=2) as client:
        return train_observed(job, client, Recorder()).params


def check_left_in_order(rows: list[dict[str, Any]], moves: int = 1) -> None:
    """Assert that the run was placed anew without computing a step twice."""
    assert [row["steps_again"] for row in of_phase(rows, "recovery")] == [0] * moves


@pytest.mark.ci
def test_a_worker_is_retired_once_the_run_has_left_it(job: Job) -> None:
    job = long_job(job, steps=200)
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
    check_left_in_order(recorder.rows)
    assert_same(outcome.params, unbroken_params(job))


def test_a_cluster_closes_its_own_workers(job: Job) -> None:
    """A SpecCluster names those that it closes, which Dask's scheduler does not retire besides."""
    with connect(workers=2) as client:
        train_observed(with_topology(job, 1), client, Recorder())
        *_, worker = client.cluster.workers.values()  # the run was on the first one
        assert ask_scheduler(client, "retire_workers", workers=[worker.name]) == {}
        assert worker.status == Status.running


@contextlib.contextmanager
def dask_worker(client: Client, name: str, *options: str) -> Iterator[subprocess.Popen[bytes]]:
    """Start ``dask worker`` with its nanny."""
    command = [sys.executable, "-m", "distributed.cli.dask_worker", client.scheduler.address, "--name", name]
    environment = os.environ | {"PYTHONPATH": str(ROOT), "DASK_DISTRIBUTED__LOGGING__DISTRIBUTED": "critical"}
    count = len(cluster.available_workers(client))
    process = subprocess.Popen(
        [*command, "--nthreads", "1", "--no-dashboard", *options], env=environment, stderr=subprocess.DEVNULL
    )
    try:
        client.wait_for_workers(count + 1, timeout=PATIENCE)
        yield process
    finally:
        process.terminate()
        process.wait(PATIENCE)


@pytest.mark.slow
@pytest.mark.parametrize("end", ["SIGTERM", "--lifetime"])
def test_a_run_leaves_a_worker_that_ends(job: Job, end: str, tmp_path: Path) -> None:
    job = long_job(job)
    with (
        LocalCluster(n_workers=0, dashboard_address=":0") as local,
        Client(local) as client,
        dask_worker(client, "stays", "--local-directory", str(tmp_path)),
    ):
        options = ["--lifetime", "10s"] if end == "--lifetime" else []
        with dask_worker(client, "goes", "--local-directory", str(tmp_path), *options) as process:

            def wait_for_end() -> None:
                if end == "SIGTERM":
                    process.send_signal(signal.SIGTERM)
                wait_for_departure(client)

            recorder = Recorder(100, wait_for_end)
            outcome = train_observed(job, client, recorder)
    check_left_in_order(recorder.rows)
    assert_same(outcome.params, unbroken_params(job))

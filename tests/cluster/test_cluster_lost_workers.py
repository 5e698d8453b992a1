"""A Dask worker that is killed soon ends a run without restarts: its waits for Dask would last an hour."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import dask.config
import numpy as np
import pytest
from distributed import Client, LocalCluster

from dsinga import RunError
from dsinga.api import train
from dsinga.cluster.placing import automatic, devices
from dsinga.cluster.preflight import check as preflight
from dsinga.cluster.run import cluster_run
from dsinga.cluster.run.cluster_run import ClusterRun
from dsinga.job import ClusterConf, Job, PartitionMethod
from tests.support.small_job import with_topology, without_restarts
from tests.support.worker_processes import worker_processes

pytestmark = [pytest.mark.slow, pytest.mark.process]

# Where the worker is killed: an object and the name of its function, before which that happens.
STAGES = {
    "asked": (preflight, "_ask"),
    "asked for GPUs": (devices, "_ask"),
    "before servers": (ClusterRun, "start"),
    "before workers": (ClusterRun, "_shared_config"),
    "before bridges": (ClusterRun, "_connect_peers"),
    "before a test": (ClusterRun, "evaluate"),
    "before a snapshot": (ClusterRun, "snapshot"),
    "before arrays are sent": (cluster_run, "share"),
    "before replicas are sent": (cluster_run, "share"),
    "before links are measured": (automatic, "measure_links"),
    "in rounds": (ClusterRun, "send"),
    "in asynchronous rounds": (ClusterRun, "send"),
}


@pytest.fixture(scope="module")
def client() -> Iterator[Client]:
    """A client of a scheduler without workers, which tries for an hour to reach a worker that has gone."""
    with (
        dask.config.set({"distributed.comm.timeouts.connect": "1h"}),
        LocalCluster(n_workers=0, dashboard_address=":0", scheduler_kwargs={"dashboard": False}) as local,
        Client(local, set_as_default=False) as client,
    ):
        yield client


def job_of(stage: str, job: Job) -> tuple[Job, dict[str, Any]]:
    """Return a job that comes to a stage, and arguments to train it."""
    job = with_topology(job, 2, 2).replace(train_steps=30 if stage == "before a snapshot" else 1_000_000)
    arguments: dict[str, Any] = {}
    if stage == "asked for GPUs":
        job = job.replace(gpu=[0])
    elif stage == "before a test":
        job = job.replace(test_freq=20)
    elif stage == "before arrays are sent":
        arguments["data"] = np.zeros((200, 1, 8, 8), np.uint8), np.arange(200) % 10
    elif stage == "before replicas are sent":
        job = job.replace(cluster=ClusterConf(nworkers_per_group=2, nservers_per_group=2, update="kWorker"))
    elif stage == "before links are measured":
        job = job.replace(neuralnet=job.neuralnet.replace(partition=PartitionMethod.auto))
    elif stage == "in asynchronous rounds":
        job = job.replace(cluster=ClusterConf(nworker_groups=2, nserver_groups=2))
    return without_restarts(job), arguments


@pytest.mark.parametrize("stage", STAGES)
def test_a_killed_worker_is_named(stage: str, client: Client, job: Job, tmp_path: Path, monkeypatch) -> None:
    job, arguments = job_of(stage, job)
    owner, name = STAGES[stage]
    function: Callable[..., Any] = getattr(owner, name)
    with worker_processes(client, {"left": "", "killed": ""}, tmp_path) as addresses:
        pids = client.run(os.getpid, workers=list(addresses.values()))

        def kill_and_go_on(*given: Any, **options: Any) -> Any:
            monkeypatch.setattr(owner, name, function)
            os.kill(pids[addresses["killed"]], signal.SIGKILL)
            return function(*given, **options)

        monkeypatch.setattr(owner, name, kill_and_go_on)
        with pytest.raises(RunError, match=f"{addresses['killed']}( was lost|: Unable to contact)"):
            train(job, client, progress=False, **arguments)
        assert client.run(os.getpid, workers=[addresses["left"]]) == {addresses["left"]: pids[addresses["left"]]}

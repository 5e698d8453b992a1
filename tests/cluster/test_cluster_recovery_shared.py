"""Two runs on one cluster lose a Dask worker that both use: both go on, with the same bits."""

from __future__ import annotations

import os
import signal
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from distributed import Client, LocalCluster, Status

from dsinga import cluster
from dsinga.api import roots
from dsinga.job import Job
from tests.support.gated_runs import PATIENCE
from tests.support.observers import Recorder, of_phase
from tests.support.small_job import assert_same, with_topology

pytestmark = pytest.mark.process


@pytest.mark.parametrize(
    ("threads", "comes_back", "recoveries"),
    [(2, False, 2), (1, True, 1)],
    ids=["crowded on the threads that are left", "one waits for a thread"],
)
def test_runs_that_share_a_cluster_go_on_without_a_killed_worker(
    job: Job, threads: int, comes_back: bool, recoveries: int
) -> None:
    job = with_topology(job, threads).replace(train_steps=400)
    with (
        LocalCluster(n_workers=2, threads_per_worker=threads, dashboard_address=":0") as dask_cluster,
        Client(dask_cluster) as client,
        ThreadPoolExecutor() as pool,
    ):
        unbroken = cluster.train(job, client, Recorder(), roots=roots(job, None))
        address, pid = client.run(os.getpid).popitem()

        def kill() -> None:
            if not comes_back:
                nanny = next(n for n in dask_cluster.workers.values() if n.worker_address == address)
                nanny.status = Status.closing_gracefully  # then it starts no other process
            os.kill(pid, signal.SIGKILL)

        both_train = threading.Barrier(2, action=kill)
        recorders = [Recorder(150, lambda: both_train.wait(PATIENCE)) for _ in range(2)]
        runs = [pool.submit(cluster.train, job, client, recorder, roots=roots(job, None)) for recorder in recorders]
        for run in runs:
            assert_same(run.result(PATIENCE).params, unbroken.params)
    rows = [row for recorder in recorders for row in of_phase(recorder.rows, "recovery") if "was lost" in row["lost"]]
    assert len(rows) == recoveries

"""How often a run starts again, how long it waits for Dask workers, and two runs that lose one that both use."""

import os
import signal
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from distributed import Client, LocalCluster, Status

from dsinga import Cancelled, RunError
from dsinga.checkpoint import read_newest_checkpoint
from dsinga.cluster import connect
from dsinga.job import ClusterConf, Job
from tests.support.gated_runs import PATIENCE
from tests.support.observers import Recorder, of_phase, train_observed
from tests.support.small_job import assert_same, with_topology

pytestmark = pytest.mark.process


@pytest.mark.ci
@pytest.mark.parametrize(
    ("threads", "comes_back", "recoveries"),
    [(2, False, 2), pytest.param(1, True, 1, marks=pytest.mark.slow)],
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
        unbroken = train_observed(job, client, Recorder())
        address, pid = client.run(os.getpid).popitem()

        def kill() -> None:
            if not comes_back:
                nanny = next(n for n in dask_cluster.workers.values() if n.worker_address == address)
                nanny.status = Status.closing_gracefully  # then it starts no other process
            os.kill(pid, signal.SIGKILL)

        both_train = threading.Barrier(2, action=kill)
        recorders = [Recorder(150, lambda: both_train.wait(PATIENCE)) for _ in range(2)]
        runs = [pool.submit(train_observed, job, client, recorder) for recorder in recorders]
        for run in runs:
            assert_same(run.result(PATIENCE).params, unbroken.params)
    rows = [row for recorder in recorders for row in of_phase(recorder.rows, "recovery") if "was lost" in row["lost"]]
    assert len(rows) == recoveries


class Closes(Recorder):
    """An observer that closes Dask workers of this process, some each time that further steps are done."""

    def __init__(self, client: Client, *counts: int):
        super().__init__()
        self._local: Any = client.cluster
        self._counts = list(counts)

    def progress(self, row: dict[str, Any]) -> None:
        if self._counts:
            running = [worker for worker in self._local.workers.values() if worker.status.name == "running"]
            for worker in running[: self._counts.pop(0)]:
                self._local.loop.add_callback(worker.close)


def two_workers(job: Job, **limits: Any) -> Job:
    """Return a long job of two workers, with limits of its recovery."""
    return job.replace(cluster=ClusterConf(nworkers_per_group=2, **limits), train_steps=20_000, disp_freq=0)


def test_a_run_starts_again_as_often_as_the_job_says(job: Job, tmp_path: Path) -> None:
    with connect(workers=3) as client:
        observer = Closes(client, 1, 1)
        with pytest.raises(RunError, match="was lost.*; the run has started again once, as max_restarts says"):
            train_observed(two_workers(job, max_restarts=1), client, observer, workspace=tmp_path)
    assert [row["generation"] for row in of_phase(observer.rows, "recovery")] in ([1], [])


def test_a_run_waits_for_workers_as_long_as_the_job_says(job: Job, tmp_path: Path) -> None:
    with connect(workers=2) as client:
        observer = Closes(client, 2)
        waited = "the run needs 1 Dask worker to go on, and there are none; waited 1 s, as cluster.patience says"
        with pytest.raises(RunError, match=waited):
            train_observed(two_workers(job, patience=1.0), client, observer, workspace=tmp_path)
    newest = read_newest_checkpoint(tmp_path / "checkpoint")
    assert newest is None or newest[1].step > 0


class CancelsWait(Closes):
    """An observer that closes both Dask workers, and cancels the run when it waits for others."""

    def __init__(self, client: Client, cancelled: threading.Event):
        super().__init__(client, 2)
        self._cancelled = cancelled

    def waiting(self, sentence: str) -> None:
        self._cancelled.set()


def test_a_run_that_waits_for_workers_can_be_cancelled(job: Job, tmp_path: Path) -> None:
    cancelled = threading.Event()
    with connect(workers=2) as client, pytest.raises(Cancelled):
        train_observed(two_workers(job), client, CancelsWait(client, cancelled),
        workspace=tmp_path, cancelled=cancelled)  # fmt: skip
    assert cancelled.is_set()
    newest = read_newest_checkpoint(tmp_path / "checkpoint")
    assert newest is None or newest[1].step > 0

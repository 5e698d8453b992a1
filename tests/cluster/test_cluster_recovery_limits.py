"""How often a run starts again, and how long it waits for Dask workers."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest
from distributed import Client

from dsinga import Cancelled, RunError, cluster
from dsinga.api import roots
from dsinga.checkpoint import read_newest_checkpoint
from dsinga.cluster import connect
from dsinga.job import ClusterConf, Job
from tests.support.observers import Recorder, of_phase


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
            cluster.train(
                two_workers(job, max_restarts=1), client, observer, roots=roots(job, None), workspace=tmp_path
            )
    assert [row["generation"] for row in of_phase(observer.rows, "recovery")] in ([1], [])


def test_a_run_waits_for_workers_as_long_as_the_job_says(job: Job, tmp_path: Path) -> None:
    with connect(workers=2) as client:
        observer = Closes(client, 2)
        waited = "the run needs 1 Dask worker to go on, and there are none; waited 1 s, as cluster.patience says"
        with pytest.raises(RunError, match=waited):
            cluster.train(two_workers(job, patience=1.0), client, observer, roots=roots(job, None), workspace=tmp_path)
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
        cluster.train(
            two_workers(job), client, CancelsWait(client, cancelled), roots=roots(job, None), workspace=tmp_path,
            cancelled=cancelled,
        )  # fmt: skip
    assert cancelled.is_set()
    newest = read_newest_checkpoint(tmp_path / "checkpoint")
    assert newest is None or newest[1].step > 0

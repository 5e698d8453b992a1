"""Runs wait for Dask workers that their cluster has requested, and for those of a cluster that is starting."""

import asyncio
import logging
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import dask.config
import pytest
from distributed import Client, Status, Worker

from dsinga.api import evaluate, train
from dsinga.base.errors import Cancelled, RunError
from dsinga.cluster.connecting import expected_workers
from dsinga.cluster.connecting.expected_workers import SlurmJobs, await_workers, keep_workers
from dsinga.cluster.dask.dask_workers import available_workers, require_workers
from dsinga.job import Job
from dsinga.loop.cancellation import Cancellation
from dsinga.monitor import RunMonitor
from tests.support.late_workers import late_cluster
from tests.support.polling import wait_until
from tests.support.refusals import refused

GATE = threading.Event()


class QueuedWorker(Worker):
    """A Dask worker that starts when GATE is open, as if it waited in a batch queue; at once if it has resources."""

    async def start_unsafe(self) -> Worker:
        if not self.state.total_resources:
            await asyncio.to_thread(GATE.wait, 60)
        return await super().start_unsafe()


class FailingWorker(Worker):
    """A Dask worker that cannot start."""

    async def start_unsafe(self) -> Worker:
        raise OSError("no such queue")


@pytest.fixture(autouse=True)
def open_gate(announced_at_once: None) -> Iterator[None]:
    """Let all workers start in the end."""
    GATE.clear()
    yield
    GATE.set()


@pytest.fixture
def small(job: Job) -> Job:
    """The small job, two steps long."""
    return job.replace(train_steps=2, disp_freq=0, test_freq=0, checkpoint_freq=0)


class Announcements(list[str]):
    """The sentences that were announced."""

    def wait_for(self, text: str) -> None:
        """Wait until a sentence has ``text``."""
        wait_until(lambda: any(text in sentence for sentence in self))


@pytest.fixture
def announced(monkeypatch: pytest.MonkeyPatch) -> Announcements:
    """What runs announce while they wait."""
    announcements = Announcements()
    monkeypatch.setattr(RunMonitor, "waiting", lambda _, sentence: announcements.append(sentence))
    return announcements


def test_a_run_waits_for_workers_that_its_cluster_has_requested(small: Job, announced: Announcements) -> None:
    with late_cluster(worker_class=QueuedWorker) as cluster, Client(cluster) as client, ThreadPoolExecutor() as pool:
        cluster.scale(2)
        run = pool.submit(train, small, client, workers=2, progress=False)
        announced.wait_for("the Dask cluster has no workers; waiting for 2 that LocalCluster has requested; 0:00:")
        assert not run.done()
        GATE.set()
        assert run.result(timeout=60).step == 2
    assert announced[-1].startswith("the wait is over after 0:00:")


def test_mistakes_are_named_with_their_remedies(threads: Client, small: Job) -> None:
    refused(lambda: train(small, threads, workers=4, progress=False), "needs 4 workers", "start")
    with late_cluster(worker_class=FailingWorker) as cluster, Client(cluster) as client:
        cluster.scale(1)
        refused(lambda: train(small, client, workers=1, progress=False), "has no workers", "LocalCluster could not")
        cluster.worker_spec.clear()
    with late_cluster(worker_class=QueuedWorker) as cluster, Client(cluster) as client:
        cluster.scale(1)
        limited = dask.config.set({"dsinga.queue_timeout": "10ms"})
        with limited, pytest.raises(RunError, match=r"waited 0:00:\d\d for 1 that LocalCluster has requested, as ds"):
            train(small, client, workers=1, progress=False)
        GATE.set()


def test_a_run_is_spread_over_workers_that_are_still_to_come(small: Job, announced: Announcements) -> None:
    """Two workers have room in the first process, but its neighbour is on its way; without a number, all are taken."""
    for number in (2, None):
        GATE.clear()
        with late_cluster(2, QueuedWorker) as cluster, Client(cluster) as client, ThreadPoolExecutor() as pool:
            options = {**cluster.new_spec["options"], "resources": {"first": 1}}
            cluster.worker_spec[0] = {**cluster.new_spec, "options": options}
            cluster.scale(2)
            run = pool.submit(train, small, client, workers=number, progress=False)
            of_how_many = f" of {number}" if number else ""
            announced.wait_for(f"1{of_how_many} Dask worker is there; waiting for 1 that LocalCluster has requested")
            GATE.set()
            assert run.result(timeout=60).step == 2
            announced.clear()


@pytest.mark.parametrize("number", [2, None])
def test_workers_that_come_one_after_another_are_waited_for_as_long_as_they_come(
    small: Job, announced: Announcements, monkeypatch: pytest.MonkeyPatch, number: int | None
) -> None:
    """The first one has threads for two workers; the client of an address knows of no workers to come."""
    seconds = [0.0]
    monkeypatch.setattr(expected_workers, "time", SimpleNamespace(monotonic=lambda: seconds[0]))
    with late_cluster(2) as cluster, Client(cluster.scheduler_address) as client, ThreadPoolExecutor() as pool:
        cluster.scheduler.time_started -= 3600.0
        run = pool.submit(train, small, client, workers=number, progress=False)
        needed = "2 workers" if number else "1 worker"
        announced.wait_for(f"the job needs {needed}, but the Dask cluster has no workers; waiting for others; 0:00:")
        cluster.scale(1)
        of_how_many = f" of {number}" if number else ""
        announced.wait_for(f"1{of_how_many} Dask worker is there; waiting for others until none has come for 60 s")
        seconds[0] += 60
        assert run.result(timeout=60).step == 2
        announced.clear()
        joined = [(at - 120, event) for at, event in cluster.scheduler.get_events("all")]
        monkeypatch.setitem(cluster.scheduler.handlers, "events", lambda topic: joined)
        assert train(small, client, workers=number, progress=False).step == 2
        assert not announced, "a cluster that is complete is not waited for"


def test_testing_waits_for_the_first_worker_and_logs_it(
    small: Job, threads: Client, announced: Announcements, monkeypatch: pytest.MonkeyPatch
) -> None:
    params = train(small, threads, workers=1, progress=False).params
    logger = logging.getLogger(expected_workers.__name__)
    monkeypatch.setattr(logger, "handle", lambda record: announced.append(record.getMessage()))
    with late_cluster(worker_class=QueuedWorker) as cluster, Client(cluster) as client, ThreadPoolExecutor() as pool:
        cluster.scale(1)
        metrics = pool.submit(evaluate, small, params, "test", client)
        announced.wait_for("the Dask cluster has no workers; waiting for 1 that LocalCluster has requested")
        GATE.set()
        assert metrics.result(timeout=60) == evaluate(small, params, "test", threads)


def test_a_cancelled_run_waits_no_longer(announced: Announcements) -> None:
    cancelled = threading.Event()
    with late_cluster(worker_class=QueuedWorker) as cluster, Client(cluster) as client, ThreadPoolExecutor() as pool:
        cluster.scale(1)
        cancellation = Cancellation(cancelled)
        wait = pool.submit(await_workers, client, require_workers, cancellation=cancellation, announce=announced.append)
        announced.wait_for("waiting for 1")
        cancelled.set()
        with pytest.raises(Cancelled):
            wait.result(timeout=60)
        GATE.set()


def test_an_adaptive_cluster_starts_as_many_workers_as_a_run_needs() -> None:
    with late_cluster() as cluster, Client(cluster) as client:
        adaptive = cluster.adapt(minimum=0, maximum=3, interval="20ms")
        with keep_workers(client, 2):
            await_workers(client, require_workers, shortage=lambda _, workers: "" if len(workers) > 1 else "too few")
            assert adaptive.minimum == len(available_workers(client)) == 2
            with keep_workers(client, 1):
                assert adaptive.minimum == 3
            assert adaptive.minimum == 2
        assert adaptive.minimum == 0
        with keep_workers(client, 20):
            assert adaptive.minimum == 3


def test_a_worker_that_is_being_retired_is_not_taken(small: Job) -> None:
    with late_cluster() as cluster, Client(cluster) as client:
        cluster.scale(2)
        client.wait_for_workers(2, timeout=60)
        retired = next(iter(available_workers(client)))
        client.retire_workers([retired], close_workers=False, remove=False)
        assert train(small, client, workers=1, progress=False).step == 2
        refused(lambda: train(small, client, workers=2, progress=False), "needs 2 workers", "1 worker thread")


def test_a_cluster_that_is_not_adaptive_stays_as_it_is(threads: Client) -> None:
    with keep_workers(threads, 20):
        assert len(available_workers(threads)) == 3


def test_jobs_of_slurm_are_named_with_their_state(monkeypatch: pytest.MonkeyPatch, tmp_path) -> None:
    """``squeue`` is a script that prints what the file ``queue`` says; tests/slurm asks a real one."""
    squeue = tmp_path / "squeue"
    squeue.write_text(f"#!/bin/sh\ncat {tmp_path}/queue")
    squeue.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    monkeypatch.setattr(expected_workers, "QUERY_SECONDS", 0.0)
    job = SimpleNamespace(
        job_id="17", submit_command="sbatch", log_directory="logs", job_name="worker", status=Status.running
    )
    jobs = SlurmJobs()
    (tmp_path / "queue").write_text("17 PENDING Resources\n18 RUNNING None\n")
    assert jobs.describe(job) == "job 17: pending (Resources)"
    assert jobs.describe(SimpleNamespace(**{**vars(job), "job_id": "18"})) == "job 18: running"
    assert jobs.ended(job) == ""
    (tmp_path / "queue").write_text("18 RUNNING None\n")
    assert jobs.ended(job) == "the job 17, whose log is logs/worker-17.err, has ended"
    job.log_directory = None
    assert jobs.ended(job) == "the job 17, whose log is slurm-17.out, has ended"
    assert jobs.describe(SimpleNamespace()) == ""
    squeue.write_text("#!/bin/sh\nexit 1")
    assert jobs.ended(job) == ""
    assert jobs.describe(job) == "job 17"

"""Runs within Dask tasks, beside other Dask tasks, and evaluations beside runs."""

import operator
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from uuid import uuid4

import dask
import pytest
from distributed import Client, worker_client

from dsinga import Cancelled, RunError, cluster
from dsinga.api import evaluate, roots, train
from dsinga.cluster import available_workers
from dsinga.cluster.queue import claims
from dsinga.job import Job
from dsinga.loop.initial_state import RunOptions
from tests.support.gated_runs import PATIENCE, Gate, run_states
from tests.support.small_job import assert_same, with_topology

STARTED, END = threading.Semaphore(0), threading.Event()


def train_embedded(job: Job) -> dict[str, Any]:
    """Task: train on a cluster that is started within the task."""
    with cluster.connect(workers=1) as client:
        return train(job, client, progress=False).params


def train_by_worker_client(job: Job) -> dict[str, Any]:
    """Task: train on the cluster of the task."""
    with worker_client() as client:
        # An error is a message that Dask measures, in the context in which the client was made.
        assert isinstance(client.submit(operator.truediv, 1, 0).exception(PATIENCE), ZeroDivisionError)
        return train(job, client, progress=False).params


@pytest.mark.ci
@pytest.mark.process
def test_tasks_train_on_their_own_cluster_after_others_have_trained_on_embedded_ones(job: Job) -> None:
    """In processes that have not trained before: an embedded run must not make the client of the Dask worker."""
    job = with_topology(job, 1)
    with cluster.connect(workers=2, separate_processes=True) as client:
        addresses = list(available_workers(client))
        params = []
        for task in (train_embedded, train_by_worker_client):
            futures = [client.submit(task, job, workers=[address], pure=False) for address in addresses]
            params += [future.result(PATIENCE) for future in futures]
    for each in params[1:]:
        assert_same(each, params[0])


def hold_thread() -> None:
    """Task: hold a thread of the Dask worker, which is in this process, until the test ends it."""
    STARTED.release()
    assert END.wait(PATIENCE)


@pytest.fixture
def held(threads: Client, monkeypatch: pytest.MonkeyPatch) -> Iterator[Client]:
    """The cluster while other tasks hold all threads of its Dask workers."""
    monkeypatch.setattr(claims, "QUIET_SECONDS", 0.0)
    monkeypatch.setattr(claims, "QUESTION_SECONDS", 0.2)
    END.clear()
    futures = [threads.submit(hold_thread, pure=False, key=f"hold-{number}-{uuid4()}") for number in range(3)]
    for _ in futures:
        assert STARTED.acquire(timeout=PATIENCE)
    yield threads
    END.set()
    threads.gather(futures)
    assert run_states(threads) == {}


def test_a_run_says_which_other_tasks_it_waits_for(job: Job, held: Client) -> None:
    gate = Gate(opened=True)
    with ThreadPoolExecutor() as pool:
        run = pool.submit(cluster.train, with_topology(job, 3), held, gate, RunOptions(roots=roots(job, None)))
        assert gate.waited.wait(PATIENCE)
        assert "all threads of the Dask worker inproc://" in gate.sentences[0]
        assert "run other tasks: 'hold-" in gate.sentences[0]
        assert "distributed.secede()" in gate.sentences[0]
        END.set()
        assert run.result(PATIENCE).step == 50
    assert len(gate.sentences) == 1


def test_a_run_that_waits_for_other_tasks_can_be_cancelled(job: Job, held: Client) -> None:
    gate, cancelled = Gate(), threading.Event()
    with ThreadPoolExecutor() as pool:
        run = pool.submit(
            cluster.train, with_topology(job, 3), held, gate, RunOptions(roots=roots(job, None), cancelled=cancelled)
        )
        assert gate.waited.wait(PATIENCE)
        cancelled.set()
        with pytest.raises(Cancelled):
            run.result(PATIENCE)


def test_a_run_waits_for_other_tasks_as_long_as_it_may(job: Job, held: Client) -> None:
    timeout = dask.config.set({"dsinga.queue_timeout": "10ms"})
    with timeout, pytest.raises(RunError, match=r"run other tasks: 'hold-\S+'; that is as long as dsinga"):
        train(with_topology(job, 3), held, progress=False)


def test_a_run_goes_to_a_dask_worker_without_other_tasks(job: Job, threads: Client) -> None:
    END.clear()
    held = list(available_workers(threads))[:2]
    futures = [threads.submit(hold_thread, pure=False, key=f"hold-{uuid4()}", workers=[address]) for address in held]
    for _ in futures:
        assert STARTED.acquire(timeout=PATIENCE)
    gate = Gate(opened=True)
    assert cluster.train(with_topology(job, 1), threads, gate, RunOptions(roots=roots(job, None))).step == 50
    assert gate.sentences == []
    END.set()
    threads.gather(futures)


@pytest.mark.ci
def test_evaluations_get_their_turn_beside_a_run_on_all_threads(job: Job, threads: Client) -> None:
    params = train(with_topology(job, 1), threads, progress=False).params
    alone = evaluate(job, params, client=threads)
    gate, cancelled = Gate(opened=True), threading.Event()
    endless = with_topology(job, 3).replace(train_steps=1_000_000)
    with ThreadPoolExecutor() as pool:
        run = pool.submit(
            cluster.train, endless, threads, gate, RunOptions(roots=roots(job, None), cancelled=cancelled)
        )
        assert gate.reached.wait(PATIENCE)
        beside = [pool.submit(evaluate, job, params, client=threads) for _ in range(2)]
        assert [each.result(PATIENCE) for each in beside] == [alone] * 2
        assert not run.done()
        cancelled.set()
        with pytest.raises(Cancelled):
            run.result(PATIENCE)

"""Runs within Dask tasks, the names of a run's own tasks, and clients of tasks."""

import operator
import threading
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from uuid import uuid4

import dask
import distributed
import pytest
from dask.utils import key_split
from distributed import Client, get_task_stream, worker_client

from dsinga import Cancelled, RunError, cluster
from dsinga.api import evaluate, train
from dsinga.cluster import available_workers, connect
from dsinga.cluster.dask.dask_workers import task_client
from dsinga.cluster.dask.run_tasks import SPAN, RoundLength
from dsinga.cluster.queue import claims
from dsinga.job import Job
from dsinga.loop.initial_state import RunOptions
from tests.support.gated_runs import PATIENCE, Gate, run_states
from tests.support.observers import Silent, train_observed
from tests.support.polling import wait_until
from tests.support.scheduler_messages import count_messages
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
        run = pool.submit(train_observed, with_topology(job, 3), held, gate)
        assert gate.waited.wait(PATIENCE)
        assert "all threads of the Dask worker inproc://" in gate.sentences[0]
        assert "run other tasks: 'hold-" in gate.sentences[0]
        assert "distributed.secede()" in gate.sentences[0]
        END.set()
        assert run.result(PATIENCE).step == 50
    assert len(gate.sentences) == 1


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
    assert train_observed(with_topology(job, 1), threads, gate).step == 50
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
        run = pool.submit(train_observed, endless, threads, gate, cancelled=cancelled)
        assert gate.reached.wait(PATIENCE)
        beside = [pool.submit(evaluate, job, params, client=threads) for _ in range(2)]
        assert [each.result(PATIENCE) for each in beside] == [alone] * 2
        assert not run.done()
        cancelled.set()
        with pytest.raises(Cancelled):
            run.result(PATIENCE)


def test_groups_and_workers_share_the_names_of_tasks(job: Job, threads: Client) -> None:
    job = with_topology(job, 1).replace(train_steps=12, test_freq=6, test_steps=1)
    job = job.replace(cluster=job.cluster.replace(nworker_groups=2, nserver_groups=2))
    with get_task_stream(threads) as stream:
        for _ in range(2):
            train(job, threads, progress=False)
    names = {"start server", "start worker", "connect servers", "train round", "evaluate", "pull values"}
    assert {key_split(task["key"]) for task in stream.data} == names


@pytest.mark.parametrize("grain", ["round", pytest.param("graph", marks=pytest.mark.ci)])
def test_runs_share_a_span_and_leave_no_task_groups(grain: str, job: Job, threads: Client) -> None:
    """Dask's scheduler keeps spans for as long as it lives, with their groups of tasks."""
    scheduler = threads.cluster.scheduler  # type: ignore[union-attr]
    spans = scheduler.extensions["spans"].spans
    job = with_topology(job, 2).replace(train_steps=4, test_freq=2, test_steps=1)
    params = train(job, threads, progress=False, grain=grain).params
    before = len(spans)
    for _ in range(3):
        train(job, threads, progress=False, grain=grain)
        evaluate(job, params, client=threads, phase="test")
    assert len(spans) == before
    span = spans[SPAN]
    runs = {group.name.rpartition("-")[2] for group in span.groups}
    assert len(runs) <= 2, "the last run, and the evaluation after it"
    assert len(span._metadata["collections"]) <= 10


def test_a_span_of_the_caller_stays(job: Job, threads: Client) -> None:
    scheduler = threads.cluster.scheduler  # type: ignore[union-attr]
    with distributed.span("study") as name:
        train(with_topology(job, 1).replace(train_steps=2), threads, progress=False)
    assert {"start server", "start worker", "train round"} <= {
        group.prefix.name for group in scheduler.extensions["spans"].spans[name].groups
    }


def test_names_of_tasks_of_ended_runs_go(job: Job, processes: Client) -> None:
    """Dask caches the name of each task by its key in every process."""
    train(with_topology(job, 2).replace(train_steps=4), processes, progress=False)
    wait_until(lambda: not any(processes.run(cached_names).values()) and not processes.run_on_scheduler(cached_names))


def cached_names() -> int:
    return key_split.cache_info().currsize


# The messages of a round: its task is sent and ends, the results of the round before are released.
OF_ROUNDS = ("update-graph", "task-finished", "client-releases-keys", "release-worker-data")


class Rounds(Silent):
    """An observer that keeps the counts of messages at the end of each round."""

    def __init__(self, counts: Counter[str]):
        self.counts, self.seen = counts, []

    def progress(self, row: dict[str, Any]) -> None:
        self.seen.append((row["step"], self.counts.copy()))


def test_a_round_costs_the_scheduler_four_messages_a_worker_whatever_its_steps(job: Job, stores: Path) -> None:
    with connect(workers=3) as client:
        counts = count_messages(client.cluster.scheduler)
        rounds = Rounds(counts)
        cluster.train(
            with_topology(job.replace(train_steps=150, test_freq=0), 3), client, rounds, RunOptions(roots=[str(stores)])
        )
    steps = rounds.seen[-1][0] - rounds.seen[1][0]
    assert steps > 5 * len(rounds.seen), "rounds have grown"
    counted = rounds.seen[-1][1] - rounds.seen[1][1]
    ahead = 3  # rounds in flight, whose messages may be counted with those of others
    assert counted["task-finished"] > 0
    for name in OF_ROUNDS:
        assert counted[name] <= 3 * (len(rounds.seen) - 2 + ahead), name


def test_rounds_of_many_workers_last_longer() -> None:
    def steps_of_a_round(workers: int) -> int:
        length = RoundLength(workers=workers)
        for _ in range(8):
            length.learn([0.01] * length.steps)
        return length.steps

    assert steps_of_a_round(1) == steps_of_a_round(32) == 100
    assert steps_of_a_round(64) == 200
    assert steps_of_a_round(512) == 1600


_both = threading.Barrier(2)


def test_there_is_none_outside_of_tasks() -> None:
    assert task_client() is None


def test_dask_workers_of_one_process_that_ask_at_once_have_connected_clients() -> None:
    for _ in range(5):  # the first question in a cluster makes the client
        with connect(workers=2) as client:
            addresses = client.scheduler_info()["workers"]
            states = [client.submit(state_of_client, workers=[address], pure=False) for address in addresses]
            assert client.gather(states) == ["running", "running"]


def state_of_client() -> str:
    """Return the state of the client of this task, after another one has come as far."""
    _both.wait(60)
    client = task_client()
    return client.status

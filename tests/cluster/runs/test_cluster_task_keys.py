"""What the scheduler sees of runs: names of tasks by what they do, and a few messages a worker and round."""

from collections import Counter
from pathlib import Path
from typing import Any

import distributed
import pytest
from dask.utils import key_split
from distributed import Client, get_task_stream
from distributed.utils import key_split_group

from dsinga import cluster
from dsinga.api import evaluate, train
from dsinga.cluster import connect
from dsinga.cluster.dask.run_tasks import SPAN, RoundLength, task_key
from dsinga.job import Job
from dsinga.loop.initial_state import RunOptions
from tests.support.observers import Silent
from tests.support.polling import wait_until
from tests.support.scheduler_messages import count_messages
from tests.support.small_job import with_topology


@pytest.mark.parametrize("run", ["12345678", "abcdefab", "1a2b3c4d"])
@pytest.mark.parametrize("words", ["train round", "forward conv_1..pool_1", "backward loss"])
def test_the_run_is_in_the_group_and_not_in_the_prefix(words: str, run: str) -> None:
    key = task_key(words.replace("_", "-"), run, "step 3", "worker 0")
    assert key_split(key) == words
    assert key_split_group(key) == f"{words}-{run}"


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

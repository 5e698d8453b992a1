"""A run sends the Dask scheduler a few messages a worker and round, however many steps the round has."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

from dsinga import cluster
from dsinga.cluster import connect
from dsinga.engine.round_length import RoundLength
from dsinga.job import Job
from tests.support.observers import Silent
from tests.support.scheduler_messages import count_messages
from tests.support.small_job import with_topology

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
        cluster.train(with_topology(job.replace(train_steps=150, test_freq=0), 3), client, rounds, roots=[str(stores)])
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

"""What a run asks of the Dask scheduler: a few messages a worker and round, however many steps there are."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

from dsinga import cluster
from dsinga.cluster import connect, timetable
from dsinga.job import Job
from tests.support.scheduler_messages import count_messages
from tests.support.small_job import with_topology

# By which a round comes and goes: its task is sent and ends, what came before it is let go.
OF_ROUNDS = ("update-graph", "task-finished", "client-releases-keys", "release-worker-data")


class Rounds:
    """An observer that counts rounds, and keeps what was counted at the end of the second and of the last."""

    def __init__(self, counts: Counter[str]):
        self.counts, self.seen = counts, []

    def begin(self, step: int) -> None: ...

    def record(self, row: dict[str, Any]) -> None: ...

    def progress(self, row: dict[str, Any]) -> None:
        self.seen.append((row["step"], self.counts.copy()))


def test_a_round_costs_the_scheduler_four_messages_a_worker_whatever_its_steps(job: Job, stores: Path) -> None:
    with connect(workers=3) as client:
        counts = count_messages(client.cluster.scheduler)
        rounds = Rounds(counts)
        cluster.train(with_topology(job.replace(train_steps=150, test_freq=0), 3), client, rounds, roots=[str(stores)])
    steps = rounds.seen[-1][0] - rounds.seen[1][0]
    assert steps > 5 * len(rounds.seen), "rounds have grown"
    found = rounds.seen[-1][1] - rounds.seen[1][1]
    ahead = 3  # rounds, whose messages may be counted with others
    assert found["task-finished"] > 0
    for name in OF_ROUNDS:
        assert found[name] <= 3 * (len(rounds.seen) - 2 + ahead), name


def test_rounds_of_many_workers_last_longer() -> None:
    def settled(workers: int) -> int:
        pace = timetable.RoundLength(workers=workers)
        for _ in range(8):
            pace.learn([0.01] * pace.steps)
        return pace.steps

    assert settled(1) == settled(32) == 100
    assert settled(64) == 200
    assert settled(512) == 1600

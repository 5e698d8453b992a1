"""Grains of a run: what one Dask task computes, a round of iterations or a segment of one iteration."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from distributed import Future

from dsinga.cluster.dask.task_keys import steps_words
from dsinga.cluster.on_workers import tasks
from dsinga.cluster.run.cluster_run import ClusterRun
from dsinga.job import Job


class Grain(NamedTuple):
    """A way to send iterations to Dask. The numbers that a run computes do not depend on it.

    Attributes:
        send_round: sends the iterations ``start`` to ``stop`` - 1 of a worker group, given as (run, group, start,
            stop); returns the tasks whose results are the reports of the round, one a worker.
        check: raises JobError for a job that this grain cannot run.
        most_steps: the largest number of iterations in a round; None for no limit.
    """

    send_round: Callable[[ClusterRun, int, int, int], list[Future]]
    check: Callable[[Job], None]
    most_steps: int | None = None


def _send_round(run: ClusterRun, group: int, start: int, stop: int) -> list[Future]:
    return run.send(tasks.train_round, group, steps_words(start, stop), start, stop)


ROUNDS = Grain(_send_round, lambda job: None)

"""A run on processes, one of which is killed."""

import math
import os
import signal

import pytest

from dsinga import cluster
from dsinga.cluster import connect
from dsinga.cluster.run import recovery
from dsinga.job import Job
from dsinga.loop.run_loop import TrainedParams
from tests.support.observers import Recorder, of_phase, train_observed
from tests.support.small_job import assert_same


def train_with_a_killed_process(job: Job, workers: int, victim: int) -> TrainedParams:
    """Train on so many processes, of which one is killed after 50 steps; check that it changes no bit.

    ``victim`` is its place among the Dask workers.
    """
    with connect(workers=workers) as client:
        unbroken = train_observed(job, client, Recorder())
    with connect(workers=workers, separate_processes=True) as client, pytest.MonkeyPatch.context() as patch:
        patch.setattr(recovery, "MOVE_FACTOR", math.inf)  # else a slow run moves to the process that comes back
        pid = client.run(os.getpid)[list(cluster.available_workers(client))[victim]]
        broken = Recorder(50, lambda: os.kill(pid, signal.SIGKILL))
        outcome = train_observed(job, client, broken)
    assert broken.acted
    assert [row["generation"] for row in of_phase(broken.rows, "recovery")] == [1]
    assert_same(outcome.params, unbroken.params)
    return outcome

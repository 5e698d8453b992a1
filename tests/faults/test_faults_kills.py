"""A Dask worker, or the scheduler, that is lost before any step of a run's start ends the run, and is named."""

import signal
from pathlib import Path

import dask.config
import pytest

from tests.support.forked_cluster import forked_cluster
from tools.faults.kills import STAGES, run_stage, verdict

pytestmark = pytest.mark.process
WAIT = 20.0
QUICK = {("scheduler", "servers created")}


def check(victim: str, stage: str, number: int, folder: Path) -> None:
    with forked_cluster(2) as cluster:
        name = cluster.workers[1] if victim == "worker" else victim
        seconds, end = run_stage(STAGES[stage], cluster, name, number, folder)
    assert not verdict(STAGES[stage], seconds, end, name, WAIT), end


@pytest.mark.parametrize(
    ("victim", "stage"),
    [
        pytest.param(victim, stage, marks=[] if (victim, stage) in QUICK else pytest.mark.slow)
        for victim in ("worker", "scheduler")
        for stage in STAGES
    ],
)
def test_a_killed_process_is_named(victim: str, stage: str, forked: None, stores: Path) -> None:
    """The messages: "was lost"."""
    check(victim, stage, signal.SIGKILL, stores)


@pytest.mark.slow
@pytest.mark.parametrize("stage", ["workers asked", "servers created", "params put", "first round awaited"])
def test_a_stopped_worker_is_named(stage: str, forked: None, stores: Path) -> None:
    """Messages: "the Dask scheduler has not heard from the Dask worker", or what was waited for."""
    with dask.config.set({"dsinga.timeout": 3.0}):
        check("worker", stage, signal.SIGSTOP, stores)

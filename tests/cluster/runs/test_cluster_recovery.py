"""A run that loses Dask workers goes on elsewhere from its last snapshot, with the same bits."""

import math
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from dsinga import cluster
from dsinga.api import train
from dsinga.cluster import connect
from dsinga.cluster.run import recovery
from dsinga.job import ClusterConf, Job
from dsinga.loop.timings_file import read_timings
from tests.support.observers import Recorder, of_phase, train_observed
from tests.support.refusals import refused
from tests.support.small_job import assert_same

pytestmark = pytest.mark.process


@pytest.fixture(autouse=True)
def no_moves(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let no run move to a process that comes back, as one would that takes long on a busy machine."""
    monkeypatch.setattr(recovery, "MOVE_FACTOR", math.inf)


@pytest.mark.ci
@pytest.mark.parametrize(
    ("figures", "victim"),
    [
        ({"nworkers_per_group": 2, "nservers_per_group": 2, "compression": "kBF16"}, 0),
        pytest.param({"nworkers_per_group": 2, "nservers_per_group": 2}, 2, marks=pytest.mark.slow),
        pytest.param({"nworkers_per_group": 2, "server_worker_separate": True}, 0, marks=pytest.mark.slow),
        pytest.param({"nworkers_per_group": 2, "server_worker_separate": True}, 2, marks=pytest.mark.slow),
        pytest.param({"nworkers_per_group": 3, "update": "kWorker"}, 0, marks=pytest.mark.slow),
        pytest.param({"nworkers_per_group": 3, "update": "kWorker", "compression": "kBF16"}, 0, marks=pytest.mark.slow),
    ],
)
def test_a_run_goes_on_without_a_killed_worker(job: Job, figures: dict[str, Any], victim: int, tmp_path: Path) -> None:
    job = job.replace(cluster=ClusterConf(**figures), train_steps=400, test_freq=100, test_steps=2)
    with connect(workers=3) as client:
        recorder = Recorder()
        unbroken = train_observed(job, client, recorder)
    with connect(workers=3, separate_processes=True) as client:
        pid = client.run(os.getpid)[list(cluster.available_workers(client))[victim]]
        broken = Recorder(150, lambda: os.kill(pid, signal.SIGKILL))
        outcome = train_observed(job, client, broken, workspace=tmp_path)
    assert broken.acted
    assert_same(outcome.params, unbroken.params)
    for phase in ("train", "test"):
        assert of_phase(broken.rows, phase) == of_phase(recorder.rows, phase)
    is_used = victim < 2 or figures["nworkers_per_group"] == 3 or "server_worker_separate" in figures
    assert [row["generation"] for row in of_phase(broken.rows, "recovery")] == ([1] if is_used else [])
    assert read_timings(tmp_path).places.unpredicted == ("was started again on other Dask workers" if is_used else "")


def test_retry_needs_a_workspace(job: Job) -> None:
    refused(lambda: train(job, retry=True, progress=False), "retry=True goes on from checkpoints", "name a workspace")

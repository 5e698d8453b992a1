"""Sites that lose Dask workers: one starts again alone, and a run that moves meanwhile starts again."""

import os
import signal
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from dsinga import cluster
from dsinga.cluster import connect
from dsinga.cluster.run.servers import Servers
from dsinga.job import ClusterConf, Job
from tests.cluster.runs.test_cluster_departures import looks_often, wait_for_departure
from tests.cluster.runs.test_cluster_group_recovery import HOGWILD, check_a_group_starts_again
from tests.support.observers import Recorder, of_phase, train_observed

pytestmark = [pytest.mark.process, pytest.mark.usefixtures("looks_often")]
MEAN = {**HOGWILD, "sync_method": "kMean", "mean_conf": {"asynchronous": True}}
__all__ = ["looks_often"]


@pytest.mark.slow
def test_a_site_starts_again_alone(job: Job) -> None:
    check_a_group_starts_again(job, MEAN, "1-0", {"servers 0": {"0"}, "servers 1": {"1"}})


@pytest.mark.ci
def test_a_worker_that_is_lost_while_groups_move_lets_all_start_again(job: Job, monkeypatch: pytest.MonkeyPatch):
    """Found where the link of a site was cut for 30 s: the Dask worker came back, and was lost while the run moved."""
    conf = {"nworker_groups": 2, "nserver_groups": 2, "sync_freq": 2, "sync_method": "kMean"}
    job = job.replace(cluster=ClusterConf(**conf, mean_conf={"asynchronous": True}), train_steps=300, disp_freq=10)
    create = Servers.create
    with connect(workers=4, separate_processes=True) as client, ThreadPoolExecutor() as pool:
        addresses = [*cluster.available_workers(client)]
        pids = client.run(os.getpid)

        def kill_first(servers: Servers, step: int) -> None:
            if servers._config.generation == 1:  # that of the move
                (new,) = {address for group in servers._placement.servers for address in group} - {*addresses[:2]}
                os.kill(pids[new], signal.SIGKILL)
            create(servers, step)

        monkeypatch.setattr(Servers, "create", kill_first)

        def retire() -> None:
            pool.submit(client.retire_workers, [addresses[1]])
            wait_for_departure(client)

        recorder = Recorder(100, retire)
        outcome = train_observed(job, client, recorder)
    assert outcome.step == 300
    assert [row["generation"] for row in of_phase(recorder.rows, "recovery")] == [2]
    assert all(np.isfinite(value).all() for value in outcome.params.values())

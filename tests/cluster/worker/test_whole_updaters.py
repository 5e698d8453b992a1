"""Updaters of whole params give a single worker's params, however servers and workers share the params."""

from typing import Any

import numpy as np
import pytest

import dsinga
from dsinga.job import ClusterConf, Job, UpdaterConf, loads
from dsinga.reading.bind_records import bind_records
from tests.support.small_job import JOB, WORDS, assert_close, assert_same
from tests.support.train_in_threads import train_in_threads

RNG = np.random.default_rng(3)
X, Y = RNG.normal(0, 16, (200, 1, 8, 8)).astype(np.float32), RNG.integers(0, 10, 200)
UPDATERS = ["kLamb", "kMuon"]


def job_of(kind: str, cluster: dict[str, Any] | None = None, text: str = JOB, *overrides: str) -> Job:
    """Return a job of 6 steps."""
    rate = {"type": "kFixed", "base_lr": 0.01}
    updater = UpdaterConf(type=kind, learning_rate=rate, weight_decay=0.1)
    job = loads(text.replace("STORE", "batchsize: 20"), overrides=list(overrides))
    job = job.replace(train_steps=6, updater=updater, cluster=ClusterConf(**(cluster or {})))
    if text == JOB:
        return bind_records(job, (X, Y))
    return bind_records(job, (np.random.default_rng(5).integers(0, 50, (200, 4)), Y))


CLUSTERS: dict[str, dict[str, Any]] = {
    "one": {},
    "servers": {"nservers_per_group": 3},
    "blocks": {"nservers_per_group": 2, "slicing": "kBlock", "block_size": 50},
    "workers": {"nworkers_per_group": 3, "nservers_per_group": 2},
    "updates of workers": {"nworkers_per_group": 2, "nservers_per_group": 2, "update": "kWorker"},
    "gathered": {"nworkers_per_group": 2, "fullc_gather": True},
}


@pytest.mark.parametrize("kind", UPDATERS)
@pytest.mark.parametrize(
    "text", [pytest.param(JOB, id="images", marks=pytest.mark.ci), pytest.param(WORDS, id="words")]
)
def test_servers_and_workers_do_not_change_the_params(kind: str, text: str) -> None:
    single = dsinga.train(job_of(kind, None, text, "blocks=3"), progress=False).params
    for cluster in CLUSTERS.values():
        assert_same(train_in_threads(job_of(kind, cluster, text, "blocks=3")).params, single)


@pytest.mark.parametrize("kind", UPDATERS)
def test_a_param_on_another_worker_stays_whole(kind: str) -> None:
    location = "neuralnet.layer[ip].location=1"
    params = train_in_threads(job_of(kind, {"nworkers_per_group": 2}, JOB, location)).params
    assert_close(params, train_in_threads(job_of(kind)).params, 2e-5)


@pytest.mark.parametrize("kind", UPDATERS)
def test_a_param_that_is_cut_by_features_is_refused(kind: str) -> None:
    job = job_of(kind, {"nworkers_per_group": 2}, JOB, "neuralnet.layer[ip].partition_dim=1")
    with pytest.raises(dsinga.UserError, match=f"{kind} updates whole params, but 'w2' is cut by features; give its"):
        train_in_threads(job)

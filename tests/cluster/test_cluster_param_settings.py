"""Settings of the updater by param names hold for parts of params too, on servers and on workers that update."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from distributed import Client

from dsinga.api import train
from dsinga.job import ClusterConf, Job, UpdaterConf
from tests.support.small_job import assert_same

FEATURES = {"partition_dim": 1}


@pytest.fixture
def settings_job(job: Job) -> Job:
    """The small job, with settings for its second weight, and a bias that stays as it is."""
    updater = job.updater.replace(
        momentum=0.0,
        momentum_conf={"saturation_step": 8},
        param_settings=[
            {"match": "b1", "base_lr": 0},
            {"match": "w?", "base_lr": 0.003, "clip_low": -0.01, "clip_high": 0.02},
        ],
    )
    assert isinstance(updater, UpdaterConf)
    return job.replace(updater=updater, train_steps=12, disp_freq=0)


@pytest.mark.parametrize(
    ("topology", "net"),
    [
        ({"nservers_per_group": 2}, {}),
        ({"nservers_per_group": 2}, FEATURES),
        ({"update": "kWorker"}, {}),
    ],
    ids=["rows", "features", "own updates"],
)
def test_params_are_those_of_one_worker(
    settings_job: Job, threads: Client, topology: dict[str, Any], net: dict[str, Any]
) -> None:
    one = train(settings_job, client=threads, progress=False).params
    cut = settings_job.replace(
        cluster=ClusterConf(nworkers_per_group=2, **topology), neuralnet=settings_job.net.replace(**net)
    )
    two = train(cut, client=threads, progress=False).params
    for name in one:
        np.testing.assert_allclose(two[name], one[name], rtol=2e-4, atol=2e-5, err_msg=name)
    assert not one["b1"].any()  # a rate of 0
    assert one["b2"].any()


@pytest.mark.parametrize(("topology", "stop"), [({"nservers_per_group": 2}, 5), ({"update": "kWorker"}, 9)], ids=str)
def test_a_run_resumed_in_a_schedule_and_a_moving_momentum_gives_the_same_bits(
    settings_job: Job, threads: Client, tmp_path: Path, topology: dict[str, Any], stop: int
) -> None:
    """The rate of the net falls from step 3 to a floor, that of one weight in stairs; the momentum moves to step 8."""
    falling = {"type": "kExponential", "base_lr": 0.02, "exponential_conf": {"change_freq": 2, "gamma": 0.7}}
    stairs = {"type": "kStep", "base_lr": 0.01, "step_conf": {"change_freq": 4, "gamma": 0.5}}
    updater = settings_job.updater.replace(
        learning_rate={**falling, "start_step": 3, "minimum_lr": 0.002},
        param_settings=[{"match": "w2", "learning_rate": stairs}, *settings_job.updater.param_settings[:1]],
    )
    job = settings_job.replace(updater=updater, cluster=ClusterConf(nworkers_per_group=2, **topology))
    unbroken = train(job, client=threads, progress=False)
    train(job.replace(train_steps=stop), client=threads, progress=False, workspace=tmp_path)
    resumed = train(job, client=threads, progress=False, workspace=tmp_path, resume=True)
    assert_same(resumed.params, unbroken.params)
    constant = job.replace(updater=updater.replace(momentum_conf=None, momentum=0.9))
    assert (train(constant, client=threads, progress=False).params["w2"] != unbroken.params["w2"]).any()

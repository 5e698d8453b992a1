"""Settings of the updater by param names hold for parts of params too, on servers and on workers that update."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from distributed import Client

from dsinga.api import train
from dsinga.job import ClusterConf, Job, UpdaterConf

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

"""Runs on a cluster whose nets are cut by space: groups, micro-batches, recomputation, resuming, lost workers."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from distributed import Client

from dsinga import models
from dsinga.api import train
from dsinga.cluster import connect
from dsinga.job import ClusterConf, Job
from tests.support.killed_run import train_with_a_killed_process
from tests.support.small_job import assert_same

ROWS = 4


def unet(cut: bool = True, steps: int = 4, normalisation: Any = "group", **fields: Any) -> Job:
    """Return the job of a small U-Net for fields of 16 x 16 points, in stripes if it is cut."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(12, 2, 16, 16)).astype(np.float32)
    model = models.unet((2, 16, 16), width=4, depth=1, normalisation=normalisation, padding=("edge", "periodic"))
    model.compile("sgd", "mse")
    job = model.job(x, x[:, :1] ** 2, train_steps=steps, batch_size=fields.pop("batch_size", ROWS), seed=3)
    return job.replace(net=job.net.replace(partition_dim=2 if cut else 0), **fields)


def params(job: Job, client: Client, **conf: Any) -> dict[str, np.ndarray]:
    job = job.replace(cluster=ClusterConf(**conf)) if conf else job
    return train(job, client=client, progress=False).params


def check(found: dict[str, np.ndarray], expected: dict[str, np.ndarray]) -> None:
    for name, param in expected.items():
        np.testing.assert_allclose(found[name], param, rtol=0, atol=1e-6 * max(abs(param).max(), 1), err_msg=name)


@pytest.mark.parametrize("normalisation", ["batch", "group"])
def test_a_unet_in_stripes_has_the_params_of_one_worker(threads: Client, normalisation: str) -> None:
    found = params(unet(normalisation=normalisation), threads, nworkers_per_group=2)
    check(found, params(unet(False, normalisation=normalisation), threads))


def test_a_batch_of_one_record(threads: Client) -> None:
    job = unet(batch_size=1)
    check(params(job, threads, nworkers_per_group=2), params(unet(False, batch_size=1), threads))


def test_micro_batches_and_recomputation(threads: Client) -> None:
    job = unet(micro_batches=2)
    job = job.replace(net=job.net.replace(recompute=2))
    check(params(job, threads, nworkers_per_group=2), params(unet(False), threads))


@pytest.mark.ci
def test_two_groups() -> None:
    job = unet(steps=20).replace(cluster=ClusterConf(nworkers_per_group=2, nworker_groups=2))
    with connect(workers=4) as client:
        result = train(job, client=client, progress=False)
    losses = [row["loss"] for row in result.history if "loss" in row]
    assert losses[-1] < losses[0]


@pytest.mark.ci
def test_a_resumed_run_is_the_unbroken_one(threads: Client, tmp_path: Path) -> None:
    conf = ClusterConf(nworkers_per_group=2)
    unbroken = train(unet(steps=8).replace(cluster=conf), client=threads, progress=False)
    half = unet(steps=4).replace(cluster=conf)
    train(half, client=threads, progress=False, workspace=tmp_path)
    resumed = train(half.replace(train_steps=8), client=threads, progress=False, workspace=tmp_path, resume=True)
    assert_same(resumed.params, unbroken.params)


@pytest.mark.slow
@pytest.mark.process
def test_a_killed_worker_changes_no_bit() -> None:
    job = unet(steps=300).replace(cluster=ClusterConf(nworkers_per_group=2))
    train_with_a_killed_process(job, workers=3, victim=0)

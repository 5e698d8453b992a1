"""A residual net partitioned by rows and by features computes what the uncut net computes."""

from __future__ import annotations

import numpy as np
import pytest

import dsinga
from dsinga import models
from dsinga.data import write_store
from dsinga.job import Job


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> Job:
    folder, random = tmp_path_factory.mktemp("images"), np.random.default_rng(0)
    images, labels = random.integers(0, 256, (24, 3, 8, 8)).astype(np.uint8), random.integers(3, size=24)
    for part in ("train", "test"):
        write_store(folder / f"{part}_data.zarr", [(images, labels)])
    write_store(folder / "image_mean.zarr", [(images.mean(axis=0, dtype=np.float32)[None], None)])
    return models.resnet(8, 3, str(folder), size=8, batchsize=12, train_steps=3, test_freq=0, disp_freq=1)


@pytest.fixture(scope="module")
def alone(job: Job) -> dsinga.Result:
    return dsinga.train(job, workers=1, progress=False)


@pytest.mark.parametrize(("dimension", "workers"), [(0, 3), (1, 2)])
def test_a_partitioned_residual_net_equals_the_uncut_one(job: Job, alone: dsinga.Result, dimension: int, workers: int):
    cut = job.replace(net=job.net.replace(partition_dim=dimension))
    result = dsinga.train(cut, workers=workers, progress=False)
    for name, value in alone.params.items():
        np.testing.assert_allclose(result.params[name], value, rtol=0, atol=1e-5 * np.abs(value).max(), err_msg=name)
    assert result.history[-1, "loss"] == pytest.approx(alone.history[-1, "loss"], rel=1e-5)

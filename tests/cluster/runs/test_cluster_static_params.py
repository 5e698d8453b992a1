"""Settings of the updater by param names, and static params: the same however the net is cut."""

from typing import Any

import numpy as np
import pytest
from distributed import Client

from dsinga.api import train
from dsinga.base.errors import UserError
from dsinga.job import ClusterConf, Job
from dsinga.job.reader import with_fields


def frozen(job: Job, *names: str, **fields: Any) -> Job:
    """Return the job without momentum, for a few steps, with these fields in the params of these names."""
    layers = [
        layer.replace(param=[param.replace(**fields) if param.name in names else param for param in layer.param])
        for layer in job.net.layer
    ]
    return job.replace(train_steps=8, disp_freq=4, test_freq=0, neuralnet=job.net.replace(layer=layers))


@pytest.mark.parametrize(("dim", "update"), [(0, "kServer"), (1, "kWorker")])
def test_they_keep_their_values(job: Job, threads: Client, dim: int, update: str) -> None:
    static = frozen(job, "w1", "b1", "w2", static=True)
    static = static.replace(neuralnet=static.net.replace(partition_dim=dim))
    cluster = ClusterConf(nworkers_per_group=2, nservers_per_group=2, update=update)
    result = train(static.replace(cluster=cluster), client=threads, progress=False)
    alone = train(static, workers=1, progress=False)
    rest = train(frozen(job, "w1", "b1", "w2", lr_scale=0, wd_scale=0), workers=1, progress=False)
    for name in ("w1", "b1", "w2"):
        assert result.params[name].tobytes() == alone.params[name].tobytes() == rest.params[name].tobytes()
    for name in ("b2", "norm_scale"):
        np.testing.assert_allclose(result.params[name], rest.params[name], rtol=1e-4, atol=1e-6)
        assert alone.params[name].tobytes() == rest.params[name].tobytes()


def test_several_worker_groups_are_refused(job: Job) -> None:
    groups = frozen(job, "w1", static=True).replace(cluster=ClusterConf(nworker_groups=2))
    with pytest.raises(UserError, match="static params are kept by the workers of one group.*use lr_scale: 0, or one"):
        train(groups, progress=False)


def with_global_stats(job: Job) -> Job:
    """Return the job, for a few steps, whose batch normalisation keeps its running statistics."""
    fields = {"neuralnet.layer[norm].bm_conf.use_global_stats": "true", "train_steps": 8, "disp_freq": 4}
    return with_fields(job, fields)


@pytest.mark.parametrize(("dim", "update"), [(1, "kServer"), (0, "kWorker")])
def test_statistics_of_a_frozen_batch_normalisation_do_not_drift(
    job: Job, threads: Client, dim: int, update: str
) -> None:
    norm = with_global_stats(job)
    norm = norm.replace(neuralnet=norm.net.replace(partition_dim=dim))
    start = {"norm_mean": np.full(8, 0.3, np.float32), "norm_variance": np.full(8, 1.7, np.float32)}
    cluster = ClusterConf(nworkers_per_group=3, update=update)  # shares of 34, 33 and 33 records, which do not add up
    result = train(norm.replace(cluster=cluster), client=threads, progress=False, params=start)
    alone = train(norm, workers=1, progress=False, params=start)
    for name, value in start.items():
        np.testing.assert_array_equal(result.params[name], value)
    assert not np.array_equal(alone.params["norm_scale"], np.ones(8))
    for name, value in alone.params.items():
        np.testing.assert_allclose(result.params[name], value, rtol=1e-4, atol=1e-5)


def test_global_statistics_of_several_worker_groups_are_refused(job: Job) -> None:
    with pytest.raises(
        UserError, match="use_global_stats keeps statistics in the workers of one group, but there are 2"
    ):
        train(with_global_stats(job).replace(cluster=ClusterConf(nworker_groups=2)), progress=False)


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
    return job.replace(updater=updater, train_steps=12, disp_freq=0)


@pytest.mark.parametrize(
    ("topology", "net"),
    [({"nservers_per_group": 2}, {}), ({"nservers_per_group": 2}, FEATURES), ({"update": "kWorker"}, {})],
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

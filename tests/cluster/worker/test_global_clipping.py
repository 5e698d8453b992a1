"""The gradients of all params are scaled down to a norm together, however they are cut, and wherever they are added.

What is right: torch.nn.utils.clip_grad_norm_ (tests/core/training/test_local_updater.py), and a single worker.
"""

from typing import Any

import numpy as np
import pytest

import dsinga
from dsinga.job import ClusterConf, Job, check, loads
from dsinga.reading.bind_records import bind_records
from dsinga.training import create_updater
from tests.support.refusals import refused
from tests.support.small_job import JOB, assert_close, assert_same
from tests.support.train_in_threads import train_in_threads

RNG = np.random.default_rng(3)
X, Y = RNG.normal(0, 16, (200, 1, 8, 8)).astype(np.float32), RNG.integers(0, 10, 200)
MAX_NORM = 0.2


def job_of(cluster: dict[str, Any] | None = None, dims: dict[str, int] | None = None, **fields: Any) -> Job:
    """Return a job of 6 steps in each of which the norm of all gradients is clipped."""
    job = loads(JOB, overrides=[f"neuralnet.layer[{name}].partition_dim={dim}" for name, dim in (dims or {}).items()])
    updater = job.updater.replace(clip_global_norm=MAX_NORM)
    job = job.replace(train_steps=6, updater=updater, cluster=ClusterConf(**(cluster or {}))).replace(**fields)
    return bind_records(job, (X, Y))


@pytest.fixture(scope="module")
def single() -> dict[str, np.ndarray]:
    return train_in_threads(job_of()).params


CUTS: dict[str, tuple[dict[str, Any], dict[str, int]]] = {
    "servers": ({"nservers_per_group": 3}, {}),
    "blocks": ({"nservers_per_group": 2, "slicing": "kBlock", "block_size": 50}, {}),
    "gathered": ({"nworkers_per_group": 2, "fullc_gather": True}, {}),
    "features": ({"nworkers_per_group": 2, "nservers_per_group": 2}, {"conv": 1, "ip": 1}),
    "mixed": ({"nworkers_per_group": 3}, {"conv": 0, "ip": 1}),
}


@pytest.mark.parametrize("cut", CUTS)
def test_the_cut_does_not_change_the_norm(cut: str, single: dict[str, np.ndarray]) -> None:
    cluster, dims = CUTS[cut]
    params = train_in_threads(job_of(cluster, dims)).params
    assert_close(params, single, 1e-5)
    assert_same(params, train_in_threads(job_of(cluster, dims)).params)


@pytest.mark.parametrize("workers", [1, 3])
@pytest.mark.parametrize("update", ["kServer", "kWorker"])
def test_servers_and_workers_do_not_change_the_bits(update: str, workers: int, single: dict[str, np.ndarray]) -> None:
    """The squares of whole params are added without rounding, in whatever order."""
    job = job_of({"nworkers_per_group": workers, "nservers_per_group": 3, "update": update}, blocks=3 * (workers > 1))
    local = dsinga.train(job.replace(cluster=None), progress=False).params if workers > 1 else single
    assert_same(train_in_threads(job).params, local)


def test_the_local_engine_gives_the_bits_of_a_server(single: dict[str, np.ndarray]) -> None:
    assert_same(dsinga.train(job_of(), progress=False).params, single)


@pytest.mark.parametrize("workers", [1, 2])
def test_a_step_is_as_long_as_the_norm(workers: int) -> None:
    job = job_of({"nworkers_per_group": workers, "nservers_per_group": 2}, train_steps=1)
    rate = job.updater.learning_rate.replace(base_lr=1.0)
    job = job.replace(updater=job.updater.replace(learning_rate=rate, momentum=0.0, weight_decay=0.0))
    longer, shorter = (
        train_in_threads(job.replace(updater=job.updater.replace(clip_global_norm=norm))).params
        for norm in (MAX_NORM, 0.5 * MAX_NORM)
    )
    trained = [param for param in dsinga.build_net(job).params.values() if param.trainable]
    changes = [(longer[param.name] - shorter[param.name]).astype(np.float64) / param.lr_scale for param in trained]
    assert np.sqrt(sum(np.sum(change**2) for change in changes)) == pytest.approx(0.5 * MAX_NORM, rel=1e-4)


def test_a_norm_that_is_not_reached_changes_no_bits() -> None:
    job = job_of({"nworkers_per_group": 2})
    unclipped = train_in_threads(job.replace(updater=job.updater.replace(clip_global_norm=0.0))).params
    assert_same(train_in_threads(job.replace(updater=job.updater.replace(clip_global_norm=1e6))).params, unclipped)


def test_a_batch_may_be_skipped() -> None:
    """A record that is not finite leaves its batch out; the next step is clipped again."""
    x = X.copy()
    x[0] = np.nan
    job = bind_records(job_of({"nworkers_per_group": 2, "nservers_per_group": 2}, skip_bad_batches=True), (x, Y))
    run = train_in_threads(job)
    assert any(not metrics for metrics in run.metrics)
    assert all(np.isfinite(value).all() for value in run.params.values())


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"clip_norm": 1.0}, "clips twice: give clip_global_norm, or clip_norm, clip_low and clip_high"),
        ({"param_settings": [{"match": "*", "clip_high": 1.0}]}, "clips twice: give clip_global_norm, or clip_norm"),
        ({"nan_to_zero": True}, "nan_to_zero goes with clip_low and clip_high, not with clip_global_norm"),
        ({"clip_global_norm": -1.0}, "clip_global_norm must be at least 0"),
    ],
)
def test_what_cannot_hold_is_refused(fields: dict[str, Any], message: str) -> None:
    job = job_of()
    job = job.replace(updater=job.updater.replace(**fields))
    refused(lambda: prepare_updater(job), message, error=dsinga.UserError)


def prepare_updater(job: Job) -> None:
    check(job)
    create_updater(job.updater)

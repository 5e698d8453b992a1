"""Losses and metrics of fields with masked points and weights: on workers of a group and of two groups as on one."""

from typing import Any

import numpy as np
import pytest
import xarray as xr
from distributed import Client

import dsinga
from dsinga.job import ClusterConf, Job, loads
from tests.support.small_job import assert_close, with_topology

JOB = """
name: "fields" train_steps: 12 disp_freq: 4 test_freq: 12 seed: 3
updater { type: kAdam learning_rate { type: kFixed base_lr: 0.01 } }
neuralnet {
  layer { name: "data" type: kRecordInput store_conf { batchsize: 12 } }
  layer { name: "hidden" type: kConvolution srclayers: "data" convolution_conf { num_filters: 4 kernel: 3 pad: 1 }
    partition_dim: 1 param { init { type: kUniformSqrtFanIn } } }
  layer { name: "relu" type: kReLU srclayers: "hidden" partition_dim: 1 }
  layer { name: "out" type: kConvolution srclayers: "relu" convolution_conf { num_filters: 1 kernel: 1 pad: 0 }
    param { init { type: kUniformSqrtFanIn } } }
  layer { name: "target" type: kLabel srclayers: "data" }
  layer { name: "loss" type: kEuclideanLoss srclayers: ["out", "target"]
    euclideanloss_conf { masked: true weighted: true scale: 0.02 std: 2 } }
  layer { name: "errors" type: kFieldError srclayers: ["out", "data"]
    fielderror_conf { masked: true weighted: true channel: "t" climatology: 0.5 } }
}
"""
METRICS = ("loss", "rmse", "mae", "bias_t", "anomaly_correlation")


def data() -> dict[str, Any]:
    """Return windows to train and to test: a field with missing values, and the same a step later."""
    rng = np.random.default_rng(0)
    values = rng.normal(size=(80, 6, 8)).astype(np.float32)
    values[rng.uniform(size=values.shape) < 0.2] = np.nan
    coordinates = {"time": np.arange(80), "lat": np.linspace(60, -60, 6), "lon": np.arange(8) * 45.0}
    dataset = xr.Dataset({"t": (("time", "lat", "lon"), values)}, coordinates)
    sizes = {"time": 1, "lat": -1, "lon": -1}
    windows = dsinga.windows(
        dataset, inputs="t", targets="t", input_dims=sizes, lead={"time": 1}, mask=True, weights="cos(lat)"
    )
    train, test = windows.split(time=60)
    return {"train": train, "test": test}


@pytest.fixture(scope="module")
def job() -> Job:
    return loads(JOB)


def test_workers_compute_what_one_does(job: Job, threads: Client) -> None:
    single = dsinga.train(job, data=data(), progress=False)
    cut = dsinga.train(with_topology(job, 3), threads, data=data(), progress=False)
    assert_close(cut.params, single.params, 1e-5)
    for phase in ("train", "test"):
        rows = [result.history.phase(phase)[-1] for result in (cut, single)]
        for name in METRICS:
            assert rows[0][name] == pytest.approx(rows[1][name], rel=1e-4, abs=1e-6), (phase, name)


def test_two_groups_report_the_figures_of_all_records(job: Job, threads: Client) -> None:
    groups = job.replace(cluster=ClusterConf(nworker_groups=2, nserver_groups=2))
    result = dsinga.train(groups, threads, data=data(), progress=False)
    row = result.history.phase("test")[-1]
    tested = dsinga.evaluate(job, result.params, phase="test", data=data()["test"])
    for name in METRICS:
        assert row[name] == pytest.approx(tested[name], rel=1e-5), name

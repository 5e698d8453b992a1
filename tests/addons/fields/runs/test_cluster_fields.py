"""Training from windows of fields: any chunks, threads or processes give the same bits, and so does a lost worker."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr
from distributed import Client

import dsinga
from dsinga.job import ClusterConf, Job, loads
from tests.support.killed_run import train_with_a_killed_process
from tests.support.small_job import assert_close, assert_same, with_topology

JOB = """
name: "fields" train_steps: 12 disp_freq: 4 seed: 3 blocks: 2
train_one_batch { alg: kBP }
updater { type: kAdam learning_rate { type: kFixed base_lr: 0.01 } }
neuralnet {
  layer { name: "data" type: kRecordInput
    store_conf { path: "fields.zarr" batchsize: 16
      windows { inputs: "t" targets: "t" static: "ground" coordinates: "cos(lat)"
        dim { name: "time" size: 1 before: 1 lead: 2 }
        dim { name: "lat" size: 4 before: 1 after: 1 edges: "reflect" }
        dim { name: "lon" size: 6 overlap: 3 before: 1 after: 1 edges: "periodic" } } } }
  layer { name: "conv" type: kConvolution srclayers: "data" convolution_conf { num_filters: 4 kernel: 3 pad: 0 }
    param { name: "w1" init { type: kUniformSqrtFanIn } } param { name: "b1" } }
  layer { name: "relu" type: kReLU srclayers: "conv" }
  layer { name: "out" type: kConvolution srclayers: "relu" convolution_conf { num_filters: 1 kernel: 1 pad: 0 }
    param { name: "w2" init { type: kUniformSqrtFanIn } } param { name: "b2" } }
  layer { name: "label" type: kLabel srclayers: "data" }
  layer { name: "loss" type: kEuclideanLoss srclayers: "out" srclayers: "label" }
}
"""
CHUNKINGS: list[dict[str, int]] = [{"time": 1}, {"time": 7, "lat": 3}, {"lat": 2, "lon": 5}, {"time": -1}]


def dataset() -> xr.Dataset:
    rng = np.random.default_rng(0)
    dims, shape = ("time", "lat", "lon"), (40, 8, 12)
    variables = {"t": (dims, rng.normal(size=shape)), "ground": (dims[1:], rng.normal(size=shape[1:]))}
    dates = np.datetime64("2000-01-01", "ns") + np.arange(40) * np.timedelta64(6, "h")
    return xr.Dataset(variables, {"time": dates, "lat": np.linspace(70, -70, 8), "lon": np.arange(12) * 30.0})


def job_of(folder: Path, chunks: dict[str, int]) -> Job:
    """Return the job, whose store is written with these chunks."""
    dataset().chunk(chunks).to_zarr(folder / "fields.zarr", consolidated=False)
    return loads(JOB, "fields.conf", [f"neuralnet.layer[data].store_conf.path={folder / 'fields.zarr'}"])


@pytest.fixture(scope="module")
def expected() -> dict[str, np.ndarray]:
    """The params that the Dataset in memory gives in this process, and so on any number of workers."""
    return dsinga.train(loads(JOB), data=dataset(), progress=False).params


@pytest.mark.parametrize(
    ("client", "number"),
    [*(("processes", number) for number in range(len(CHUNKINGS))), ("threads", 1)],
    indirect=["client"],
)
def test_any_chunks_give_the_same_bits(client: Client, number: int, expected: Any, tmp_path: Path) -> None:
    job = job_of(tmp_path, CHUNKINGS[number])
    assert_same(dsinga.train(job, progress=False).params, expected)
    assert_same(dsinga.train(with_topology(job, 2), client, progress=False).params, expected)


def test_a_dataset_in_memory_or_of_dask_is_sent(processes: Client, expected: Any, tmp_path: Path) -> None:
    job = with_topology(job_of(tmp_path, CHUNKINGS[1]), 2)
    assert_same(dsinga.train(job, processes, data=dataset(), progress=False).params, expected)
    with xr.open_zarr(tmp_path / "fields.zarr", consolidated=False) as opened:
        assert_same(dsinga.train(job, processes, data=opened, progress=False).params, expected)


@pytest.mark.ci
def test_a_persisted_dataset_is_read_from_where_it_is(processes: Client, expected: Any) -> None:
    persisted = processes.persist(dataset().chunk(time=7, lat=3, lon=5))
    doubled = persisted * 2 * 0.5  # the same bits, which tasks compute from what is persisted
    result = dsinga.train(with_topology(loads(JOB), 2), processes, data=doubled, progress=False)
    assert_same(result.params, expected)


@pytest.mark.ci
@pytest.mark.process
def test_a_worker_that_is_killed_changes_no_bits(tmp_path: Path) -> None:
    job = job_of(tmp_path, CHUNKINGS[1]).replace(cluster=ClusterConf(nworkers_per_group=2), train_steps=200)
    train_with_a_killed_process(job, workers=3, victim=0)


@pytest.mark.ci
def test_several_leads_give_the_same_bits_and_are_cut_by_space(processes: Client, tmp_path: Path) -> None:
    """Fewer leads are trained at first; the processes change the number of leads at the same step."""
    start, end = JOB.index("        dim {"), JOB.index(" } } }")
    sizes = (("lat", "reflect"), ("lon", "periodic"))
    dims = "".join(f' dim {{ name: "{dim}" size: -1 before: 1 after: 1 edges: "{edge}" }}' for dim, edge in sizes)
    windows = f'dim {{ name: "time" size: 1 before: 1 lead: 1 }}{dims} leads: 3 lead_start: [0, 4, 8]'
    job = with_topology(loads(JOB[:start] + windows + JOB[end:].removeprefix(" }")), 1)
    expected = dsinga.train(job, data=dataset(), progress=False).params
    dataset().chunk(time=7).to_zarr(tmp_path / "fields.zarr", consolidated=False)
    data = xr.open_zarr(tmp_path / "fields.zarr", consolidated=False)
    assert_same(dsinga.train(job, data=data, client=processes, progress=False).params, expected)
    by_space = with_topology(job.replace(neuralnet=job.neuralnet.replace(partition_dim=2)), 2)
    assert_close(dsinga.train(by_space, data=data, client=processes, progress=False).params, expected, 1e-4)

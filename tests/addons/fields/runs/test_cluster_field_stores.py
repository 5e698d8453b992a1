"""Predictions of Datasets written to stores: a killed worker, memory, and stores that must not be overwritten."""

import json
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from distributed import Client

import dsinga
from dsinga import nn
from dsinga.addons.fields.prediction import tiles as field_tiles
from dsinga.addons.fields.prediction.field_prediction import predict_dataset
from dsinga.data import field_climatology, open_stores, write_ome_zarr
from dsinga.job import ClusterConf
from tests.addons.fields.records.test_references import references_to
from tests.addons.fields.runs.test_cluster_fields import dataset
from tests.support.field_nets import convolutions, define, make_dataset, make_job, make_params, whole_fields
from tests.support.forked_cluster import forked_cluster
from tests.support.killed_run import train_with_a_killed_process
from tests.support.polling import wait_until
from tests.support.programs import python
from tests.support.refusals import refused

xr = pytest.importorskip("xarray")

COORDINATES = ["latitude", "longitude", "area"]


@pytest.fixture
def small_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(field_tiles, "TILE_BYTES", 4 * 20 * 17 * 17)
    monkeypatch.setattr(field_tiles, "LEAST_CORE", 8)


def predicted_and_whole(path: Path, **sizes: int) -> tuple[Any, np.ndarray]:
    """Return the lazy prediction of a store that is written to ``path``, and what it must be."""
    dataset, definition = make_dataset(**sizes), define()
    dataset.chunk(time=50, latitude=10, longitude=12).to_zarr(path, consolidated=False)
    job = make_job(convolutions())
    params = make_params(job, definition, dataset)
    opened = xr.open_zarr(path, consolidated=False)
    predicted = predict_dataset(job, params, "end", opened, definition=definition)
    return predicted, whole_fields(job, params, definition, dataset)[:, 0]


def read(path: Path) -> np.ndarray:
    values: np.ndarray = xr.open_zarr(path, consolidated=False).t.values
    return values


def test_worker_processes_write_a_store(processes: Client, small_tiles: None, tmp_path: Path) -> None:
    predicted, whole = predicted_and_whole(tmp_path / "in.zarr")
    out = tmp_path / "out.zarr"
    predicted.to_zarr(out, consolidated=False)
    np.testing.assert_array_equal(read(out), whole)
    with pytest.raises(FileExistsError):  # xarray's mode "w-"
        (predicted * 0).to_zarr(out, consolidated=False)
    refused(lambda: (predicted * 0).isel(time=[0]).to_zarr(out, mode="a", consolidated=False), "t", error=ValueError)
    np.testing.assert_array_equal(read(out), whole)


def test_regions_of_a_store_are_written_apart(processes: Client, small_tiles: None, tmp_path: Path) -> None:
    predicted, whole = predicted_and_whole(tmp_path / "in.zarr")
    out = tmp_path / "out.zarr"
    (predicted * np.nan).chunk(time=1).to_zarr(out, compute=False, consolidated=False)
    for first, stop in ((8, 11), (0, 4), (4, 8)):
        part = predicted.isel(time=slice(first, stop)).drop_vars(COORDINATES)
        part.to_zarr(out, region={"time": slice(first, stop)}, consolidated=False)
    np.testing.assert_array_equal(read(out), whole)
    wrong = (predicted * 0).isel(time=slice(3), latitude=slice(9)).drop_vars(COORDINATES)
    refused(lambda: wrong.to_zarr(out, region={"time": slice(3)}, consolidated=False), "region", error=ValueError)
    np.testing.assert_array_equal(read(out), whole)


def test_a_persisted_dataset_is_predicted_where_it_is(processes: Client, small_tiles: None) -> None:
    dataset, definition = make_dataset(), define()
    job = make_job(convolutions())
    params = make_params(job, definition, dataset)
    persisted = processes.persist(dataset.chunk(time=5, latitude=10))
    predicted = predict_dataset(job, params, "end", persisted, definition=definition)
    computed = processes.compute(predicted.t.data).result()
    np.testing.assert_array_equal(computed, whole_fields(job, params, definition, dataset)[:, 0])


@pytest.mark.ci
@pytest.mark.process
def test_a_store_is_complete_after_a_worker_is_killed(small_tiles: None, tmp_path: Path) -> None:
    predicted, whole = predicted_and_whole(tmp_path / "in.zarr", time=200)
    out = tmp_path / "out.zarr"
    with forked_cluster(2) as running:
        written = running.client.compute(predicted.to_zarr(out, compute=False, consolidated=False))
        wait_until(lambda: sum(path.is_file() for path in (out / "t" / "c").rglob("*")) > 3)
        assert not written.done()
        os.kill(running.pids[running.workers[0]], signal.SIGKILL)
        written.result(timeout=60)
    np.testing.assert_array_equal(read(out), whole)


WRITE = """
import resource, sys
import dask, dask.array as da, numpy as np, xarray as xr
from dsinga.addons.fields.prediction.field_prediction import predict_dataset
from dsinga.addons.fields.records.window_arguments import define_windows
from dsinga.models.blocks import conv
from tests.support.field_nets import make_job

def make(block_info=None):
    return np.full(block_info[None]["chunk-shape"], 1.5, np.float32)

side, out = int(sys.argv[1]), sys.argv[2]
chunks = ((1,), (512,) * (side // 512), (512,) * (side // 512))
field = da.map_blocks(make, chunks=chunks, dtype=np.float32, meta=np.empty((0, 0, 0), np.float32))
dataset = xr.Dataset({"t": (("time", "y", "x"), field)})
definition = define_windows(inputs="t", targets="t", input_dims={"time": 1, "y": 64, "x": 64})
job = make_job([conv("end", "data", 1, 3, pad=1)])
params = {"end_weight": np.ones((1, 9), np.float32), "end_bias": np.zeros(1, np.float32)}
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
with dask.config.set(scheduler="threads", num_workers=2):
    predict_dataset(job, params, "end", dataset, definition=definition).to_zarr(out, consolidated=False)
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""


@pytest.mark.slow
def test_a_field_ten_times_the_limit_is_written_in_bounded_memory(tmp_path: Path) -> None:
    """A field of 1.4 GiB in 2 threads, and one of 90 MiB: neither takes more than 140 MiB beside the imports."""
    side, limit = 19 * 1024, 140 << 20
    assert 4 * side**2 > 10 * limit
    for size in (side, 4608):
        out = tmp_path / f"{size}.zarr"
        grown = 1024 * int(python("-c", WRITE, size, out).stdout)
        assert grown < limit, f"{grown >> 20} MiB"
        assert float(xr.open_zarr(out, consolidated=False).t[0, 5, 5]) == 9 * 1.5


# Training from each kind of source of fields while a process is killed: the bits of an unbroken run in threads.
pytest.importorskip("xarray")
SETTINGS: dict[str, Any] = {
    "inputs": "t", "targets": "t", "input_dims": {"time": 1, "lat": -1, "lon": -1}, "lead": {"time": 1},
}  # fmt: skip


def store(folder: Path, name: str = "t", part: slice = slice(None)) -> Path:
    path = folder / f"{name}.zarr"
    dataset()[["t"]].isel(time=part).chunk(time=7, lat=3).to_zarr(path, zarr_format=2, consolidated=False)
    return path


def several_stores(folder: Path) -> Any:
    paths = [store(folder, str(first), slice(first, first + 20)) for first in (0, 20)]
    return dsinga.windows(open_stores(paths), **SETTINGS)


def kerchunk(folder: Path) -> Any:
    (folder / "refs.json").write_text(json.dumps({"version": 1, "refs": references_to(store(folder))}))
    return dsinga.windows(folder / "refs.json", **SETTINGS)


def ome_zarr(folder: Path) -> Any:
    cells = (np.indices((4, 24, 24)).sum(axis=0) // 6 % 3).astype(np.int32)
    images = type(dataset())({"image": (("t", "y", "x"), cells * 100 + 7), "cells": (("t", "y", "x"), cells)})
    write_ome_zarr(images, folder / "cells.ome.zarr", labels="cells")
    settings: dict[str, Any] = {"input_dims": {"t": 1, "y": 8, "x": 8}, "targets": ["inside(cells)"]}
    return dsinga.windows(folder / "cells.ome.zarr", inputs="image", **settings)


def several_leads(folder: Path) -> Any:
    return dsinga.windows(store(folder), **SETTINGS, leads=3, lead_start=[0, 20, 100])


def climatology(folder: Path) -> Any:
    times = np.datetime64("2000-01-01", "ns") + np.arange(40) * np.timedelta64(10, "D")
    data = dataset()[["t"]].assign_coords(time=times)
    data.chunk(time=7).to_zarr(folder / "t.zarr", zarr_format=2, consolidated=False)
    return dsinga.windows(folder / "t.zarr", **SETTINGS, climatology=field_climatology(data))


SOURCES: list[Callable[[Path], Any]] = [several_stores, kerchunk, ome_zarr, several_leads, climatology]


@pytest.mark.ci
@pytest.mark.process
@pytest.mark.parametrize("source", SOURCES, ids=lambda source: str(source.__name__))
def test_a_killed_worker_changes_no_bits(source: Callable[[Path], Any], tmp_path: Path) -> None:
    windows = source(tmp_path)
    model = nn.Sequential([nn.Input(windows.shape), nn.Conv2D(2, 3, padding="same"), nn.Conv2D(1, 1)])
    model.compile(nn.Adam(0.001), "mse")
    train_with_a_killed_process(
        model.job(windows, batch_size=8, train_steps=200, cluster=ClusterConf(nworkers_per_group=2)), 3, 0
    )

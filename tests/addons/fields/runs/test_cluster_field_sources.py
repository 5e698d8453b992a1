"""Training from each kind of source of fields while a process is killed: the bits of an unbroken run in threads."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import dsinga
from dsinga import nn
from dsinga.data import field_climatology, open_stores, write_ome_zarr
from dsinga.job import ClusterConf
from tests.addons.fields.records.test_references import references_to
from tests.addons.fields.runs.test_cluster_fields import dataset
from tests.support.killed_run import train_with_a_killed_process

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

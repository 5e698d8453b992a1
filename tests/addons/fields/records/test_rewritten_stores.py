"""Data that are written again, or appended to, while they are read; metadata that contradict the arrays."""

import json
import logging
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr
import zarr

import dsinga
from dsinga.base.errors import UserError
from dsinga.data import open_records
from tests.support.refusals import refused

Read = Callable[[list[int]], np.ndarray]


def dataset(first: int, stop: int, seed: int = 0) -> xr.Dataset:
    numbers = np.random.default_rng(seed).normal(size=(stop - first, 4)).astype(np.float32)
    return xr.Dataset({"t": (("time", "lat"), numbers)}, {"time": np.arange(first, stop)}).chunk(time=6)


def written(path: Path, how: str, **options: Any) -> None:
    if path.suffix == ".nc":
        dataset(0, 24, 1 if how else 0).to_netcdf(path.with_suffix(".new"), engine="h5netcdf")
        path.with_suffix(".new").replace(path)
    elif how == "appended":
        dataset(24, 30, 1).to_zarr(path, append_dim="time", **options)
    else:
        dataset(0, 24, 1 if how else 0).to_zarr(path, mode="w", **options)


def windows_of(path: Path) -> Read:
    """A reader that keeps nothing between reads."""
    opened = dsinga.windows(path, inputs="t", input_dims={"time": 1}).dataset
    return lambda rows: dsinga.windows(opened, inputs="t", input_dims={"time": 1}).read(rows)[0]


def records_of(path: Path) -> Read:
    column = open_records(path / "t").columns[0]
    return lambda rows: np.concatenate([column.load(row, row + 1) for row in rows])


WAYS = {
    f"{kind}, {face.__name__}": (kind, face)
    for kind in ("zarr 2", "zarr 3", "netCDF")
    for face in (windows_of, records_of)
    if (kind, face) != ("netCDF", records_of)
}


@pytest.mark.parametrize("how", ["rewritten", "appended"])
@pytest.mark.parametrize("way", WAYS)
def test_data_that_change_while_they_are_read_are_noticed(
    tmp_path: Path, way: str, how: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "dsinga")
    kind, face = WAYS[way]
    options: dict[str, Any] = {} if kind == "netCDF" else {"zarr_format": int(kind[-1]), "consolidated": False}
    path = tmp_path / ("d.nc" if kind == "netCDF" else "d.zarr")
    written(path, "", **options)
    read = face(path)
    first = read([1, 20])
    written(path, how, **options)
    if how == "rewritten" or kind == "netCDF":
        refused(lambda: read([1, 20]), "d.* was written again, or removed, after it was opened: numbers of")
    else:
        np.testing.assert_array_equal(read([1, 20]), first)
        assert "was appended to after it was opened; what is there since is not read" in caplog.text


def test_another_process_finds_other_records(tmp_path: Path) -> None:
    written(tmp_path / "d.zarr", "", consolidated=False)
    sent = pickle.dumps(open_records(tmp_path / "d.zarr" / "t"))
    written(tmp_path / "d.zarr", "appended", consolidated=False)
    refused(lambda: pickle.loads(sent), "t has 30 records, but had 24 when it was opened: it was written again")


def test_an_array_without_its_last_chunks_by_its_metadata_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "d.zarr"
    dataset(0, 24).to_zarr(path, zarr_format=2, consolidated=False)
    for name in ("t", "time"):
        file = path / name / ".zarray"
        metadata = json.loads(file.read_text())
        metadata["shape"][0] = 12
        file.write_text(json.dumps(metadata))
    for face in (lambda: windows_of(path), lambda: open_records(path, data="t", label="")):
        with pytest.raises(UserError, match="a chunk t.* after the last of 't', whose shape is .12, 4."):
            face()


@pytest.mark.filterwarnings("ignore:Consolidated metadata")
def test_an_array_that_consolidated_metadata_lack_is_named(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    dataset(0, 24).to_zarr(tmp_path / "d.zarr", zarr_format=2)
    zarr.open_group(tmp_path / "d.zarr", use_consolidated=False).create_array("later", data=np.zeros(3))
    with caplog.at_level(logging.WARNING, "dsinga"):
        open_records(tmp_path / "d.zarr", data="t")
    assert "d.zarr: 'later' came after the metadata were consolidated, and cannot be seen; consolidate" in caplog.text

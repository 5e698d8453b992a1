"""A prediction does not replace the Dataset from which it is computed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr

import dsinga
from dsinga import nn
from dsinga.base.errors import UserError
from dsinga.data import open_stores

SHAPE = {"time": 12, "lat": 6, "lon": 8}
WINDOWS: dict[str, Any] = {"inputs": "t", "targets": "t", "input_dims": {"time": 1, "lat": -1, "lon": -1}}
OPENED: dict[str, Callable[[Path], Any]] = {
    "path": lambda path: path,
    "in files": lambda path: xr.open_dataset(path),
    "of Dask": lambda path: xr.open_dataset(path, chunks={}),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("own")
    numbers = np.random.default_rng(0).random(tuple(SHAPE.values()), np.float32)
    dataset = xr.Dataset({"t": (tuple(SHAPE), numbers)}, {dim: np.arange(size) for dim, size in SHAPE.items()})
    dataset.chunk(time=3).to_zarr(folder / "d.zarr", zarr_format=2)
    dataset.to_netcdf(folder / "d.nc", engine="h5netcdf")
    (folder / "link.zarr").symlink_to("d.zarr")
    return folder


@pytest.fixture(scope="module")
def model(folder: Path) -> nn.Model:
    model = nn.Sequential([nn.Conv2D(1, 3, padding="same")])
    model.compile(optimizer=nn.SGD(1e-9), loss="mse")
    model.fit(dsinga.windows(folder / "d.zarr", lead={"time": 1}, **WINDOWS), epochs=1, progress=False)
    return model


@pytest.mark.parametrize("leads", [None, 2])
@pytest.mark.parametrize("opened", OPENED)
def test_the_input_of_a_prediction_is_not_replaced(folder: Path, model: nn.Model, opened: str, leads: Any) -> None:
    expected = "the prediction is computed from .*d.zarr while it is written, .* write to another path"
    predicted = model.predict(OPENED[opened](folder / "d.zarr"), leads=leads)
    variables = (predicted.t, predicted["t"].isel(lat=slice(2)), predicted[["t"]], predicted.t.to_dataset(name="u"))
    for part in (predicted, predicted.isel(lat=slice(2)), predicted.chunk(time=4), *variables):
        for name in ("d.zarr", "link.zarr"):
            with pytest.raises(UserError, match=expected):
                part.to_zarr(folder / name, mode="w")
    from_file = model.predict(OPENED[opened](folder / "d.nc"), leads=leads)
    for part in (from_file, from_file.t):
        with pytest.raises(UserError, match="d.nc while it is written"):
            part.to_netcdf(folder / "d.nc")
    computed = predicted.compute()
    assert type(computed) is xr.Dataset
    assert type(predicted.t.compute()) is xr.DataArray
    predicted.to_zarr(folder / "other.zarr", mode="w", zarr_format=2)
    with xr.open_zarr(folder / "other.zarr") as written:
        np.testing.assert_array_equal(written.t, computed.t)


def test_none_of_several_stores_is_replaced(folder: Path, model: nn.Model) -> None:
    paths = [str(folder / name) for name in ("early.zarr", "late.zarr")]
    whole = xr.open_zarr(folder / "d.zarr").load()
    for path, part in zip(paths, (slice(6), slice(6, None)), strict=True):
        whole.isel(time=part).drop_encoding().to_zarr(path, zarr_format=2)
    predicted = model.predict(open_stores(paths))
    for path in paths:
        for part in (predicted, predicted.t):
            with pytest.raises(UserError, match=f"computed from {path} while it is written"):
                part.to_zarr(path, mode="w")
    np.testing.assert_array_equal(predicted.t, model.predict(whole).t)

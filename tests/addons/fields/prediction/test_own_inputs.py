"""A lazy prediction is not written over its own input, by whatever object or URL that is named."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import dask.array as da
import fsspec
import numpy as np
import pytest
import xarray as xr
import zarr
from zarr.storage import FsspecStore, LocalStore

import dsinga
from dsinga import nn
from dsinga.base.errors import UserError
from dsinga.data import open_stores
from dsinga.estimators import Regressor

X = np.random.default_rng(0).normal(size=(8, 4, 4)).astype(np.float32)
FIELDS = xr.Dataset({"x": (("t", "lat", "lon"), X)}, {"t": np.arange(8)})
INPUT: dict[str, Callable[[str], Any]] = {
    "path": str,
    "open_zarr": lambda path: xr.open_zarr(path, consolidated=False),
    "store": lambda path: xr.open_zarr(LocalStore(path), consolidated=False, chunks=None),
    "computed": lambda path: xr.open_zarr(LocalStore(path), consolidated=False) * 2,
    "da.from_zarr": lambda path: da.from_zarr(path, component="x"),
    "DataArray": lambda path: xr.open_zarr(path, consolidated=False).x,
}
TARGETS: dict[str, Callable[[str], Any]] = {
    "path": str, "file": lambda path: f"file://{path}", "slash": lambda path: f"{path}/", "relative": os.path.relpath,
    "link": lambda path: f"{path}/../link.zarr", "fsspec": fsspec.get_mapper, "LocalStore": LocalStore,
    "FsspecStore": lambda path: FsspecStore.from_url(f"file://{path}"),
    "zarr.Group": lambda path: zarr.open_group(path, mode="r+").store,
    "zarr.Array": lambda path: zarr.open_group(path, mode="r+")["x"],
}  # fmt: skip


@pytest.fixture(scope="module")
def model() -> nn.Sequential:
    model = nn.Sequential([nn.Input((1, 4, 4)), nn.Conv2D(1, 1, name="out")])
    model.compile("sgd", "mse")
    windows: dict[str, Any] = {"inputs": "x", "targets": "x", "input_dims": {"t": 1, "lat": 4, "lon": 4}}
    model.fit(dsinga.windows(FIELDS, lead={"t": 1}, **windows), progress=False)
    return model


def predictions(given: Any, model: nn.Sequential) -> list[Any]:
    """The lazy predictions of an input that can be written."""
    if isinstance(given, (str, xr.Dataset)):
        dataset, further = model.predict(given), model.predict(given, leads=2)
        parts = [part for each in (dataset, further) for part in (each, each.x, each.isel(lat=slice(2)), each[["x"]])]
        made = [dataset.chunk(t=4), dataset["x"].isel(lat=slice(2)), dataset.x.to_dataset(name="u")]
        return [*parts, *made, dataset.x.data]
    data = getattr(given, "data", given)
    of_job = dsinga.predict_lazily(model.result.job, model.params, "out", data[:, None])
    estimator = Regressor(epochs=1).fit(X[:, 0], X[:, 0, 0])
    of_estimator = estimator.predict(given[:, 0])
    return [of_job, of_job.rechunk(1), of_estimator]


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("given", INPUT)
def test_a_prediction_does_not_replace_its_input(given: str, target: str, model: nn.Sequential, tmp_path: Path) -> None:
    path = str(tmp_path / "d.zarr")
    FIELDS.to_zarr(path, consolidated=False, encoding={"x": {"chunks": (2, 4, 4)}})
    (tmp_path / "link.zarr").symlink_to(path)
    for prediction in predictions(INPUT[given](path), model):
        if target == "zarr.Array" and not isinstance(prediction, da.Array):
            continue
        with pytest.raises(UserError, match="is computed from .*d.zarr.* while it is written, so that it cannot repla"):
            prediction.to_zarr(TARGETS[target](path), **({} if target == "zarr.Array" else {"mode": "w"}))
    np.testing.assert_array_equal(zarr.open_group(path, mode="r")["x"][...], X)  # type: ignore[index]


@pytest.mark.filterwarnings("ignore:Consolidated metadata")
def test_a_prediction_is_written_elsewhere(model: nn.Sequential, tmp_path: Path) -> None:
    FIELDS.to_zarr(tmp_path / "d.zarr", consolidated=False)
    for number, given in enumerate(INPUT.values()):
        for prediction in predictions(given(str(tmp_path / "d.zarr")), model):
            prediction.to_zarr(str(path := tmp_path / f"{number}.zarr"), mode="w")
            computed = prediction.compute()
            assert type(computed) in (xr.Dataset, xr.DataArray, np.ndarray)
            if isinstance(computed, xr.Dataset):
                xr.testing.assert_equal(xr.open_zarr(path).compute(), computed)


@pytest.mark.parametrize("leads", [None, 2])
def test_files_and_several_stores_are_not_replaced(leads: int | None, model: nn.Sequential, tmp_path: Path) -> None:
    FIELDS.to_netcdf(tmp_path / "d.nc", engine="h5netcdf")
    paths = [str(tmp_path / "early.zarr"), str(tmp_path / "late.zarr")]
    for path, part in zip(paths, (slice(4), slice(4, None)), strict=True):
        FIELDS.isel(t=part).to_zarr(path, zarr_format=2)
    files = [file := str(tmp_path / "d.nc")]
    given = (file, files), (xr.open_dataset(file), files), (xr.open_dataset(file, chunks={}), files)
    for opened, replaced in (*given, (open_stores(paths, "t"), paths)):
        predicted = model.predict(opened, leads=leads)
        for part in (predicted, predicted.x):
            for path in replaced:
                write = part.to_zarr if replaced is paths else part.to_netcdf
                with pytest.raises(UserError, match=f"computed from {path} while it is written"):
                    write(path, mode="w")
    np.testing.assert_array_equal(predicted.x, model.predict(FIELDS, leads=leads).x)

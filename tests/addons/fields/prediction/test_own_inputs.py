"""A lazy prediction is not written over its own input, by whatever object or URL that is named."""

import math
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
from dsinga.addons.fields.prediction import tiles as field_tiles
from dsinga.addons.fields.prediction.tiles import plan_tiles
from dsinga.base.errors import UserError
from dsinga.data import open_stores
from dsinga.estimators import Regressor
from dsinga.job import LayerConf
from dsinga.models.blocks import conv, layer, pool
from dsinga.net import NeuralNet
from dsinga.passes.predictor import row_bytes
from tests.support import field_layers  # noqa: F401  registers its layers
from tests.support.plain_nets import dense, net_of
from tests.support.refusals import refused

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


# Each input with a path, a path with each target, and an array in place of an array.
PAIRS = [*((given, "path") for given in INPUT), *(("path", target) for target in TARGETS if target != "path")]


@pytest.mark.parametrize(("given", "target"), [*PAIRS, ("da.from_zarr", "zarr.Array"), ("DataArray", "zarr.Array")])
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
    for number, given in enumerate(INPUT.values()):  # all forms of the first, and the first forms of each
        for prediction in predictions(given(str(tmp_path / "d.zarr")), model)[: None if number == 0 else 3]:
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


# The tiles that follow from a net and a field, and the fields that a net cannot compute.
UNET = [
    conv("c0", "data", 4, 3, pad=1), pool("p0", "c0", kernel=2), conv("c1", "p0", 4, 3, pad=1),
    LayerConf(name="u0", user_type="Repeat", srclayers=["c1"]),
    layer("j0", "kConcate", "u0", "c0", concate_conf={"concate_dim": 1}), conv("end", "j0", 2, 1),
]  # fmt: skip


def tiles_of(
    layers: list[LayerConf], lengths: tuple[int, ...], outputs: tuple[int, ...] | None = None, window: int = 16
) -> field_tiles.FieldTiles:
    def make_net(size: tuple[int, ...]) -> NeuralNet:
        return net_of(*layers, batch=1, shape=(1, *size))

    params = {name: np.zeros(param.shape, np.float32) for name, param in make_net((window, window)).params.items()}
    return plan_tiles(make_net, params, layers[-1].name, (window, window), lengths, outputs or lengths)


def test_a_small_field_is_one_tile() -> None:
    tiles = tiles_of(UNET, (34, 56))
    assert [len(axis) for axis in tiles.axes] == [1, 1]
    assert tiles.net.layer("end").shape == (1, 2, 34, 56)


def test_a_large_field_is_cut_into_tiles_of_bounded_memory() -> None:
    tiles = tiles_of(UNET, (20_000, 40_006))
    assert row_bytes(tiles.net) <= field_tiles.TILE_BYTES
    assert all(axis.core >= 512 for axis in tiles.axes)
    assert tiles.net.layer("data").shape[2:] == tuple(axis.size for axis in tiles.axes)
    assert [sum(axis.chunks) for axis in tiles.axes] == [20_000, 40_006]
    assert {axis.size % 2 for axis in tiles.axes} == {0}


def test_a_net_of_whole_fields_has_one_tile_or_is_refused() -> None:
    whole = [layer("norm", "kLRN", "data"), *UNET[:-1], conv("c2", "j0", 1, 1), layer("end", "kSoftmax", "c2")]
    assert [len(axis) for axis in tiles_of(whole, (64, 64)).axes] == [1, 1]
    refused(lambda: tiles_of(whole, (12_000, 12_000)), "'end'", "x 12000 points")


def test_a_net_of_one_size_takes_fields_of_its_windows() -> None:
    fixed = [dense("ip", "data", 256), layer("end", "kReshape", "ip", reshape_conf={"shape": [1, 16, 16]})]
    assert tiles_of(fixed, (16, 16)).net.layer("end").shape == (1, 1, 16, 16)
    refused(lambda: tiles_of(fixed, (16, 20), (16, 16)), "ip_wei", "param '")


@pytest.mark.parametrize(
    ("layers", "outputs", "message"),
    [
        (UNET[:2], (40, 40), "'p0' gives a point for each 2 x 2 points of its field"),
        ([conv("c", "data", 1, 3)], (40, 40), "'c' gives 38 x 38 points for fields of 40 x 40, but .* have 40 x 40"),
        ([dense("ip", "data", 2)], (16, 16), "'ip' gives no points for fields of 16 x 16"),
    ],
)
def test_a_layer_that_gives_no_field_of_the_targets_is_refused(
    layers: list[LayerConf], outputs: tuple[int, int], message: str
) -> None:
    refused(lambda: tiles_of(layers, outputs), message)


def test_a_net_that_crops_gives_the_field_without_its_context() -> None:
    tiles = tiles_of([conv("c", "data", 1, 3), conv("d", "c", 1, 5)], (4096, 9000), (4090, 8994))
    assert [sum(axis.chunks) for axis in tiles.axes] == [4090, 8994]
    assert math.prod(axis.size for axis in tiles.axes) < 4096 * 9000

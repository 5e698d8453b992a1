"""Values that mean "missing" by the conventions of a format are never numbers: whatever they come from, and go to."""

import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import dask.array as da
import numpy as np
import pytest
import xarray as xr
import zarr

import dsinga
from dsinga import nn
from dsinga.base.errors import UserError
from dsinga.data import describe, field_statistics, open_records, verify_store, write_store
from dsinga.data.missing_values import with_nan
from dsinga.estimators import Regressor
from tests.support.refusals import refused

RANDOM = np.random.default_rng(0)
X, Y = (RANDOM.normal(size=(20, count)).astype(np.float32) for count in (3, 1))
ROW = 7
JOB = """name: "missing" train_steps: 2 updater { type: kSGD learning_rate { type: kFixed base_lr: 0.01 } }
neuralnet {
  layer { name: "data" type: kRecordInput store_conf { batchsize: 20 %s } }
  layer { name: "ip" type: kInnerProduct srclayers: "data" innerproduct_conf { num_output: 1 }
    param { name: "w" } param { name: "b" } }
  layer { name: "y" type: kLabel srclayers: "data" }
  layer { name: "loss" type: kEuclideanLoss srclayers: "ip" srclayers: "y" }
}
"""


def with_hole(array: np.ndarray, value: float = -9999.0) -> np.ndarray:
    array = array.copy()
    array[ROW, -1] = value
    return array


def zarr_path(folder: Path, array: np.ndarray, zarr_format: Any, attributes: dict[str, Any]) -> Path:
    path = folder / f"{len(list(folder.iterdir()))}.zarr"
    stored = zarr.create_array(path, data=array, chunks=(5, array.shape[1]), zarr_format=zarr_format)
    stored.attrs.update(attributes)
    return path


def of_xarray(folder: Path, array: np.ndarray, zarr_format: Any, value: float) -> Path:
    """What xarray writes for a Dataset with NaN: in format 2 the fill value of the array, in 3 base64."""
    path = folder / f"{len(list(folder.iterdir()))}.zarr"
    dataset = xr.Dataset({"x": (("n", "f"), np.where(array == np.float32(value), np.nan, array))})
    dataset.x.encoding["_FillValue"] = np.float32(value)
    dataset.to_zarr(path, zarr_format=zarr_format, consolidated=False)
    return path / "x"


def undecoded(folder: Path, array: np.ndarray, **options: Any) -> Any:
    path = of_xarray(folder, array, 2, -9999.0).parent
    return xr.open_zarr(path, mask_and_scale=False, consolidated=False, **options).x


def netcdf(folder: Path, array: np.ndarray) -> Any:
    dataset = xr.Dataset({"x": (("n", "f"), array, {"missing_value": np.float32(-9999)})})
    path = folder / f"{len(list(folder.iterdir()))}.nc"
    dataset.to_netcdf(path, engine="scipy")
    return xr.open_dataset(path, engine="scipy", mask_and_scale=False).x


Source = Callable[[Path, np.ndarray], Any]
CF = {"_FillValue": -9999.0}
SOURCES: dict[str, Source] = {
    "zarr 2": lambda folder, array: zarr_path(folder, array, 2, CF),
    "zarr 3": lambda folder, array: zarr_path(folder, array, 3, {"missing_value": [1e20, -9999]}),
    "zarr 2 of xarray": lambda folder, array: of_xarray(folder, array, 2, -9999.0),
    "zarr 3 of xarray": lambda folder, array: of_xarray(folder, with_hole(array, 1e20), 3, 1e20),
    "array of zarr": lambda folder, array: zarr.open_array(zarr_path(folder, array, 2, CF)),
    "dask of zarr": lambda folder, array: da.from_zarr(zarr_path(folder, array, 3, CF)),
    "cuts of dask": lambda folder, array: da.from_zarr(zarr_path(folder, array, 3, CF))[5:].rechunk((4, -1)),
    "masks of dask": lambda folder, array: da.ma.masked_equal(da.from_array(array, chunks=(5, -1)), -9999),
    "masks in chunks": lambda folder, array: da.from_array(array, chunks=(5, -1)).map_blocks(
        np.ma.masked_equal, -9999, dtype=array.dtype, meta=np.empty((0, 0), array.dtype)
    ),
    "list of masks": lambda folder, array: list(np.ma.masked_equal(array, -9999)),
    "mask of numpy": lambda folder, array: np.ma.masked_equal(array, -9999),
    "xarray in files": lambda folder, array: undecoded(folder, array, chunks=None),
    "xarray of dask": lambda folder, array: undecoded(folder, array, chunks={}),
    "xarray in memory": lambda folder, array: xr.DataArray(array, dims=("n", "f"), attrs=CF),
    "netCDF": netcdf,
}
REPRESENTATIVE = ("zarr 3", "dask of zarr", "masks in chunks", "xarray in files")


def net() -> nn.Model:
    model = nn.Sequential([nn.Dense(1)])
    model.compile(optimizer=nn.SGD(0.01), loss="mse")
    return model


def job(path: Path | None = None) -> dsinga.Job:
    return dsinga.job.loads(JOB % (f'path: "{path}" label: "y"' if path else ""))


class Trained:
    """Models that were trained on whole records."""

    def __init__(self) -> None:
        self.model = net()
        self.model.fit(X, Y, epochs=1, batch_size=20, progress=False)
        self.params = dsinga.train(job(), data=(X, Y), progress=False).params
        self.regressor = Regressor(hidden=(), epochs=1).fit(X, Y[:, 0])


@pytest.fixture(scope="module")
def trained() -> Trained:
    return Trained()


FACES: dict[str, Callable[[Trained, Any, Any], Any]] = {
    "train": lambda trained, x, y: dsinga.train(job(), data=(x, y), progress=False),
    "evaluate": lambda trained, x, y: dsinga.evaluate(job(), trained.params, phase="train", data=(x, y)),
    "fit": lambda trained, x, y: net().fit(x, y, epochs=1, batch_size=20, progress=False),
    "validation": lambda trained, x, y: net().fit(
        X, Y, validation_data=(x, y), epochs=1, batch_size=20, progress=False
    ),
    "evaluate of nn": lambda trained, x, y: trained.model.evaluate(x, y),
    "estimator": lambda trained, x, y: Regressor(hidden=(), epochs=1).fit(x, y),
}
PREDICTIONS: dict[str, Callable[[Trained, Any], Any]] = {
    "predict": lambda trained, x: dsinga.predict(job(), trained.params, "ip", data=x),
    "predict of nn": lambda trained, x: trained.model.predict(x),
    "predict of an estimator": lambda trained, x: trained.regressor.predict(x),
}
REFUSED = "NaN|masked|missing"


def skip_paths_of_estimators(name: str, face: str) -> None:
    if name.startswith("zarr ") and "estimator" in face:
        pytest.skip("scikit-learn takes no paths")


def pairs(folder: Path, name: str) -> Iterator[tuple[Any, Any]]:
    """Yield records and labels of a kind, a value of the records or of the labels missing."""
    yield SOURCES[name](folder, with_hole(X)), SOURCES[name](folder, Y)
    yield SOURCES[name](folder, X), SOURCES[name](folder, with_hole(Y))


@pytest.mark.parametrize("name", SOURCES)
def test_missing_values_are_nan_in_every_source(tmp_path: Path, name: str) -> None:
    for x, y in pairs(tmp_path, name):
        with pytest.raises(UserError, match=REFUSED):
            open_records((x, y)).read(range(15))
        if name not in ("mask of numpy", "list of masks"):
            data, labels = open_records((x, y)).allowing_nonfinite().read(range(15))
            assert np.isnan(data).sum() + np.isnan(labels).sum() == 1 + (name == "zarr 3 of xarray")


@pytest.mark.parametrize("face", FACES)
@pytest.mark.parametrize("name", REPRESENTATIVE)
def test_missing_values_are_no_features_and_no_labels(trained: Trained, tmp_path: Path, name: str, face: str) -> None:
    skip_paths_of_estimators(name, face)
    for x, y in pairs(tmp_path, name):
        with pytest.raises((UserError, ValueError), match=REFUSED):
            FACES[face](trained, x, y)


@pytest.mark.parametrize("face", PREDICTIONS)
@pytest.mark.parametrize("name", REPRESENTATIVE)
def test_missing_values_give_no_prediction(trained: Trained, tmp_path: Path, name: str, face: str) -> None:
    skip_paths_of_estimators(name, face)
    try:
        result = np.asarray(PREDICTIONS[face](trained, SOURCES[name](tmp_path, with_hole(X))))
    except (UserError, ValueError) as error:
        assert any(word in str(error) for word in REFUSED.split("|")), error  # noqa: PT017
    else:
        assert np.isnan(result).any()


def test_groups_and_jobs_and_summaries(tmp_path: Path) -> None:
    group = zarr.open_group(tmp_path / "g.zarr", mode="w", zarr_format=2)
    for name, array in (("x", with_hole(X)), ("y", Y)):
        group.create_array(name, data=array, chunks=(5, array.shape[1]), fill_value=np.nan)
        group[name].attrs["_FillValue"] = -9999
    refused(lambda: dsinga.train(job(tmp_path / "g.zarr"), progress=False), "'x' has NaN", "-9999", "7, column 2")
    (tmp_path / "g.zarr/x/0.0").unlink()  # half written
    verified = verify_store(tmp_path / "g.zarr")
    assert (verified.nonfinite, verified.missing_chunks) == (5 * 3 + 1, 1)
    assert describe(open_records(tmp_path / "g.zarr"))["sample"]["nonfinite"] == 16


def test_windows_and_statistics_of_undecoded_fields(tmp_path: Path) -> None:
    raw = undecoded(tmp_path, with_hole(X), chunks=None)
    for x in (raw, raw.chunk(), raw.load(), of_xarray(tmp_path, with_hole(X), 3, -9999.0).parent):
        with pytest.raises(UserError, match="variable 'x' has NaN at n=7, f=2"):
            dsinga.windows(x, inputs="x", input_dims={"n": 1}).read(range(20))
        assert field_statistics(x).min.x == X[np.arange(20) != ROW].min()
    masked = xr.Dataset({"x": (("n", "f"), SOURCES["masks in chunks"](tmp_path, with_hole(X)))})
    assert field_statistics(masked).count.x == X.size - 1


@pytest.mark.parametrize("attributes", [{"_FillValue": -1}, {"missing_value": [-1, -2]}, {"scale_factor": 0.1}])
@pytest.mark.parametrize("kind", ["path", "array", "dask", "xarray"])
def test_integers_and_packed_numbers_are_refused(tmp_path: Path, kind: str, attributes: dict[str, Any]) -> None:
    path = zarr_path(tmp_path, np.zeros((4, 2), np.int16), 3, attributes)
    sources = {
        "path": path, "array": zarr.open_array(path), "dask": da.from_zarr(path),
        "xarray": xr.DataArray(np.zeros((4, 2), np.int16), attrs=attributes),
    }  # fmt: skip
    (name,) = attributes
    with pytest.raises(UserError, match=f"has the attribute {name}, so that its int16 numbers do not stand for"):
        open_records(sources[kind])


def test_what_computes_with_missing_values_is_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, "dsinga")
    array = SOURCES["dask of zarr"](tmp_path, with_hole(X))
    assert np.isfinite(open_records(da.where(array == -9999, 0, array)).read(range(20))[0]).all()
    assert "computes with numbers of which -9999 means missing, by its attributes" in caplog.text


def test_mistakes_are_named_with_their_remedies(tmp_path: Path) -> None:
    for value in ("nothing", {}, "AAAA", [[]] * 2 + ["x"]):
        with pytest.raises(UserError, match="'x' has the attribute missing_value = .*, which is no number"):
            with_nan(zarr.open_array(zarr_path(tmp_path, X, 3, {"missing_value": value})), "x")
    with pytest.raises(UserError, match="'data' has masked numbers"):
        write_store(tmp_path / "s.zarr", [(np.ma.masked_equal(with_hole(X), -9999), None)])
    numbers = np.zeros((4, 2), np.int16)
    dataset = xr.Dataset({"t": (("n", "f"), X[:4, :2]), "packed": (("n", "f"), numbers, {"_FillValue": -1})})
    dsinga.windows(dataset, inputs="t", input_dims={"n": 1}).read(range(4))
    for act in (
        lambda: dsinga.windows(dataset, inputs=["t", "packed"], input_dims={"n": 1}),
        lambda: field_statistics(dataset),
        lambda: open_records(dataset, data="packed"),
    ):
        with pytest.raises(UserError, match="'packed' has the attribute _FillValue, so that its int16 numbers"):
            act()

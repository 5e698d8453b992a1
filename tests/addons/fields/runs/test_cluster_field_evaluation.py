"""Errors of fields by group: the same bits from any chunks and processes; those of data that lie otherwise."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from distributed import Client

import dsinga
from dsinga import nn
from dsinga.addons.fields.prediction.field_prediction import predict_dataset
from dsinga.addons.fields.records.field_windows import FieldWindows
from dsinga.addons.fields.records.trained_layout import with_trained_layout
from dsinga.base.errors import UserError
from dsinga.data import field_climatology
from tests.addons.fields.runs.test_cluster_fields import dataset
from tests.support.field_nets import convolutions, define, make_dataset, make_job, make_params
from tests.support.refusals import refused

xr = pytest.importorskip("xarray")
REGIONS = {"north": {"lat": (0, 90)}, "greenwich": {"lon": (-40, 40)}}


def trained(data: Any) -> tuple[Any, Any]:
    """Return a trained net and its windows."""
    windows = dsinga.windows(
        data, inputs="t", targets="t", input_dims={"time": 1, "lat": 4, "lon": -1}, lead={"time": 1}
    )
    model = nn.Sequential([nn.Input(windows.shape), nn.Conv2D(1, 1)])
    model.compile("sgd", "mse")
    model.fit(windows, epochs=1, progress=False)
    return model, windows


def test_errors_have_the_same_bits_wherever_they_are_computed(client: Client, tmp_path: Path) -> None:
    data = dataset()
    model, windows = trained(data)
    settings: dict[str, Any] = {"by": ("hour", REGIONS), "against": "persistence"}
    expected = model.evaluate(windows, **settings)
    assert expected.rmse.sizes == {"forecast": 2, "hour": 4, "region": 2}
    for number, chunks in enumerate(({"time": 7, "lat": 3}, {"lon": 5})):
        data.chunk(chunks).to_zarr(tmp_path / f"{number}.zarr", consolidated=False)
        stored = dsinga.data.FieldWindows(str(tmp_path / f"{number}.zarr"), windows.definition)
        xr.testing.assert_identical(model.evaluate(stored, client=client, **settings), expected)
    turned = dsinga.data.FieldWindows(data.sortby("lat").transpose("lon", "lat", "time"), windows.definition)
    error = model.predict(data).t.isel(time=slice(-1)) - data.t
    for windows_here in (windows, turned):  # whose rows are read as those of training lay
        maps = model.evaluate(windows_here, by=("lat", "lon"))
        found = maps.rmse.sel(lat=data.lat).transpose("lat", "lon")
        np.testing.assert_allclose(found, np.sqrt((error**2).mean("time")), rtol=1e-6)
    model.save(tmp_path / "model")
    again = nn.load_model(tmp_path / "model").evaluate(windows, **settings)
    xr.testing.assert_identical(again, expected)


ROLLOUTS: dict[str, dict[str, Any]] = {
    "whole fields": {"input_dims": {"time": 1, "lat": -1, "lon": -1}, "lead": {"time": 1}},
    "patches of steps that overlap": {
        "input_dims": {"time": 2, "lat": 3, "lon": 5},
        "input_overlap": {"time": 1, "lat": 1},
        "edges": {"lon": "periodic"},
        "lead": {"time": 2},
    },
}


@pytest.mark.parametrize("kind", ROLLOUTS)
def test_errors_of_rollouts_are_those_of_what_predict_returns(
    kind: str, client: Client, tmp_path: Path, monkeypatch: Any
) -> None:
    data = dataset().isel(time=slice(16))
    windows = dsinga.windows(data, inputs="t", targets="t", leads=3, **ROLLOUTS[kind])
    steps = windows.definition.input_dims["time"]
    model = nn.Sequential([nn.Input(windows.shape), nn.Conv2D(steps, 1)])
    model.compile("sgd", "mse")
    model.fit(windows, epochs=1, progress=False)
    settings: dict[str, Any] = {"by": ("variable", "lead", "season", REGIONS), "against": "persistence"}
    expected = model.evaluate(windows, **settings)
    assert expected.rmse.sizes == {"forecast": 2, "variable": 1, "lead": 3 * steps, "season": 1, "region": 2}
    monkeypatch.setattr("dsinga.addons.fields.prediction.rollout_records.PART_BYTES", 10_000)
    monkeypatch.setattr("dsinga.addons.fields.prediction.field_prediction.MOST_ROWS", 4)
    for number, chunks in enumerate(({"time": 7, "lat": 3}, {"lon": 5})):
        data.chunk(chunks).to_zarr(tmp_path / f"{number}.zarr", consolidated=False)
        stored = dsinga.data.FieldWindows(str(tmp_path / f"{number}.zarr"), windows.definition)
        xr.testing.assert_identical(model.evaluate(stored, client=client if number else None, **settings), expected)
    squares: list[list[float]] = [[] for _ in range(3 * steps)]  # of each lead and window, as predict has them
    for first in np.unique(windows.positions(np.arange(len(windows)))["time"]):
        rollout = model.predict(data.isel(time=slice(first, first + steps)), leads=3).t.isel(time=0).compute()
        truth = data.t.sel(time=rollout.valid_time.values).values
        errors = (rollout.values.astype(float) - truth.astype(np.float32)) ** 2
        for row in np.flatnonzero(windows.positions(np.arange(len(windows)))["time"] == first):
            place = windows.positions([row])
            lat, lon = (place[dim][0] + np.arange(windows.layout.axes[dim].target_size) for dim in ("lat", "lon"))
            north = lat[data.lat.values[lat] >= 0]
            for lead in range(3 * steps):
                squares[lead] += errors[lead][np.ix_(north, lon % 12)].ravel().tolist()
    found = expected.sel(forecast="model", region="north").squeeze()
    np.testing.assert_array_equal(found["count"], [len(each) for each in squares])
    np.testing.assert_allclose(found.rmse**2, [np.mean(each) for each in squares], rtol=1e-12)


def test_mistakes_are_named_with_their_remedies() -> None:
    model, windows = trained(dataset())
    refused(lambda: model.evaluate(windows.read([0, 1])[0], by="lead"), "by and against are for windows of a Dataset")
    with pytest.raises(UserError, match="by and against take windows alone.*; leave y and sample_weight out"):
        model.evaluate(windows, sample_weight=np.ones(len(windows)), by="lead")
    refused(lambda: model.evaluate(windows, against=field_climatology(windows.dataset)), "'time' has none in month 2")
    data = dataset()
    data = data.assign_coords(time=data.time.values[0] + np.arange(40) * np.timedelta64(10, "D"))
    model, windows = trained(data)
    anomalies = dsinga.windows(
        data, inputs="t", targets="t", input_dims={"time": 1, "lat": 4, "lon": -1}, lead={"time": 1},
        climatology=field_climatology(data[["t"]]),
    )  # fmt: skip
    refused(lambda: model.evaluate(anomalies, by="lead"), "anomalies from a climatology, but the net was trained on")
    refused(lambda: model.fit(windows, validation_data=anomalies, epochs=1, progress=False), "or train on anomalies")


# Longitudes from -180 and from 0 are one grid: the same bits, rolled. Grids with 2-d coordinates; encodings.
SETTINGS: dict[str, Any] = {
    "input_dims": {"time": 1, "latitude": 4, "longitude": 8}, "inputs": "t",
    "coordinates": ["longitude", "cos(latitude)"], "context": {"time": (1, 0), "latitude": (2, 2), "longitude": (2, 2)},
}  # fmt: skip
PERIODIC = {"latitude": "edge", "longitude": "periodic"}


def from_west(data: Any, first: int) -> Any:
    """Return a Dataset whose longitudes begin at another point, below 0 where they are in the west."""
    data = data.roll(longitude=-first, roll_coords=True)
    longitude = (data.longitude + 180) % 360 - 180
    return data.assign_coords(longitude=longitude.astype("float32"), name=("longitude", np.roll(np.arange(24), -first)))


def predict(data: Any, definition: Any, leads: int | None = None) -> Any:
    job = make_job(convolutions(pad=0))
    trained = make_dataset(latitude=12, longitude=24)
    return predict_dataset(job, make_params(job, definition, trained), "end", data, definition=definition, leads=leads)


@pytest.mark.parametrize("edges", [PERIODIC, {}], ids=["periodic", "inside"])
@pytest.mark.parametrize("source", ["memory", "falling", "files", "dask"])
def test_longitudes_are_counted_from_anywhere(edges: dict[str, str], source: str, tmp_path: Path) -> None:
    data = make_dataset(latitude=12, longitude=24)
    definition = with_trained_layout(data, define(**SETTINGS, edges=edges))
    assert definition.along("longitude").begin == "0"
    turned = from_west(data, 12)
    if source == "falling":
        turned = turned.isel(longitude=slice(None, None, -1), latitude=slice(None, None, -1))
    if source == "files":
        turned.chunk(longitude=7).to_zarr(tmp_path / "west.zarr", zarr_format=2, consolidated=False)
        turned = xr.open_zarr(tmp_path / "west.zarr", chunks=None, consolidated=False)
    given = turned.chunk(longitude=5) if source == "dask" else turned
    for leads in (None, 2) if edges else (None,):
        expected, found = predict(data, definition, leads), predict(given, definition, leads)
        east = found.longitude.values % 360
        if edges:
            np.testing.assert_array_equal(found.longitude, turned.longitude)
            np.testing.assert_array_equal(found.name, turned.name)
            assert found.longitude.dtype == turned.longitude.dtype
        np.testing.assert_array_equal(found.t.sel(latitude=expected.latitude), expected.t.sel(longitude=east))
    records = [FieldWindows(each, definition) for each in (data, given)]
    for first, second in zip(*(windows.read(np.arange(5)) for windows in records), strict=True):
        np.testing.assert_allclose(first, second, rtol=1e-6)


def test_parts_of_a_circle_and_other_grids_stay_as_they_are() -> None:
    data = make_dataset(latitude=12, longitude=24)
    definition = with_trained_layout(data, define(**SETTINGS, edges=PERIODIC))
    part = from_west(data, 12).isel(longitude=slice(3, 20))
    half = from_west(data, 12).assign_coords(longitude=np.arange(24) * 15.0 - 172.5)
    for other in (part, half):
        np.testing.assert_array_equal(predict(other, definition).longitude, other.longitude)
    assert not with_trained_layout(part, define(**SETTINGS, edges=PERIODIC)).along("longitude").begin


@pytest.mark.parametrize("is_rotated", [True, False])
def test_coordinates_of_two_dimensions_and_encodings_come_along(is_rotated: bool, tmp_path: Path) -> None:
    rows, columns = np.meshgrid(np.arange(9.0), np.arange(11.0), indexing="ij")
    time = xr.date_range("2000-01-01", periods=12, freq="D", calendar="noleap", use_cftime=True)
    dims = ("rlat", "rlon") if is_rotated else ("y", "x")
    values = np.random.default_rng(0).normal(size=(12, 9, 11)).astype(np.float32)
    data = xr.Dataset(
        {"t": (("time", *dims), values, {"grid_mapping": "pole"} if is_rotated else {})},
        {
            "time": time,
            "lat": (dims, 50 + rows + columns / 10, {"units": "degrees_north"}),
            "lon": (dims, 10 + columns - rows / 10, {"units": "degrees_east"}),
        },
    )
    encoding: dict[str, Any] = {"time": {"units": "days since 1850-01-01", "dtype": "float64"}}
    encoding["t"] = {"dtype": "int16", "scale_factor": 0.001, "_FillValue": -32000}
    if is_rotated:
        data = data.assign(pole=((), 0, {"grid_mapping_name": "rotated_latitude_longitude"}))
        data = data.assign_coords(rlat=np.linspace(-2, 2, 9), rlon=np.linspace(-3, 3, 11))
        encoding["rlat"] = {"dtype": "float32", "_FillValue": None}
    data.to_netcdf(tmp_path / "in.nc", encoding=encoding)
    windows = dsinga.windows(
        str(tmp_path / "in.nc"), inputs="t", targets="t", coordinates=["cos(lat)", "sin(lon)"], weights="cos(lat)",
        input_dims={"time": 1, dims[0]: 4, dims[1]: 5}, context={dims[0]: 1, dims[1]: 1}, lead={"time": 1},
    )  # fmt: skip
    lat = windows.dataset.lat.values
    inputs, labels = windows.read([5])
    place = {dim: int(start[0]) for dim, start in windows.positions([5]).items()}
    ranges = [slice(place[dim] - 1, place[dim] + size + 1) for dim, size in zip(dims, (4, 5), strict=True)]
    np.testing.assert_allclose(inputs[0, 1], np.cos(np.deg2rad(lat[tuple(ranges)])), rtol=1e-6)
    inside = tuple(slice(each.start + 1, each.stop - 1) for each in ranges)
    weights = np.cos(np.deg2rad(lat))
    np.testing.assert_allclose(labels[0, 1], weights[inside] / weights.mean(), rtol=1e-6)
    job = make_job(convolutions(pad=0))
    definition = windows.described().replace(context={dims[0]: (2, 2), dims[1]: (2, 2)})
    params = make_params(job, definition, data)
    predicted = predict_dataset(job, params, "end", str(tmp_path / "in.nc"), definition=definition)
    predicted.to_netcdf(tmp_path / "out.nc")
    with xr.open_dataset(tmp_path / "out.nc", decode_cf=False) as out, xr.open_dataset(tmp_path / "in.nc") as before:
        assert out.time.attrs["units"] == "days since 1850-01-01"
        assert out.time.attrs["calendar"] == "noleap"
        assert out.t.dtype == np.float32
        assert out.t.attrs["_FillValue"] == -32000
        np.testing.assert_array_equal(out.lat, before.lat)
        if is_rotated:
            assert out.rlat.dtype == np.float32
            assert "_FillValue" not in out.rlat.attrs
            assert out.t.attrs["grid_mapping"] == "pole"
            assert "pole" in out
            np.testing.assert_array_equal(out.rlat, before.rlat)

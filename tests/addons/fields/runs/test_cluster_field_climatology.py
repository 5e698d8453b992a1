"""Anomalies from a climatology: subtracted where data are read, added to predictions, kept with the net."""

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from distributed import Client

import dsinga
from dsinga import nn
from dsinga.addons.fields.records.climatology import MARKS
from dsinga.base.errors import UserError
from dsinga.data import FieldWindows, field_climatology
from tests.support.refusals import refused

xr = pytest.importorskip("xarray")
SETTINGS: dict[str, Any] = {
    "inputs": ["t", "h"], "targets": "t", "input_dims": {"time": 1, "lat": -1, "lon": -1}, "lead": {"time": 2},
}  # fmt: skip


def dataset() -> Any:
    """Return fields t with a yearly cycle, and h without a climatology."""
    rng, days = np.random.default_rng(0), np.arange(500)
    dims, shape = ("time", "lat", "lon"), (500, 4, 6)
    year = 10 * np.cos(2 * np.pi * days / 365)[:, None, None]
    time = xr.date_range("2001-01-01", periods=500, freq="D", calendar="noleap", use_cftime=True)
    return xr.Dataset(
        {"t": (dims, (280 + year + rng.normal(size=shape)).astype("f4")), "h": (dims, rng.normal(size=shape))},
        {"time": time, "lat": np.linspace(60, -60, 4), "lon": np.arange(6) * 60.0},
    )


def trained(windows: Any, **fit: Any) -> Any:
    model = nn.Sequential([nn.Input(windows.shape), nn.Conv2D(1, 1)])
    model.compile(nn.SGD(0.05), "mse")
    model.fit(windows, epochs=1, progress=False, **fit)
    return model


@pytest.mark.parametrize("by", ["month", pytest.param("day", marks=pytest.mark.ci)])
def test_anomalies_are_read_and_predictions_have_the_climatology_again(by: str, tmp_path: Path) -> None:
    data = dataset()
    climatology = field_climatology(data[["t"]].isel(time=slice(400)), by)
    windows = dsinga.windows(data, **SETTINGS, climatology=climatology)
    cycle = climatology.at(data.time).t
    rows = np.array([0, 150, 497])
    inputs, targets = windows.read(rows)
    np.testing.assert_allclose(inputs[:, 0], (data.t - cycle)[rows], atol=5e-5)
    np.testing.assert_array_equal(inputs[:, 1], data.h[rows].astype("f4"))
    np.testing.assert_allclose(targets[:, 0], (data.t - cycle)[rows + 2], atol=5e-5)
    model = trained(windows.split(time="2002-02-01")[0])
    (w, b) = (np.asarray(param) for param in model.params.values())
    anomaly = (data.t - cycle) * w.ravel()[0] + data.h * w.ravel()[1] + b[0]
    predicted, leads = model.predict(data), model.predict(data, leads=2)
    later = predicted.t.isel(time=slice(-2)) - anomaly.isel(time=slice(-2)).values
    np.testing.assert_allclose(later, cycle[2:], atol=5e-4)  # the climatology of the time of the target
    np.testing.assert_allclose(leads.t.isel(lead=0), predicted.t.sel(time=leads.valid_time[:, 0]).values, atol=1e-6)
    second = (predicted.t - climatology.at(predicted.time).t).isel(time=slice(-2)) * w.ravel()[0]
    second = second.values + data.h.values[2:] * w.ravel()[1] + b[0]
    found = leads.t.isel(lead=1).values - climatology.at(leads.valid_time[:, 1].drop_vars("time")).t.values
    np.testing.assert_allclose(found, second[: len(found)], atol=5e-4)
    model.save(tmp_path / "model")
    again = nn.load_model(tmp_path / "model")
    data.chunk(time=50, lon=5).to_zarr(tmp_path / "t.zarr", consolidated=False, zarr_format=2)
    west = data.roll(lon=3, roll_coords=True)
    west = west.assign_coords(lon=(west.lon + 180) % 360 - 180)
    for other in (str(tmp_path / "t.zarr"), data.chunk(time=33, lat=2), windows.dataset, west):
        there = again.predict(other)
        np.testing.assert_array_equal(there.t.roll(lon=-3) if other is west else there.t, predicted.t)
    stored = FieldWindows(str(tmp_path / "t.zarr"), windows.definition)
    for each in (stored, pickle.loads(pickle.dumps(stored)), FieldWindows(data.chunk(time=70), windows.definition)):
        np.testing.assert_array_equal(each.read(rows)[0], inputs)
    plain = dsinga.windows(str(tmp_path / "t.zarr"), **SETTINGS)  # that evaluate reads as training read
    assert again.evaluate(plain) == model.evaluate(windows)
    errors = again.evaluate(plain, by=(), against=climatology)
    assert errors.rmse.sel(forecast="climatology") == pytest.approx(float(((data.t - cycle)[2:] ** 2).mean()) ** 0.5)


def stored(data: Any, folder: Path) -> Any:
    data.drop_vars("h").to_netcdf(folder / "anomalies.nc")
    return xr.open_dataset(folder / "anomalies.nc").assign(h=data.h)


# What users make of anomalies, and whether the result is known as anomalies; else it is refused.
MADE: dict[str, tuple[Any, bool]] = {
    "selected": (lambda anomalies, fields, folder: anomalies.isel(time=slice(40, None)), True),
    "in chunks, transposed": (lambda anomalies, fields, folder: anomalies.chunk(time=9).transpose("lon", ...), True),
    "joined": (lambda d, fields, folder: xr.concat([d.isel(time=slice(9)), d.isel(time=slice(9, 20))], "time"), True),
    "without the marks": (lambda anomalies, fields, folder: anomalies.drop_vars(MARKS), True),
    "added": (lambda anomalies, fields, folder: anomalies + 0, False),
    "scaled": (lambda anomalies, fields, folder: anomalies.assign(t=anomalies.t * 2), False),
    "less fields": (lambda anomalies, fields, folder: anomalies - fields, False),
    "joined with fields": (lambda d, f, folder: xr.concat([d.isel(time=[0]), f.isel(time=[1])], "time"), False),
    "stored": (lambda anomalies, fields, folder: stored(anomalies, folder), False),
}


@pytest.mark.parametrize("kind", MADE)
def test_what_is_made_of_anomalies_is_known_or_refused(kind: str, tmp_path: Path) -> None:
    data = dataset()
    climatology = field_climatology(data[["t"]])
    windows = dsinga.windows(data, **SETTINGS, climatology=climatology)
    model = trained(windows)
    make, is_known = MADE[kind]
    try:
        made = make(windows.dataset, data, tmp_path)
    except ValueError:  # xarray joins no Datasets of which one lacks a coordinate
        return
    if not is_known:
        for use in (model.predict, lambda each: dsinga.windows(each, **SETTINGS, climatology=climatology)):
            with pytest.raises(UserError, match="'t' was made from anomalies from a climatology"):
                use(made)
        fields = (made + climatology.at(made.time)).assign(h=made.h).drop_vars(MARKS, errors="ignore")  # as it says
        assert dict(model.predict(fields).sizes) == dict(model.predict(data.sel(time=fields.time)).sizes)
        return
    predicted, fields = model.predict(made).t, model.predict(data).t
    assert not {*MARKS} & {*predicted.coords}
    np.testing.assert_array_equal(predicted.transpose(*fields.dims), fields.sel(time=predicted.time))


def test_a_second_climatology_of_anomalies_is_refused() -> None:
    data = dataset()
    anomalies = dsinga.windows(data, **SETTINGS, climatology=field_climatology(data[["t"]])).dataset
    with pytest.raises(UserError, match="'t' has anomalies from another climatology than that of the windows"):
        dsinga.windows(anomalies, **SETTINGS, climatology=field_climatology(data[["t"]], "day"))
    refused(lambda: field_climatology(anomalies), "a climatology is taken from", "dataset")


@pytest.mark.parametrize("loss", ["quantiles", "distribution"])
def test_several_numbers_of_an_anomaly_have_the_climatology_each_and_scales_have_not(loss: str) -> None:
    data = dataset()
    climatology = field_climatology(data[["t"]])
    forms = {"quantiles": nn.QuantileLoss([0.2, 0.8]), "distribution": nn.DistributionLoss("normal")}
    predictions = {}
    for kept in (climatology, None):  # the same records, anomalies made here and read
        read = data if kept else data.assign(t=(data.t - climatology.at(data.time).t).astype("f4"))
        windows = dsinga.windows(read, **SETTINGS, **({"climatology": kept} if kept else {}))
        model = nn.Sequential([nn.Input(windows.shape), nn.Conv2D(2, 1)])
        if loss == "distribution":
            model = nn.Sequential([*model.layers, nn.DistributionParams("normal")])
        model.compile(nn.SGD(0.05), forms[loss])
        model.fit(windows, epochs=1, progress=False)
        predictions[kept is None] = model.predict(read).t
    moved = (predictions[False] - predictions[True]).isel(time=slice(-2))
    cycle = climatology.at(data.time).t[2:].values
    np.testing.assert_allclose(moved[:, 0], cycle, atol=5e-3)
    np.testing.assert_allclose(moved[:, 1], cycle if loss == "quantiles" else 0 * cycle, atol=5e-3)


@pytest.mark.ci
def test_training_has_the_same_bits_from_memory_and_chunks_in_processes(processes: Client, tmp_path: Path) -> None:
    data = dataset()
    climatology = field_climatology(data[["t"]], "day")
    here = trained(dsinga.windows(data, **SETTINGS, climatology=climatology), client=processes).params
    data.chunk(time=30, lat=3).to_zarr(tmp_path / "t.zarr", consolidated=False, zarr_format=2)
    there = trained(dsinga.windows(tmp_path / "t.zarr", **SETTINGS, climatology=climatology), client=processes)
    for name, param in here.items():
        np.testing.assert_array_equal(there.params[name], param)


def test_climatologies_of_other_data_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    data = dataset()
    climatology = field_climatology(data[["t"]])
    for other, message in (
        (field_climatology(data[["h"]].rename(h="x")), "climatology has 'x', and the windows none of these, but 't'"),
        (field_climatology(data[["t"]].isel(lat=[0, 1])), "the climatology lacks points of 'lat' that the data have"),
        (field_climatology(data.t.mean("lon").to_dataset()), "lat, and these must be all but that of dates"),
        (climatology.means, "climatology is one of dsinga.data.field_climatology"),
    ):
        with pytest.raises(UserError, match=message):
            dsinga.windows(data, **SETTINGS, climatology=other)
    definition = dsinga.windows(data, **SETTINGS, climatology=climatology).definition
    for text in ("x", definition.climatology.replace("<f4", "<f8"), definition.climatology.replace("[12", "[13")):
        with pytest.raises(UserError, match="the climatology of the windows is damaged"):
            FieldWindows(data, definition.replace(climatology=text))
    monkeypatch.setattr("dsinga.addons.fields.records.climatology.MOST_NUMBERS", 100)
    refused(lambda: dsinga.windows(data, **SETTINGS, climatology=climatology), "has 288 numbers", "subtract it from")

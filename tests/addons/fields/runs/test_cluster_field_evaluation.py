"""Errors of fields by group: the same bits from any chunks and processes; those of data that lie otherwise."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from distributed import Client

import dsinga
from dsinga import nn
from dsinga.base.errors import UserError
from dsinga.data import field_climatology
from tests.addons.fields.runs.test_cluster_fields import dataset
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


@pytest.mark.parametrize("leads", [1, 2])
def test_windows_have_the_variables_of_training_in_their_order(leads: int) -> None:
    data = dataset()
    data = data.assign(u=data.t * 2 + 1)
    settings = {"input_dims": {"time": 1, "lat": -1, "lon": -1}, "lead": {"time": 1}, "leads": leads}
    windows = dsinga.windows(data, inputs=["t", "u"], targets=["u", "t"], **settings)
    model = nn.Sequential([nn.Input(windows.shape), nn.Conv2D(2, 1)])
    model.compile("sgd", "mse")
    model.fit(windows, epochs=1, progress=False)
    turned = dsinga.windows(data, inputs=["u", "t"], targets=["t", "u"], **settings)
    assert model.evaluate(turned) == model.evaluate(windows)
    expected = model.evaluate(windows, by=("variable", "lead"))
    xr.testing.assert_identical(model.evaluate(turned, by=("variable", "lead")), expected)

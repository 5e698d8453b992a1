"""Models trained from windows of a Dataset predict another Dataset, also after they have been saved."""

import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import dsinga
from dsinga import nn
from dsinga.base.errors import UserError
from tests.support.field_nets import convolutions, make_dataset, make_job, whole_fields
from tests.support.refusals import refused

xr = pytest.importorskip("xarray")

SETTINGS: dict[str, Any] = {
    "inputs": ["t", "z"], "targets": ["t"], "input_dims": {"time": 1, "latitude": 16, "longitude": 16},
    "context": {"time": (1, 0), "latitude": 2, "longitude": 2}, "edges": {"latitude": "edge", "longitude": "periodic"},
    "lead": {"time": 1},
}  # fmt: skip


def make_model(windows: Any) -> nn.Model:
    x = nn.Input(windows.shape, name="data")
    h = nn.Conv2D(4, 3, activation="relu", name="c0")(x)
    model = nn.Model(x, nn.Conv2D(1, 3, name="end")(h))
    model.compile("sgd", "mse")
    return model


@pytest.mark.parametrize("in_store", [False, True])
def test_a_model_predicts_what_it_was_trained_to(tmp_path: Path, in_store: bool) -> None:
    dataset = make_dataset()
    source = dataset
    if in_store:
        source = tmp_path / "fields.zarr"
        dataset.to_zarr(source, zarr_format=2)
    windows = dsinga.windows(source, **SETTINGS)
    model = make_model(windows)
    model.fit(windows, train_steps=2, batch_size=8, progress=False)
    later = make_dataset(latitude=24, longitude=30).chunk(time=5)
    predicted = model.predict(later)
    assert predicted.t.dims == ("time", "latitude", "longitude")
    whole = whole_fields(make_job(convolutions(pad=0)), model.params, windows.definition, later)[:, 0]
    np.testing.assert_array_equal(predicted.t, whole)
    model.save(tmp_path / "model")
    np.testing.assert_array_equal(nn.load_model(tmp_path / "model").predict(later).t, whole)
    lazy = dsinga.predict_lazily(
        tmp_path / "model" / "job.conf", tmp_path / "model" / "params.safetensors", "end", later
    )
    np.testing.assert_array_equal(lazy.t, whole)
    leads = model.predict(later, leads=2)
    assert dict(leads.sizes) == {"time": 10, "lead": 2, "latitude": 24, "longitude": 30}  # z is read a step later
    np.testing.assert_array_equal(leads.t.isel(lead=0), whole[:10])


def test_a_model_of_other_records_takes_no_dataset() -> None:
    model = nn.Sequential([nn.Dense(2)])
    model.compile("sgd", "mse")
    model.fit(np.zeros((4, 3), np.float32), np.zeros((4, 2), np.float32), progress=False)
    with pytest.raises(UserError, match="does not say what windows of a Dataset are"):
        dsinga.predict_lazily(model.job(), model.params, "dense", make_dataset())
    refused(lambda: model.predict(np.zeros((4, 3), np.float32), leads=2), "leads are those of a Dataset")
    refused(lambda: model.predict(np.zeros((4, 3), np.float32), laeds=2), "'laeds'", "did you mean 'leads'")
    assert model.predict(np.zeros((4, 3), np.float32), leads=None).shape == (4, 2)


def test_predictions_are_in_the_units_of_the_data() -> None:
    """The statistics of the inputs are at the begin of the net, those of the target at its end."""
    dataset = make_dataset()
    dataset = dataset.assign(t=dataset.t * 10 + 280)
    windows = dsinga.windows(dataset, inputs="t", targets="t", input_dims={"time": 1, "latitude": -1, "longitude": -1})
    x = nn.Input(windows.shape, name="data")
    h = nn.Conv2D(1, 1, kernel_initializer="ones", name="same")(nn.Normalization(mean=280.0, std=10.0)(x))
    model = nn.Model(x, nn.Normalization(mean=280.0, std=10.0, invert=True, name="units")(h))
    model.compile(nn.SGD(0.0), loss="mse")
    model.fit(windows, train_steps=1, progress=False)
    predicted = model.predict(dataset)
    np.testing.assert_allclose(predicted.t, dataset.t, rtol=1e-5)
    assert predicted.t.attrs["units"] == "K"


def test_other_data_are_read_in_the_order_of_training(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Levels by their coordinates, latitudes in their direction, axes in their order; a single step of time goes on."""
    caplog.set_level(logging.WARNING, "dsinga")
    dates = np.datetime64("2000-01-01", "ns") + np.arange(8) * np.timedelta64(6, "h")
    data = np.random.default_rng(1).normal(size=(8, 3, 6, 8))
    dataset = xr.Dataset(
        {"z": (("time", "level", "lat", "lon"), data, {"units": "m2 s-2"})},
        {"time": dates, "level": [1000.0, 850.0, 500.0], "lat": np.linspace(75, -75, 6), "lon": np.arange(8) * 45.0},
    )
    sizes = {"time": 1, "lat": -1, "lon": -1}
    windows = dsinga.windows(dataset, inputs="z", targets="z", input_dims=sizes, lead={"time": 1})
    model = nn.Sequential([nn.Input(windows.shape), nn.Conv2D(3, 3, padding="same")])
    model.compile("sgd", "mse")
    model.fit(windows, batch_size=4, progress=False)
    expected = model.predict(dataset)
    model.save(tmp_path / "model")
    model = nn.load_model(tmp_path / "model")
    turned = dataset.sel(level=[500.0, 1000.0, 850.0]).sortby("lat").transpose("lon", "level", "time", "lat")
    more = dataset.reindex(level=[200.0, 500.0, 850.0, 1000.0], fill_value=np.nan)
    for other in (turned, turned.chunk(time=3, lat=4, level=2), more):
        predicted = model.predict(other)
        assert predicted.z.dims == other.z.dims
        assert predicted.lat.equals(other.lat)
        xr.testing.assert_identical(predicted.reindex_like(expected).transpose(*expected.z.dims), expected)
    assert not caplog.text
    refused(lambda: model.predict(dataset.isel(level=[0, 2])), "'level'", "they have")
    last = model.predict(dataset.isel(time=[-1]))
    xr.testing.assert_identical(last, expected.isel(time=[-1]))
    assert last.time[0] == dates[-1] + np.timedelta64(6, "h")
    other = dataset.assign_coords(time=dates[0] + np.arange(8) * np.timedelta64(5, "h"))
    other.z.attrs["units"] = "dam"
    model.predict(other)
    assert "'time' has the step 5h, in training it had 6h" in caplog.text
    assert "'z' has the units dam, in training it had m2 s-2" in caplog.text
    caplog.clear()
    other.z.attrs["units"] = "m**2 s**-2"
    model.predict(other)
    assert "units" not in caplog.text
    for hours in (1, 12):
        other = dataset.assign_coords(time=dates[0] + np.arange(8) * np.timedelta64(hours, "h"))
        for data in (other, other.isel(time=slice(2))):
            with pytest.raises(UserError, match=f"usual step of 'time' is {hours} h, in training it was 6 h .6h., "):
                model.predict(data)


@pytest.mark.parametrize("loss", ["sparse_categorical_crossentropy", "dice"])
def test_classes_of_a_volume_are_predicted_as_scores(loss: str) -> None:
    """Scores are those of windows, and the most probable classes are right."""
    image = np.random.default_rng(0).normal(size=(8, 12, 10))
    cells = np.digitize(image, [-0.5, 0.5])
    cells[0] = -1  # not labelled
    dims = ("z", "y", "x")
    volume = xr.Dataset({"image": (dims, image), "cells": (dims, cells)}, {"z": np.arange(8) * 0.5})
    windows = dsinga.windows(volume, inputs="image", targets="cells", input_dims={"z": 4, "y": 6, "x": 5})
    assert (len(windows), windows.shape, windows.label_shape) == (8, (1, 4, 6, 5), (1, 4, 6, 5))
    model = nn.Sequential([nn.Input(windows.shape), nn.Conv3D(8, 1, activation="relu"), nn.Conv3D(3, 1)])
    model.compile(nn.Adam(0.05), loss, metrics=["mean_iou"])
    model.fit(windows, epochs=40, batch_size=4, progress=False)
    assert model.evaluate(windows)["mean_iou"] > 0.8
    scores = model.predict(volume[["image"]].chunk(z=3)).cells
    assert scores.sizes == {"class": 3, **volume.sizes}
    assert scores.dims == ("class", *dims)
    assert scores.z.equals(volume.z)
    np.testing.assert_allclose(scores[:, :4, :6, :5], model.predict(windows)[0], rtol=1e-5, atol=1e-5)
    assert (scores.argmax("class") == cells)[1:].mean() > 0.85
    refused(lambda: model.predict(volume, leads=2), "with a lead, but the", "windows have 0")

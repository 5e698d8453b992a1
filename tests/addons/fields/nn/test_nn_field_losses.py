"""Models trained from windows with masked points and weights: losses of fields in the words of Keras."""

import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import dsinga
from dsinga import nn
from dsinga.base.errors import Diverged, UserError
from tests.support.field_nets import convolutions, make_dataset, make_job, whole_fields
from tests.support.refusals import refused

xarray = pytest.importorskip("xarray")


def windows(mask: bool = True, weights: str | None = "cos(lat)") -> Any:
    """Return windows of a field with missing values: it, a step later, and weights by latitude."""
    rng = np.random.default_rng(0)
    values = rng.normal(size=(40, 6, 5)).astype(np.float32)
    values[rng.uniform(size=values.shape) < 0.2] = np.nan
    coordinates = {"time": np.arange(40), "lat": np.linspace(60, -60, 6), "lon": np.arange(5) * 72.0}
    data = xarray.Dataset({"t": (("time", "lat", "lon"), values)}, coordinates)
    sizes = {"time": 1, "lat": -1, "lon": -1}
    return dsinga.windows(data, inputs="t", targets="t", input_dims=sizes, lead={"time": 1}, mask=mask, weights=weights)


def model(loss: Any, optimizer: Any = "adam", metrics: Any = None) -> nn.Sequential:
    made = nn.Sequential([nn.Input((2, 6, 5)), nn.Conv2D(1, 3, padding="same")])
    made.compile(optimizer, loss, metrics=metrics)
    return made


def huber(error: np.ndarray) -> np.ndarray:
    size = np.abs(error)
    return np.where(size <= 0.4, error**2 / 2, 0.4 * (size - 0.2))


@pytest.mark.parametrize(
    ("loss", "formula"),
    [
        (nn.MeanSquaredError, np.square),
        (nn.MeanAbsoluteError, np.abs),
        (lambda **settings: nn.Huber(0.4, **settings), huber),
    ],
)
def test_the_loss_is_the_mean_over_all_points(loss: Any, formula: Any):
    data = windows()
    made = model(loss(masked=True, weighted=True, std=[2.0]))
    history = made.fit(data, epochs=3, batch_size=13, progress=False).history
    x, y = data.read(np.arange(len(data)))
    target, weights = y[:, :1], y[:, 1:]
    valid = ~np.isnan(target)
    losses = np.where(valid, formula((made.predict(x) - np.nan_to_num(target)) / 2) * weights, 0)
    assert made.evaluate(data)["loss"] == pytest.approx(losses.mean(), rel=1e-5)
    assert history["loss"][-1] < history["loss"][0]


def test_without_masks_it_is_the_loss_by_name():
    rng = np.random.default_rng(1)
    x, y = rng.normal(size=(2, 20, 2, 6, 5)).astype(np.float32)
    params = []
    for loss in ("mse", nn.MeanSquaredError()):
        made = nn.Sequential([nn.Input((2, 6, 5)), nn.Conv2D(2, 3, padding="same")])
        made.compile("adam", loss)
        made.fit(x, y, epochs=2, progress=False)
        params.append(made.params["conv2d_weight"])
    np.testing.assert_array_equal(*params)


def test_mistakes_are_named_with_their_remedies() -> None:
    refused(lambda: model("mse").fit(windows(weights=None), progress=False), "'data_target'", "masked")
    made = model(nn.MeanSquaredError(masked=True), nn.SGD(1e20))
    with pytest.raises(Diverged, match="not finite at step .*: (param|the feature of) 'conv2d"):
        with np.errstate(all="ignore"):
            made.fit(windows(weights=None), epochs=9, progress=False)
    with pytest.raises(UserError, match="1 x 1 x 6 x 5, of which the last has weights; give both as many"):
        model(nn.MeanSquaredError(weighted=True)).fit(windows(weights=None), progress=False)
    refused(lambda: model("mse", metrics=["anomaly_correlation"]), r"a climatology; write nn.FieldError\(climatology=")
    refused(lambda: nn.FieldError(climatology=[np.nan]), "no NaN")
    made = nn.Sequential([nn.Input((1, 6, 5)), nn.Conv2D(1, 1)])
    made.compile("sgd", "mse", metrics=["mean_iou"])
    with pytest.raises(UserError, match="the metric 'mean_iou' needs probabilities of the classes of each point"):
        made.fit(np.zeros((4, 1, 6, 5), np.float32), np.zeros((4, 1, 6, 5), np.float32), progress=False)
    with pytest.raises(UserError, match="or the loss weighted=True if its last channel has the weights of points"):
        model(nn.MeanSquaredError(masked=True)).fit(windows(), epochs=1, progress=False)


def test_arrays_may_have_masked_points():
    data = windows(weights=None)
    x, y = data.read(np.arange(len(data)))
    params = []
    for source in ((x, y), (data,)):
        made = model(nn.MeanSquaredError(masked=True), metrics=["rmse"])
        made.fit(*source, epochs=1, batch_size=39, progress=False)
        params.append(made.params["conv2d_weight"])
    np.testing.assert_array_equal(*params)
    assert made.evaluate(x, y) == pytest.approx(made.evaluate(data))
    refused(lambda: model("mse").fit(x, y, progress=False), "is NaN in row .* masked=True")
    y[3, 0, 1, 2] = np.inf
    refused(lambda: made.evaluate(x, y), r"infinity in record 3, index \(0, 1, 2\)")


def test_metrics_leave_out_and_weigh_the_points_of_the_loss():
    data = windows()
    x, y = data.read(np.arange(len(data)))
    target, weights = y[:, :1], y[:, 1:]
    climatology = np.nanmean(target, axis=0)
    metrics = [nn.FieldError(channel=["t"], climatology=climatology)]
    made = model(nn.MeanSquaredError(masked=True, weighted=True), metrics=metrics)
    history = made.fit(data, validation_data=data, epochs=2, progress=False).history
    valid, error = ~np.isnan(target), made.predict(x) - target
    found = made.evaluate(data)
    assert found["rmse"] == pytest.approx(np.average(error[valid] ** 2, weights=weights[valid]) ** 0.5, rel=1e-5)
    assert found["bias"] == pytest.approx(np.average(error[valid], weights=weights[valid]), rel=1e-5)
    assert -1 <= found["anomaly_correlation_t"] == found["anomaly_correlation"] <= 1
    assert {"rmse", "rmse_t", "anomaly_correlation"} <= history.keys()
    by_name = model(nn.MeanSquaredError(masked=True, weighted=True), metrics=["rmse", "mae", "bias"])
    by_name.fit(data, epochs=2, progress=False)
    assert by_name.evaluate(data)["bias"] == found["bias"]


def regions() -> tuple[np.ndarray, np.ndarray]:
    """Return images of one channel, and a class for each point that follows from its number; some are masked."""
    rng = np.random.default_rng(2)
    x = rng.uniform(-1, 1, (60, 1, 6, 5)).astype(np.float32)
    labels = np.digitize(x[:, 0], [-0.3, 0.3])
    labels[rng.uniform(size=labels.shape) < 0.1] = -1
    return x, labels


@pytest.mark.parametrize("loss", ["sparse_categorical_crossentropy", nn.Dice(smooth=1)])
def test_regions_of_classes(loss: Any):
    x, labels = regions()
    made = nn.Sequential([nn.Input((1, 6, 5)), nn.Conv2D(8, 1, activation="relu"), nn.Conv2D(3, 1)])
    made.compile(nn.Adam(0.05), loss, metrics=["mean_iou", "dice", "pixel_accuracy", "iou_by_class"])
    history = made.fit(x, labels, epochs=20, batch_size=10, progress=False).history
    found, chosen, valid = made.evaluate(x, labels), made.predict(x).argmax(axis=1), labels >= 0
    right = (chosen == labels)[valid]
    assert found["pixel_accuracy"] == pytest.approx(right.mean())
    assert found["pixel_accuracy"] > 0.8
    hits = np.bincount(labels[valid][right], minlength=3)
    sizes = np.bincount(labels[valid], minlength=3) + np.bincount(chosen[valid], minlength=3)
    assert found["iou_by_class"] == pytest.approx(hits / (sizes - hits))
    assert found["mean_iou"] == pytest.approx(np.mean(found["iou_by_class"]))
    assert history["mean_iou"][-1] > history["mean_iou"][0]


def test_the_cross_entropy_is_the_mean_over_points():
    x, labels = regions()
    made = nn.Sequential([nn.Input((1, 6, 5)), nn.Conv2D(3, 1)])
    made.compile("sgd", "sparse_categorical_crossentropy")
    scores = made.predict(x).astype(np.float64)
    logs = scores - np.log(np.exp(scores).sum(axis=1, keepdims=True))
    of_labels = np.take_along_axis(logs, np.maximum(labels, 0)[:, None], 1)[:, 0]
    expected = -np.where(labels >= 0, of_labels, 0).mean()
    assert made.evaluate(x, labels)["loss"] == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("end", [(), (nn.Activation("sigmoid"),)])
def test_one_channel_is_yes_or_no(end: tuple[Any, ...]):
    x, labels = regions()
    labels = np.where(labels < 0, -1, labels > 1)
    made = nn.Sequential([nn.Input((1, 6, 5)), nn.Conv2D(1, 1, name="scores"), *end])
    made.compile(nn.Adam(0.1), "dice", metrics=["mean_iou"])
    made.fit(x, labels[:, None], epochs=10, batch_size=10, progress=False)
    found, answers = made.evaluate(x, labels[:, None]), made.predict(x)[:, 0] > (0.5 if end else 0)
    overlaps = []
    for value in (0, 1):
        told, true = (answers == value) & (labels >= 0), labels == value
        overlaps.append((told & true).sum() / (told | true).sum())
    assert found["mean_iou"] == pytest.approx(np.mean(overlaps))


# Models trained from windows of a Dataset predict another Dataset, also after they have been saved.
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

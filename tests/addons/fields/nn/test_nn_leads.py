"""Models trained on several leads: errors of each are those of forecasts, jobs keep settings, faults are refused."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import dsinga
from dsinga import nn
from dsinga.data import FieldWindows, field_statistics
from dsinga.job.writer import to_text
from tests.support.field_nets import make_dataset
from tests.support.refusals import refused

xr = pytest.importorskip("xarray")

FIELDS = {"latitude": -1, "longitude": -1}
SETTINGS: dict[str, Any] = {
    "inputs": ["z", "t"], "targets": ["t", "z"], "static": "h", "coordinates": ["cos(latitude)", "sin(hour of day)"],
    "input_dims": {"time": 1, **FIELDS}, "context": {"time": (1, 0), "latitude": 1, "longitude": 1},
    "edges": {"latitude": "reflect", "longitude": "periodic"}, "lead": {"time": 1}, "leads": 3,
}  # fmt: skip
CHANGES: dict[str, dict[str, Any]] = {
    "context": {},
    "forced": {"targets": "t"},
    "masked": {"mask": "t", "fill": 0.5, "edges": {"latitude": "zero", "longitude": "periodic"}},
    "long": {"context": {"latitude": 1, "longitude": 1}, "lead": {"time": 2}},
    "two steps": {"input_dims": {"time": 2, **FIELDS}, "lead": {"time": 2}},
    "normalised": {"mask": "t", "fill": 0.5, "edges": {"latitude": "zero", "longitude": "periodic"}},
}


def make_model(windows: FieldWindows, masked: bool = False, normalised: bool = False) -> nn.Model:
    x = nn.Input(windows.shape)
    inputs = nn.Normalization(0.5, 4.0)(x) if normalised else x  # numbers, which the input layer applies
    model = nn.Model(x, nn.Conv2D(windows.label_shape[0], 3, kernel_initializer="random_normal")(inputs))
    model.compile(nn.SGD(1e-4), nn.MeanSquaredError(masked=masked), metrics=[nn.FieldError()])
    return model


@pytest.mark.parametrize("change", CHANGES)
def test_errors_of_each_lead_are_those_of_forecasts(change: str) -> None:
    dataset = make_dataset(time=14, latitude=8, longitude=10)
    if masked := change in ("masked", "normalised"):
        dataset["t"] = dataset.t.where(dataset.h < 1)
    windows = dsinga.windows(dataset, **{**SETTINGS, **CHANGES[change]})
    statistics = field_statistics(dataset)
    for of, shape in ((statistics.of_inputs, windows.shape), (statistics.of_targets, windows.label_shape)):
        assert of(windows)["mean"].shape == shape[:1]  # of one lead, as the net has them
    model = make_model(windows, masked, change == "normalised")
    model.fit(windows, batch_size=4, progress=False)
    metrics = model.evaluate(windows)
    assert metrics["loss"] == pytest.approx(sum(metrics[f"{lead}loss/loss"] for lead in ("", "lead2#", "lead3#")))
    forecasts = model.predict(dataset, leads=3)
    axis = windows.layout.axes["time"]
    last = windows.positions(np.arange(len(windows)))["time"] + axis.size - 1
    for lead in (1, 2, 3):
        steps = slice((lead - 1) * axis.size, lead * axis.size)
        of_lead = forecasts.isel(lead=steps).sel(time=dataset.time[last])
        squares = np.concatenate(
            [
                ((of_lead[name] - dataset[name].sel(time=of_lead.valid_time)) ** 2).values.ravel()
                for name in windows.definition.targets
            ]
        )
        found = metrics[f"{'' if lead == 1 else f'lead{lead}#'}fields/rmse"]
        assert found == pytest.approx(np.sqrt(np.nanmean(squares)), rel=1e-5)
    assert metrics["rmse"] == metrics["lead3#fields/rmse"]
    if not masked:  # of windows a model predicts the first lead
        name = windows.definition.targets[-1]
        first = (
            forecasts[name].isel(lead=axis.size - 1).sel(time=dataset.time[last]).isel(level=-1, missing_dims="ignore")
        )
        np.testing.assert_allclose(model.predict(windows)[:, -1], first, rtol=1e-5, atol=1e-6)


def test_a_job_and_a_saved_model_keep_the_leads(tmp_path: Path) -> None:
    make_dataset(time=14, latitude=8, longitude=10).to_zarr(tmp_path / "fields.zarr", zarr_format=2)
    settings = SETTINGS | {"lead_weights": [1, 0.5, 0.25], "lead_start": [0, 1, 2], "targets": "t"}
    windows = dsinga.windows(tmp_path / "fields.zarr", **settings)
    model = make_model(windows)
    model.fit(windows, train_steps=3, batch_size=4, seed=1, progress=False)
    text = to_text(model.job(windows, train_steps=3, batch_size=4, seed=1))
    assert "leads: 3 lead_weights: [1.0, 0.5, 0.25] lead_start: [0, 1, 2]" in " ".join(text.split())
    (tmp_path / "job.conf").write_text(text)
    trained = dsinga.train(str(tmp_path / "job.conf"), progress=False).params
    for name, value in model.params.items():
        np.testing.assert_array_equal(trained[name], value)
    model.save(tmp_path / "model")
    loaded = nn.load_model(tmp_path / "model")
    assert loaded.evaluate(windows) == model.evaluate(windows)
    xr.testing.assert_identical(
        loaded.predict(windows.dataset, leads=2).compute(), model.predict(windows.dataset, leads=2).compute()
    )


@pytest.mark.parametrize("mask", [False, True])
def test_the_direct_form_gives_all_leads_at_once(tmp_path: Path, mask: bool) -> None:
    dataset = make_dataset(time=14, latitude=8, longitude=10)
    dataset["t"] = dataset.t.where(dataset.h < 1) if mask else dataset.t
    windows = dsinga.windows(dataset, **SETTINGS, direct=True, mask="t" if mask else False)
    assert windows.label_shape == (9, 8, 10)
    assert windows.layout.target_names()[2:4] == ("z level=850 time+1", "t time+2")
    model = make_model(windows, mask)
    model.fit(windows, batch_size=4, progress=False)
    model.save(tmp_path / "model")
    days = nn.load_model(tmp_path / "model").predict(dataset.chunk(time=3, longitude=4))
    assert days.z.dims == ("time", "lead", "level", "latitude", "longitude")
    last = windows.positions(np.arange(len(windows)))["time"]
    predicted = model.predict(windows).reshape(len(windows), 3, 3, 8, 10)
    known = days.sel(time=dataset.time[last])
    land = np.broadcast_to(np.isnan(dataset.t[0]), known.t.shape)
    np.testing.assert_array_equal(np.isnan(known.t), land)
    np.testing.assert_allclose(known.t, np.where(land, np.nan, predicted[:, :, 0]), rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(known.z, predicted[:, :, 1:], rtol=1e-5, atol=1e-5)
    assert (known.valid_time[:, 2] == dataset.time[last + 3].values).all()
    refused(lambda: model.predict(dataset, leads=4), "the net gives 3 leads at once, not 4; leave leads out")


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "more leads than data": ({"leads": 14}, "leads=14 with a lead of 1 takes targets up to 14 .* have 14 points"),
    "no room for a window": ({"leads": 13}, "no window fits along 'time': it takes 15 points"),
    "no number": ({"leads": 0}, "leads is 0; give a whole number of at least 1"),
    "one lead": ({"leads": 1, "lead_weights": [1]}, "lead_weights is for windows of several leads"),
    "weights": ({"lead_weights": [1, 0.5]}, "lead_weights has 2 numbers for 3 leads; give one for each lead"),
    "negative": ({"lead_weights": [1, -1, 1]}, "lead_weights must be at least 0, not -1"),
    "starts": ({"lead_start": [0, 20, 10]}, "the first lead begins at 0, and no lead before the one that it follows"),
    "no inputs": ({"inputs": "z", "targets": "t"}, "none of the targets .t. is an input of the windows"),
    "a gap": ({"lead": {"time": 3}}, "the inputs of the next lead would neither be predicted nor in the data"),
    "patches": ({"input_dims": {"time": 1, "latitude": 4, "longitude": -1}}, "lack the context .* along 'latitude'"),
    "weights in time": ({"weights": "w"}, "'w' lies along 'time'; give weights without it"),
    "direct": ({"direct": True, "lead_start": [0, 1, 2]}, "leave it out of the direct form"),
}


@pytest.mark.parametrize("fault", REFUSED)
def test_faults_of_leads_are_refused(fault: str) -> None:
    settings, message = REFUSED[fault]
    dataset = make_dataset(time=14, latitude=8, longitude=10)
    refused(lambda: dsinga.windows(dataset.assign(w=abs(dataset.t)), **{**SETTINGS, **settings}), message)


@pytest.mark.parametrize("mask", [False, True])
def test_a_forcing_that_ends_early_is_refused_before_training(mask: bool) -> None:
    dataset = make_dataset(time=14, latitude=8, longitude=10)
    dataset["z"] = dataset.z.where(dataset.time < dataset.time[10])
    message = (
        r"'z' is known in advance for each of 3 leads, but has NaN only after 2020-01-03T06:00, .* until 2020-01-04"
    )
    settings = {**SETTINGS, "targets": "t", "mask": mask}
    refused(lambda: dsinga.windows(dataset, **settings), message)
    windows = dsinga.windows(dataset, **settings, within={"time": (None, "2020-01-03T06:00")})
    assert len(windows) == 10 - 1 - 3


def test_mistakes_are_named_with_their_remedies(tmp_path: Path) -> None:
    windows = dsinga.windows(make_dataset(time=14, latitude=8, longitude=10), **{**SETTINGS, "targets": "t"})
    x = nn.Input(windows.shape)
    model = nn.Model(x, nn.Flatten()(nn.Conv2D(1, 3)(x)))
    model.compile("sgd", "mse")
    refused(lambda: model.fit(windows, batch_size=4, progress=False), "'conv2d_flat' gives 80", "1 x 8 x 10")
    windows = dsinga.windows(make_dataset(time=14, latitude=8, longitude=10), **SETTINGS)
    np.save(tmp_path / "mean.npy", np.zeros(windows.shape, "float32"))
    layers = [nn.Normalization(mean_file=str(tmp_path / "mean.npy")), nn.Conv2D(windows.label_shape[0], 3)]
    model = nn.Sequential([nn.Input(windows.shape), *layers])
    model.compile("sgd", "mse")
    refused(lambda: model.fit(windows, batch_size=4, progress=False), r"mean_file.*kNormalization")

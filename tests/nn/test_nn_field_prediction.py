"""Models trained from windows of a Dataset predict another Dataset, also after they have been saved."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import dsinga
from dsinga import nn
from dsinga.errors import UserError
from tests.support.field_nets import convolutions, make_dataset, make_job, whole_fields

xr = pytest.importorskip("xarray")

SETTINGS: dict[str, Any] = {
    "inputs": ["t", "z"],
    "targets": ["t"],
    "input_dims": {"time": 1, "latitude": 16, "longitude": 16},
    "context": {"time": (1, 0), "latitude": 2, "longitude": 2},
    "edges": {"latitude": "edge", "longitude": "periodic"},
    "lead": {"time": 1},
}


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
    with pytest.raises(UserError, match="leads are those of a Dataset"):
        model.predict(np.zeros((4, 3), np.float32), leads=2)


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

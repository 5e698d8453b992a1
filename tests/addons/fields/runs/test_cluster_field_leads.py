"""Predictions of several leads against a loop that writes each prediction into the data and predicts again."""

from typing import Any

import numpy as np
import pytest

from dsinga.addons.fields.prediction import tiles as field_tiles
from dsinga.addons.fields.prediction.field_prediction import predict_dataset
from dsinga.addons.fields.records.definition import WindowDefinition
from tests.support.field_nets import convolutions, define, make_dataset, make_job, make_params
from tests.support.refusals import refused

xr = pytest.importorskip("xarray")
STEP = np.timedelta64(6, "h")


def predict(dataset: Any, definition: WindowDefinition, leads: int | None = None, filters: int = 1) -> Any:
    job = make_job(convolutions(filters, pad=0 if definition.along("latitude").before else 1))
    params = make_params(job, definition, make_dataset())
    return predict_dataset(job, params, "end", dataset, definition=definition, leads=leads)


def looped(dataset: Any, definition: WindowDefinition, last: int, leads: int, filters: int) -> list[Any]:
    """Return the predictions after the point ``last`` of time, one after the other."""
    known, size = dataset.isel(time=slice(last + 1)), definition.input_dims["time"]
    steps = []
    for _ in range(leads):
        step = predict(known, definition, filters=filters).isel(time=slice(-size, None)).compute()
        steps += [step.isel(time=[k]) for k in range(size)]
        later = dataset.reindex(time=step.time, method="nearest")  # others as at the later times, if known
        later = later.assign({name: step[name] for name in step.data_vars})
        known = xr.concat(
            [known, later], "time", data_vars="minimal", coords="minimal", compat="override", join="outer"
        )
    return steps


SPACE = {"latitude": 16, "longitude": 16}
CASES = [
    {},  # z is not predicted, and read at the later times
    {
        "inputs": ["t"],
        "context": {"time": (2, 0), "latitude": 2, "longitude": 2},
        "edges": {"latitude": "edge", "longitude": "periodic"},
        "coordinates": ["sin(hour of day)"],
    },
    {"targets": ["z", "t"], "static": []},
    {"targets": ["z", "t"], "input_dims": {"time": 2, **SPACE}, "lead": {"time": 2}},
]


@pytest.mark.parametrize(
    ("settings", "is_tiled"),
    [*zip(CASES[:3], [False, True, False], strict=True), pytest.param(CASES[3], True, marks=pytest.mark.ci)],
)
def test_leads_are_predictions_of_predictions(monkeypatch: pytest.MonkeyPatch, settings: Any, is_tiled: bool) -> None:
    if is_tiled:
        monkeypatch.setattr(field_tiles, "TILE_BYTES", 4 * 20 * 17 * 17)
        monkeypatch.setattr(field_tiles, "LEAST_CORE", 8)
    dataset, definition, leads = make_dataset(time=8, latitude=20, longitude=24), define(**settings), 3
    size = definition.input_dims["time"]
    filters = 3 * size if "z" in definition.targets else 1
    predicted = predict(dataset.chunk(time=3, latitude=11), definition, leads, filters)
    assert predicted.t.dims == ("time", "lead", "latitude", "longitude")
    np.testing.assert_array_equal(predicted.lead, np.arange(1, leads * size + 1) * STEP)
    np.testing.assert_array_equal(predicted.valid_time, predicted.time.values[:, None] + predicted.lead.values)
    for place in (0, predicted.sizes["time"] - 1):
        init = predicted.isel(time=place)
        last = int(np.flatnonzero(dataset.time.values == init.time.values)[0])
        for number, step in enumerate(looped(dataset, definition, last, leads, filters)):
            assert init.valid_time.values[number] == step.time.values[0]
            for name in predicted.data_vars:
                found = init[name].isel(lead=number).transpose(*(dim for dim in step[name].dims if dim != "time"))
                np.testing.assert_array_equal(found, step[name].isel(time=0))


def test_leads_of_several_steps_are_those_of_every_third_step() -> None:
    dataset = make_dataset().chunk(time=5)
    settings = {"context": {}, "inputs": ["t"]}
    predicted = predict(dataset, define(**settings, lead={"time": 3}), 3)
    np.testing.assert_array_equal(predicted.lead, np.array([3, 6, 9]) * STEP)
    for first in range(3):
        every_third = predict(dataset.isel(time=slice(first, None, 3)), define(**settings), 3)
        np.testing.assert_array_equal(predicted.t[first::3], every_third.t)


def test_masked_points_stay_masked() -> None:
    dataset = make_dataset()
    land = dataset.h > 0.5
    masked = dataset.assign(t=dataset.t.where(~land))
    predicted = predict(masked, define(mask=["t"], inputs=["t"]), leads=2)
    for lead in range(2):
        np.testing.assert_array_equal(np.isnan(predicted.t.isel(lead=lead)), np.broadcast_to(land, (11, 37, 52)))


@pytest.mark.parametrize(
    ("settings", "leads", "message"),
    [
        ({}, 0, "leads is 0; give a whole number of at least 1"),
        ({"lead": {}}, 2, "along one dimension of time with a lead, but the windows have 0"),
        ({"targets": ["h2"], "inputs": ["t"]}, 2, r"none of the targets \(h2\) is an input"),
        ({"lead": {"time": 3}}, 2, "points of 'time' and a lead of 3: the inputs of the next lead would neither"),
        ({"context": {"time": (1, 0), "latitude": 1}}, 2, "lose the context of windows along 'latitude'"),
        ({}, 20, "20 leads take 'z' at 19 later points of 'time', which the 12 points of the data do not have"),
    ],
)
def test_leads_that_cannot_be_predicted_are_refused(settings: Any, leads: int, message: str) -> None:
    dataset, definition = make_dataset(), define(**settings)
    refused(lambda: predict(dataset, definition, leads=leads), message)

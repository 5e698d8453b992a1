"""What a model on several leads says of its errors: its loss, its groups, and its Dataset at ``valid_time`` agree.

Each case mixes settings of windows that were built apart: forcings, static fields, masks, context, climatologies,
calendars, gaps and weights.
"""

from typing import Any

import numpy as np
import pytest

import dsinga
from dsinga import nn
from dsinga.data import field_climatology

xr = pytest.importorskip("xarray")
pytest.importorskip("cftime")
SPACE = {"lat": -1, "lon": -1}
AROUND: dict[str, Any] = {"edges": {"lat": "edge", "lon": "periodic"}, "context": {"lat": 1, "lon": 1}}


def dataset(calendar: str = "standard", masked: bool = False) -> Any:
    """Return t and u that drift, f that is known in advance, and g without time; maybe t and u lack land."""
    rng, days, dims = np.random.default_rng(0), 400, ("time", "lat", "lon")
    time = xr.date_range("2001-01-01", periods=days, freq="D", calendar=calendar, use_cftime=calendar != "standard")
    t = 5 + rng.normal(size=(days, 4, 6)).cumsum(axis=0) * 0.1
    fields = {"t": t, "u": 0.5 * t + 1, "f": rng.normal(size=(days, 4, 6))}
    ground = rng.normal(size=(4, 6))
    if masked:
        fields = {name: np.where(ground > 1, np.nan, each) if name != "f" else each for name, each in fields.items()}
    variables: dict[str, Any] = {name: (dims, each.astype("f4")) for name, each in fields.items()}
    return xr.Dataset(
        {**variables, "g": (dims[1:], ground)},
        {"time": time, "lat": np.linspace(60, -60, 4), "lon": np.arange(6) * 60.0},
    )


CASES: dict[str, tuple[dict[str, Any], dict[str, Any], str]] = {  # the data, the windows, variables with a climatology
    "forcings, context, static": (
        {"calendar": "noleap"},
        {"inputs": ["t", "f"], "static": "g", "coordinates": ["cos(lat)", "sin(day of year)"], **AROUND},
        "t",
    ),
    "two masked targets in another order": (
        {"masked": True},
        {"inputs": ["u", "f", "t"], "targets": ["t", "u"], "mask": ["t", "u"], "fill": {"t": 4.0}, **AROUND},
        "u",
    ),
    "steps, of a calendar of 360 days": (
        {"calendar": "360_day"},
        {"input_dims": {"time": 2, **SPACE}, "lead": {"time": 2}, "inputs": ["t", "f"]},
        "t",
    ),
    "earlier steps, gaps": ({"gaps": True}, {"context": {"time": (2, 0)}, "mask": True, "inputs": ["t", "f"]}, ""),
    "weights": ({}, {"weights": "cos(lat)", "lead": {"time": 3}}, "t"),
}


def errors_by_lead(windows: Any, predicted: Any, data: Any, names: list[str], weighted: bool) -> np.ndarray:
    """Return the mean square of the errors of a predicted Dataset, weighted or not, by lead, and target as a row."""
    time = windows.definition.input_dims["time"] + windows.positions(np.arange(len(windows)))["time"] - 1
    predicted = predicted.isel(time=np.searchsorted(predicted.time.values, data.time.values[time]))
    truth = data[names].sel(time=xr.DataArray(predicted.valid_time.values, dims=("time", "lead")))
    weights = np.cos(np.deg2rad(data.lat)) if weighted else xr.ones_like(data.lat)
    rows = []
    for name in names:
        error = predicted[name].astype(float).drop_vars("valid_time") - truth[name].drop_vars("time")
        squares = (error.drop_vars("time") ** 2 * weights / weights.mean()).fillna(0)  # masked points count as 0
        rows.append(squares.mean(("time", "lat", "lon")).values)
    return np.array(rows)


@pytest.mark.parametrize("case", CASES)
def test_losses_by_lead_are_the_errors_of_the_predicted_dataset(case: str) -> None:
    kind, settings, known = CASES[case]
    data = dataset(kind.get("calendar", "standard"), kind.get("masked", False))
    data = data.drop_isel(time=range(100, 130)) if "gaps" in kind else data
    settings = {"inputs": "t", "targets": "t", "input_dims": {"time": 1, **SPACE}, "lead": {"time": 1}, **settings}
    settings["climatology"] = field_climatology(data[[known]], "day") if known else None
    names = [settings["targets"]] if isinstance(settings["targets"], str) else settings["targets"]
    steps, kernel = settings["input_dims"]["time"], 3 if "edges" in settings else 1
    loss = nn.MeanSquaredError(masked="mask" in settings, weighted="weights" in settings)

    def trained(windows: Any, channels: int) -> Any:
        model = nn.Sequential([nn.Input(windows.shape), nn.Conv2D(channels, kernel)])
        model.compile(nn.SGD(1e-9), loss)
        model.fit(windows, train_steps=1, batch_size=8, progress=False)
        return model

    windows = dsinga.windows(data, **settings, leads=3)
    model = trained(windows, steps * len(names))
    found = errors_by_lead(windows, model.predict(data, leads=3).compute(), data, names, "weights" in settings)
    groups = model.evaluate(windows, by=("variable", "lead"))
    share = groups["count"] / (len(windows) * 24)  # of points that are not masked
    exact = {"rtol": 1e-12 if not known and "weights" not in settings else 1e-6}  # else of float32
    np.testing.assert_allclose(groups.rmse**2 * share, found, **exact)
    evaluated = model.evaluate(windows)
    losses = [evaluated[name] for name in ("loss/loss", "lead2#loss/loss", "lead3#loss/loss")]
    np.testing.assert_allclose(losses, found.mean(axis=0).reshape(3, steps).mean(axis=1) / 3, rtol=1e-4)
    direct = dsinga.windows(data, **settings, leads=3, direct=True)
    model = trained(direct, 3 * steps * len(names))
    found = errors_by_lead(direct, model.predict(data).compute(), data, names, "weights" in settings)
    whole = field_climatology(data[names])
    groups = model.evaluate(direct, by=("variable", "lead"), against=["persistence", whole])
    assert groups.sizes == {"forecast": 3, "variable": len(names), "lead": 3 * steps}
    share = groups["count"] / (len(direct) * 24)  # of points that are not masked
    np.testing.assert_allclose(groups.rmse.sel(forecast="model") ** 2 * share, found, rtol=1e-4)
    predicted = model.predict(data).compute()
    for name in names:
        at = whole.at(predicted.valid_time.stack(date=("time", "lead")).drop_vars(["date", "time", "lead"]))
        cycle = np.asarray(at[name]).reshape(predicted.sizes["time"], -1, 4, 6)
        climatology = predicted.assign({name: (("time", "lead", "lat", "lon"), cycle)})
        expected = errors_by_lead(direct, climatology, data, [name], "weights" in settings)[0]
        squares = groups.rmse.sel(forecast="climatology", variable=name) ** 2 * share.sel(variable=name)
        np.testing.assert_allclose(squares, expected, rtol=1e-4)

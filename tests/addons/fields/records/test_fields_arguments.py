"""Arguments of windows, splits, statistics and predictions: each of a wrong type is refused in one sentence."""

import datetime
import inspect
from typing import Any

import numpy as np
import pytest
import xarray as xr

import dsinga
from dsinga.addons.fields.prediction.field_prediction import predict_dataset
from dsinga.addons.fields.records.window_arguments import define_windows
from dsinga.base.errors import UserError
from dsinga.data import field_statistics
from tests.support.field_nets import convolutions, make_job
from tests.support.refusals import refused

DATES = np.datetime64("2000-01-01", "ns") + np.arange(9) * np.timedelta64(1, "D")
DATA = xr.Dataset({"t": (("time", "lat"), np.arange(36.0).reshape(9, 4))}, {"time": DATES, "lat": [30.0, 20, 10, 0]})
WINDOWS: dict[str, Any] = {"inputs": "t", "targets": "t", "input_dims": {"time": 1, "lat": -1}, "lead": {"time": 1}}


class Stranger:
    """An object of no known kind."""

    def __len__(self) -> int:
        return 2


WRONG: list[Any] = [
    *(1.5, -1, 10**30, float("nan"), True, b"t", "?", Stranger(), lambda: 1, len, datetime.timedelta(1), np.zeros(2)),
    *([None], [1], {"t"}, {1: 2}, {None: None}, {"time": None}, {"time": "?"}, {"time": 1.5}, {"time": True}),
    *({"time": (1,)}, {"time": (1, 2, 3)}, {"time": [Stranger(), 1]}, {"time": {}}, {"time": 10**30}, {"?": 1}),
    *({"time": (np.datetime64("NaT", "ns"), None)}, {"time": ("2000-02-30", None)}, {"time": (None, "?")}),
]
FITTING = {  # where a value of the list is right
    "over_gaps": [True], "mask": [True], "fill": [1.5, -1, 10**30, {"time": 1.5}, {"time": 10**30}], "memory": [10**30],
}  # fmt: skip


@pytest.mark.parametrize("name", inspect.signature(dsinga.windows).parameters)
def test_arguments_of_windows(name: str) -> None:
    for value in WRONG:
        if repr(value) in map(repr, FITTING.get(name, [])):
            continue
        given = {"dataset": DATA, **WINDOWS, name: value}
        if name in ("channels", "mask", "inputs", "targets", "coordinates") and isinstance(value, dict):
            continue  # a mapping is the list of its names, as those of ds.data_vars
        with pytest.raises(UserError) as error:
            dsinga.windows(given.pop("dataset"), **given)
        assert len(str(error.value)) < 400, (value, error.value)


def test_arguments_of_splits_and_statistics() -> None:
    windows, statistics = dsinga.windows(DATA, **WINDOWS), field_statistics(DATA)
    uses = {
        "gap": lambda value: windows.split(time="2000-01-05", gap=value),
        "time": lambda value: windows.split(time=value),
        "dim": lambda value: field_statistics(DATA, value),
        "client": lambda value: field_statistics(DATA, client=value),
        "of_inputs": statistics.of_inputs,
        "of_targets": statistics.of_targets,
    }
    for name, use in uses.items():
        for value in WRONG:
            if name == "dim" and isinstance(value, dict) and "time" in value:
                continue
            with pytest.raises(UserError):
                use(value)


def test_leads_of_predictions() -> None:
    job, definition = make_job(convolutions()), define_windows(**WINDOWS)
    for value in [*WRONG, 10**7, 0]:
        with pytest.raises(UserError, match=r"leads is .*; give a whole number of at least 1|leads are too many"):
            predict_dataset(job, {}, "end", DATA, definition=definition, leads=value)


def test_statistics_without_a_number_are_refused() -> None:
    data = DATA.assign(empty=DATA.t * np.nan, part=DATA.t.where(DATA.lat < 15))
    windows = dsinga.windows(data, **{**WINDOWS, "inputs": ["t", "part"], "coordinates": "lat", "mask": True})
    refused(lambda: field_statistics(data[["t"]]).of_inputs(windows), "'part', only of 't'; take them of all")
    refused(lambda: field_statistics(data.isel(time=slice(0))).of_targets(windows), "of 't'", "NaN there, or")
    everywhere = dsinga.windows(data, **{**WINDOWS, "inputs": ["empty"], "mask": True})
    refused(lambda: field_statistics(data, "time").of_inputs(everywhere), "'empty' are of no number: ")
    means = field_statistics(data, "time").of_inputs(windows)["mean"]  # of points of land, which are masked
    np.testing.assert_array_equal(means[1], [0, 0, *data.t.mean("time").values[2:]])


def sphere(longitudes: Any) -> xr.Dataset:
    latitudes = np.linspace(90, -90, 7)
    values = np.add.outer(latitudes * 1000, np.asarray(longitudes) % 360)
    return xr.Dataset({"t": (("lat", "lon"), values)}, {"lat": latitudes, "lon": longitudes})


@pytest.mark.parametrize("longitudes", [np.arange(0, 360, 10.0), np.arange(-180, 180, 10), np.arange(300, 361, 10.0)])
@pytest.mark.parametrize(
    "ends", [(-10, 10), (350, 10), (350, 370), (-180, 180), (0, 360), (-30, -5), (10, 50), (170, -170)]
)
def test_longitudes_go_on_round_the_circle(longitudes: Any, ends: tuple[float, float]) -> None:
    data, (first, last) = sphere(longitudes), ends
    settings = {"input_dims": {"lat": 1, "lon": -1}, "within": {"lon": ends}}
    along = np.arange(first, first + ((last - first) % 360 or 360) + 1, 10)  # each point eastwards of the first end
    known = dict.fromkeys(place % 360 for place in along if place % 360 in longitudes % 360)
    if not known:
        refused(lambda: dsinga.windows(data, **settings), "no point of 'lon' lies within")
        return
    part = dsinga.windows(data, **settings).dataset
    steps = np.diff(part.lon.values)
    assert (steps == 10).all()
    assert first <= part.lon[0] <= part.lon[-1] <= along[-1]
    assert sorted(part.lon.values % 360) == sorted(known)
    np.testing.assert_array_equal(part.t, np.add.outer(part.lat.values * 1000, part.lon.values % 360))


def test_ends_of_falling_coordinates_may_be_in_either_order() -> None:
    for data in (sphere(np.arange(0, 360, 10)), sphere(np.arange(0, 360, 10)).sortby("lat")):
        for ends in ((-30, 60), (60, -30), ("-30", "60.0")):
            part = dsinga.windows(data, input_dims={"lat": -1, "lon": -1}, within={"lat": ends}).dataset
            xr.testing.assert_identical(part.t, data.t.where((data.lat >= -30) & (data.lat <= 60), drop=True))
    hole = sphere(np.arange(20, 350, 10))
    with pytest.raises(UserError, match="the data have no point between -20 and 20; they have 20 to 340"):
        dsinga.windows(hole, input_dims={"lat": -1, "lon": -1}, within={"lon": (-40, 40)})

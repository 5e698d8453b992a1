"""Each kind of coordinate of time in each use of windows: order, doubles, gaps, cuts, predictions and their leads.

Oracles are the days themselves, pandas and cftime, and predictions of the same data without a gap.
"""

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import numpy as np
import pytest

import dsinga
from dsinga.addons.fields.prediction import tiles as field_tiles
from dsinga.addons.fields.prediction.field_prediction import predict_dataset
from dsinga.addons.fields.records.definition import WindowDefinition
from dsinga.addons.fields.records.trained_layout import with_trained_layout
from dsinga.addons.fields.records.window_arguments import define_windows
from dsinga.base.errors import UserError
from tests.support.field_nets import convolutions, define, make_dataset, make_job, make_params
from tests.support.refusals import refused

xr = pytest.importorskip("xarray")
cftime = pytest.importorskip("cftime")
pandas = pytest.importorskip("pandas")


def calendar(name: str) -> Callable[[Any], Any]:
    return lambda days: np.array([cftime.datetime(2001, 1, 1, calendar=name) + timedelta(int(day)) for day in days])


def dates(days: Any) -> Any:
    return pandas.Timestamp("2001-01-01") + pandas.to_timedelta(np.asarray(days), "D")


KINDS: dict[str, Callable[[Any], Any]] = {
    "datetime64[ns]": lambda days: dates(days).values.astype("datetime64[ns]"),
    "datetime64[s]": lambda days: dates(days).values.astype("datetime64[s]"),
    "1500": lambda days: np.datetime64("1500-01-01", "s") + np.asarray(days) * np.timedelta64(1, "D"),
    "2300": lambda days: np.datetime64("2300-01-01", "us") + np.asarray(days) * np.timedelta64(1, "D"),
    "timedelta64": lambda days: (np.asarray(days) * np.timedelta64(1, "D")).astype("timedelta64[ns]"),
    **{name: calendar(name) for name in ("noleap", "360_day", "standard", "julian")},
    "texts": lambda days: np.array([str(date.date()) for date in dates(days)]),
    "datetime.date": lambda days: np.array([date.date() for date in dates(days)], object),
    "int": lambda days: np.asarray(days, np.int64),
    "float": lambda days: np.asarray(days, np.float64),
}
ENDLESS = KINDS.keys() - {"texts", "datetime.date"}  # which go on beyond the data
DAYS = np.arange(30)
GAPPY = np.array([*range(8), *range(20, 30)])
SETTINGS: dict[str, Any] = {
    "inputs": "t", "targets": "t", "input_dims": {"time": 1, "lat": -1, "lon": -1}, "context": {"time": (1, 0)},
    "lead": {"time": 1},
}  # fmt: skip


def dataset(kind: str, days: Any) -> Any:
    values = np.random.default_rng(0).normal(size=(30, 3, 4)).astype(np.float32)[np.asarray(days)]
    return xr.Dataset({"t": (("time", "lat", "lon"), values)}, {"time": KINDS[kind](days)})


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    return request.param


def test_dates_that_are_not_in_order_or_there_twice_are_refused(kind: str) -> None:
    for days in ([0, 2, 1, 3], [0, 1, 1, 2]):
        with pytest.raises(UserError, match=r"coordinates of 'time' do not increase: .* \(index 2\) follows"):
            dsinga.windows(dataset(kind, days), **SETTINGS)


def test_windows_over_a_gap_are_left_out_or_asked_for(kind: str) -> None:
    windows = dsinga.windows(dataset(kind, GAPPY), **SETTINGS)
    starts = windows.positions(np.arange(len(windows)))["time"]
    middle = np.arange(1, len(GAPPY) - 1)
    np.testing.assert_array_equal(starts, middle[GAPPY[middle + 1] - GAPPY[middle - 1] == 2])
    (sentence,) = windows.left_out
    assert sentence.startswith("2 of 16 windows along 'time' reach over a gap of time and are left out (the longest, ")
    everything = dsinga.windows(dataset(kind, GAPPY), **SETTINGS, over_gaps=True)
    assert (len(everything), everything.left_out) == (16, [])
    inputs, targets = windows.read(np.arange(len(windows)))
    values = dataset(kind, GAPPY).t.values
    np.testing.assert_array_equal(inputs[:, 1], values[starts])
    np.testing.assert_array_equal(targets[:, 0], values[starts + 1])
    refused(lambda: dsinga.windows(dataset(kind, [0, 1, 5]), **SETTINGS), "'time'", "fill the gaps")


def test_windows_of_all_points_have_no_gaps(kind: str) -> None:
    data = dataset(kind, GAPPY).rename(time="date")
    for sizes in ({"lat": 1, "lon": -1}, {"date": -1, "lat": 1, "lon": -1}):
        assert dsinga.windows(data, input_dims=sizes, channels=["date", "lat"]).shape == (18, 4)
    unsorted = dsinga.windows(
        dataset(kind, [2, 0, 5]).rename(time="date"), input_dims={"lat": 1, "lon": -1}, channels=["date"]
    )
    assert len(unsorted) == 3


def test_splits_and_ends_are_coordinates(kind: str) -> None:
    data = dataset(kind, DAYS)
    windows = dsinga.windows(data, **SETTINGS)
    label = data.time.values[10]
    for cut in (label, str(label)):
        assert [len(part) for part in windows.split(time=cut)] == [8, 18]
        assert len(dsinga.windows(data, **SETTINGS, within={"time": (cut, None)})) == 18
        assert len(dsinga.windows(data, **SETTINGS, within={"time": (None, cut)})) == 9
    if data.time.dtype.kind == "M":  # a part of a date is all of it
        month = str(data.time.values[0])[:7]
        assert len(dsinga.windows(data, **SETTINGS, within={"time": (month, month)})) == 28
        assert len(dsinga.windows(data, **SETTINGS, within={"time": (None, str(label)[:10])})) == 9
    if kind == "noleap":
        assert [len(part) for part in windows.split(time=np.datetime64("2001-01-11"))] == [8, 18]
    if kind != "360_day":  # which has the 30th of February
        fault = "no number" if kind in ("int", "float") else "'2001-02-30' is no (date|time)"
        for use in (
            lambda: windows.split(time="2001-02-30"),
            lambda: dsinga.windows(data, **SETTINGS, within={"time": ("2001-02-30", None)}),
        ):
            with pytest.raises(UserError, match=fault):
                use()
    if kind == "timedelta64":
        refused(lambda: windows.split(time=5), "'time'", "to 696 h")


def predict(data: Any, definition: WindowDefinition, leads: int | None = None) -> Any:
    job = make_job(convolutions())
    params = make_params(job, definition, data)
    return predict_dataset(job, params, "end", data, definition=definition, leads=leads)


@pytest.mark.parametrize("leads", [None, 3])
def test_predictions_have_the_times_and_numbers_that_they_have_without_a_gap(kind: str, leads: int | None) -> None:
    whole = dataset(kind, DAYS)
    definition = with_trained_layout(whole, define_windows(**SETTINGS))
    complete, predicted = (predict(dataset(kind, days), definition, leads) for days in (DAYS, GAPPY))
    known = {*GAPPY, *(range(30, 40) if kind in ENDLESS else ())}  # the days that targets may have
    ahead = range(-1, (leads or 1) + 1)
    last = [day for day in GAPPY if all(day + step in known for step in ahead)]
    np.testing.assert_array_equal(predicted.time, KINDS[kind](np.array(last) + (leads is None)))
    xr.testing.assert_identical(predicted.load(), complete.sel(time=predicted.time).load())
    if leads:
        for lead in range(leads):
            np.testing.assert_array_equal(predicted.valid_time[:, lead], KINDS[kind](np.array(last) + lead + 1))
    if kind not in ENDLESS:
        return
    pair = predict(dataset(kind, [0, 1]), definition, leads)  # the step is that of training
    np.testing.assert_array_equal(pair.time, KINDS[kind]([2 if leads is None else 1]))
    with pytest.raises(UserError, match="the usual step of 'time' is (9|216 h), in training it was (1|24 h)"):
        predict(dataset(kind, [0, 9]), definition, leads)


def test_one_date_is_enough_for_the_next_one() -> None:
    settings = SETTINGS | {"context": {}}
    for kind in sorted(ENDLESS):
        definition = with_trained_layout(dataset(kind, DAYS), define_windows(**settings))
        np.testing.assert_array_equal(predict(dataset(kind, [4]), definition).time, KINDS[kind]([5]))


@pytest.mark.parametrize(
    ("trained", "other"), [("noleap", "360_day"), ("360_day", "datetime64[ns]"), ("standard", "noleap")]
)
def test_a_net_of_one_calendar_predicts_in_another(trained: str, other: str) -> None:
    definition = with_trained_layout(dataset(trained, DAYS), define_windows(**SETTINGS))
    here, there = (predict(dataset(kind, DAYS), definition, 3) for kind in (trained, other))
    np.testing.assert_array_equal(there.t, here.t)
    np.testing.assert_array_equal(there.valid_time[:, 1], KINDS[other](DAYS[1:] + 2))


@pytest.mark.parametrize(
    ("name", "place"),
    [
        ("noleap", "middles"),
        ("360_day", "middles"),
        *(("proleptic_gregorian", place) for place in ("middles", "days of middles", "the 15th")),
    ],
)
def test_monthly_means_go_on_in_the_middles_of_months(name: str, place: str) -> None:
    ends = xr.date_range("2000-12-01", periods=40, freq="MS", calendar=name, use_cftime=name != "proleptic_gregorian")
    middles = {
        "middles": lambda: ends[:-1] + (ends[1:] - ends[:-1]) / 2,
        "days of middles": lambda: (ends[:-1] + (ends[1:] - ends[:-1]) / 2).floor("D"),
        "the 15th": lambda: ends[:-1] + timedelta(14),
    }[place]()
    values = np.random.default_rng(0).normal(size=(39, 3, 4)).astype(np.float32)
    whole = xr.Dataset({"t": (("time", "lat", "lon"), values)}, {"time": middles})
    data = whole.isel(time=slice(30))
    definition = with_trained_layout(data, define_windows(**SETTINGS, coordinates="sin(day of year)"))
    predicted = predict(data, definition, 9)
    np.testing.assert_array_equal(predicted.valid_time[-1], middles[30:39])
    single = predict(data.isel(time=[-2, -1]), definition, 9)
    xr.testing.assert_allclose(single.drop_vars("lead"), predicted.isel(time=[-1]).drop_vars("lead"))
    assert predict(data, definition).time[-1] == middles[30]


# Predictions of several leads against a loop that writes each prediction into the data and predicts again.
STEP = np.timedelta64(6, "h")


def predict_leads(dataset: Any, definition: WindowDefinition, leads: int | None = None, filters: int = 1) -> Any:
    job = make_job(convolutions(filters, pad=0 if definition.along("latitude").before else 1))
    params = make_params(job, definition, make_dataset())
    return predict_dataset(job, params, "end", dataset, definition=definition, leads=leads)


def looped(dataset: Any, definition: WindowDefinition, last: int, leads: int, filters: int) -> list[Any]:
    """Return the predictions after the point ``last`` of time, one after the other."""
    known, size = dataset.isel(time=slice(last + 1)), definition.input_dims["time"]
    steps = []
    for _ in range(leads):
        step = predict_leads(known, definition, filters=filters).isel(time=slice(-size, None)).compute()
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
    predicted = predict_leads(dataset.chunk(time=3, latitude=11), definition, leads, filters)
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
    predicted = predict_leads(dataset, define(**settings, lead={"time": 3}), 3)
    np.testing.assert_array_equal(predicted.lead, np.array([3, 6, 9]) * STEP)
    for first in range(3):
        every_third = predict_leads(dataset.isel(time=slice(first, None, 3)), define(**settings), 3)
        np.testing.assert_array_equal(predicted.t[first::3], every_third.t)


def test_masked_points_stay_masked() -> None:
    dataset = make_dataset()
    land = dataset.h > 0.5
    masked = dataset.assign(t=dataset.t.where(~land))
    predicted = predict_leads(masked, define(mask=["t"], inputs=["t"]), leads=2)
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
    refused(lambda: predict_leads(dataset, definition, leads=leads), message)

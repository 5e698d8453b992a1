"""Windows that do not fit a Dataset, and NaN where no mask was asked for, are refused with the remedy."""

import datetime
import inspect
import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr

import dsinga
from dsinga import nn
from dsinga.addons.fields.prediction.field_prediction import predict_dataset
from dsinga.addons.fields.records.window_arguments import define_windows
from dsinga.base.errors import UserError
from dsinga.data import field_statistics
from tests.support.field_nets import convolutions, make_job
from tests.support.refusals import check_refusal, refusal, refused

DATES = np.datetime64("2000-01-01", "ns") + np.arange(12) * np.timedelta64(1, "D")


def dataset(**changes: Any) -> xr.Dataset:
    sst = np.arange(12.0 * 6 * 8).reshape(12, 6, 8)
    variables: dict[str, Any] = {"sst": (("time", "lat", "lon"), sst), "ice": (("time", "lat", "lon"), sst / 100)}
    data = xr.Dataset(variables, {"time": DATES, "lat": np.linspace(50, -50, 6), "lon": np.arange(8) * 45.0})
    return data.assign(**changes)


WHOLE = {"time": 1, "lat": -1, "lon": -1}


@pytest.mark.parametrize(
    ("settings", "fault"),
    [
        ({"inputs": "sts"}, "the Dataset has no variable 'sts'; did you mean 'sst'"),
        ({"targets": "wind"}, "the Dataset has no variable 'wind'; it has 'sst', 'ice'"),
        ({"input_dims": {"tme": 1}}, "input_dims names the dimension 'tme', .* do not have; did you mean 'time'"),
        ({"lead": {"x": 1}}, "lead names the dimension 'x', .* do not have; they have 'time', 'lat', 'lon'"),
        ({"context": {"level": 1}}, r"names 'level', which input_dims does not have; add 'level' to input_dims"),
        ({"input_dims": {"lat": 7}}, "windows have 7 points of 'lat', but the data 6; give input_dims of at most that"),
        ({"input_dims": {"lat": 0}}, "input_dims has 0 points of 'lat'; give at least 1, or -1 for all of them"),
        ({"input_dims": {"lat": 2}, "input_overlap": {"lat": 2}}, "overlap of 'lat' is 2, but a window has 2 points"),
        ({"context": {"lat": 1}}, r"'lat': it takes 8 points \(6 of its own . 2 of context\), and the data have 6"),
        ({"lead": {"time": 12}}, "lead of 'time' is 12 points, which lies beyond the 12 points of the data"),
        (
            {"lead": {"time": 11}, "context": {"time": (1, 0)}},
            r"no window fits along 'time': it takes 13 points \(1 of its own . 1 of context . 11 of",
        ),
        ({"edges": {"lat": "mirror"}}, "of 'lat' is 'mirror'; it is one of inside, zero, edge, reflect, periodic"),
        ({"edges": {"lat": "refelct"}}, "edges of 'lat' is 'refelct'; did you mean 'reflect'"),
        ({"coordinates": "cos(latitude)"}, r"coordinate 'latitude' for the channel 'cos\(latitude\)'; it has 'time'"),
        ({"coordinates": "time"}, r"coordinate 'time' of the channel 'time' is not numbers; of dates there are sin"),
        ({"static": "ice"}, "the static variable 'ice' has the dimension 'time'; name it in inputs, or take it once"),
        ({"max_nan": 0.2}, r"max_nan=0.2 keeps windows that have NaN; ask for a mask, too \(mask=True\), or give max_"),
        ({"max_nan": 2.0}, "max_nan is 2.0; give a number between 0 and 1"),
        ({"weights": "time"}, "the coordinate 'time' of the channel 'time' is not numbers"),
        ({"within": {"time": ("2001", None)}}, "point of 'time' lies within 2001 to None; it has 2000-01-01 to 2000-"),
        ({"memory": 10}, "memory is in bytes, at least 1 MiB"),
        ({"lead": {}, "leads": 2}, "leads=2 are multiples of a lead, and there is none; give one"),
        ({"lead": {"time": "6h"}}, "lead of 'time' is a number of points, not '6h'; .* 1 days 00:00:00: give a mul"),
        ({"lead": {"time": "2D"}}, "lead of 'time' is a number of points, not '2D'; .*: write lead={'time': 2}"),
        ({"input_dims": ["time"]}, r"input_dims takes a number of points for each dimension, .*, not \['time'\]"),
        ({"context": {"time": 1.5}}, "context of 'time' is a whole number of points of the data, not 1.5"),
        ({"lead": {"time": 1}, "targets": None}, "lead says where targets lie, but no targets are named"),
    ],
)
def test_settings_that_do_not_fit_are_refused(settings: dict[str, Any], fault: str) -> None:
    with pytest.raises(UserError, match=fault):
        dsinga.windows(dataset(), **{"inputs": "sst", "targets": "sst", "input_dims": WHOLE} | settings)


@pytest.mark.parametrize("direct", [True, False])
def test_the_time_of_leads_has_another_name_than_that_of_the_data(direct: bool) -> None:
    data = dataset().rename(time="valid_time")  # as the Copernicus store writes ERA5
    settings: dict[str, Any] = {"input_dims": {"valid_time": 1, "lat": -1, "lon": -1}, "lead": {"valid_time": 1}}
    dsinga.windows(data, inputs="sst", targets="sst", **settings)
    with pytest.raises(UserError, match=r"the data have 'valid_time' already, .* ds.rename\(valid_time='time'\)"):
        dsinga.windows(data, inputs="sst", targets="sst", **settings, leads=2, direct=direct)
    renamed = data.rename(sst="lead", valid_time="time")
    with pytest.raises(UserError, match="the data have 'lead' already"):
        dsinga.windows(renamed, inputs="lead", targets="lead", input_dims=WHOLE, lead={"time": 1}, leads=2)


def test_mistakes_are_named_with_their_remedies() -> None:
    data = dataset(wind=(("time", "y", "x"), np.zeros((12, 3, 4))))
    refused(lambda: dsinga.windows(data, inputs=["sst", "wind"], input_dims=WHOLE), "'wind'", "interp_")
    windows = dsinga.windows(dataset(), inputs="sst", input_dims=WHOLE, edges={"lon": "periodic"})
    for cuts, fault in (
        ({"tme": "2000"}, "the Dataset has no dimension 'tme'; did you mean 'time'"),
        ({"time": "1999"}, "along 'time' at 1999 leaves a part without a point; the data have 2000-01-01 to 2000"),
        ({"time": ["2000-01-05", "2000-01-03"]}, "leaves a part without a point"),
        ({"lon": 90}, "'lon' is periodic, so that every cut has two sides"),
        ({"time": "2000-01-03", "gap": 2}, "gap=2 leaves no point of 'time' before the cut at 2000-01-03"),
        ({}, "split takes one dimension and its coordinates"),
    ):
        with pytest.raises(UserError, match=fault):
            windows.split(**cuts)


def test_data_that_are_no_dataset_are_refused(tmp_path: Path) -> None:
    refused(lambda: dsinga.windows(np.zeros((3, 4)), input_dims={"time": 1}), r"the path of one, not a ndarray; name")
    refused(lambda: dsinga.windows(["a.nc", "b.nc"], input_dims={"time": 1}), r"one Dataset: dsinga.data.open_stores")
    tree = xr.DataTree.from_dict({"/sea": dataset()})
    refused(lambda: dsinga.windows(tree, input_dims={"time": 1}), r"'GROUP'\].to_dataset\(\)")
    dataset().to_zarr(tmp_path / "x.zarr", group="sea", zarr_format=2)
    with pytest.raises(UserError, match=r"x.zarr has no variables at its root; where they are in a group"):
        dsinga.windows(tmp_path / "x.zarr", input_dims={"time": 1})
    assert len(dsinga.windows(tmp_path / "x.zarr" / "sea", input_dims={"time": 1})) == 12
    refused(lambda: dsinga.windows(tmp_path / "x.nc", input_dims={"time": 1}), "x.nc was not found", "give the path")
    text = dataset(name=("time", np.array(["a"] * 12)))
    refused(lambda: dsinga.windows(text, inputs="name", input_dims={"time": 1}), "'name'", "numbers, not strings")


def test_a_periodic_longitude_that_is_no_circle_is_said(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, "dsinga")
    dsinga.windows(dataset(), input_dims=WHOLE, edges={"lon": "periodic"})
    assert not caplog.text
    dsinga.windows(dataset().isel(lon=slice(4)), input_dims=WHOLE, edges={"lon": "periodic"})
    assert "'lon' is periodic, but its 4 points from 0 to 135 with a step of 45 are not once round" in caplog.text


def with_nan() -> xr.Dataset:
    data = dataset()
    data.sst[3, 2, 5] = np.nan
    data.ice[:, 0, 0] = np.nan
    return data


def test_nan_is_refused_with_variable_coordinates_and_index() -> None:
    windows = dsinga.windows(with_nan(), inputs="sst", targets="ice", input_dims=WHOLE)
    place = r"variable 'sst' has NaN at time=2000-01-04, lat=10, lon=225 \(index \(3, 2, 5\)\); ask for a mask"
    refused(lambda: windows.read([0, 3]), place)
    refused(lambda: windows.read([5]), r"'ice' has NaN at time=2000-01-06, lat=50, lon=0 \(index \(5, 0, 0\)\)")
    assert np.isnan(windows.allowing_nonfinite().read([3])[0]).sum() == 1
    infinite = dataset(ice=dataset().ice.where(dataset().ice < 5, np.inf))
    with pytest.raises(UserError, match="variable 'ice' has infinity at time="):
        dsinga.windows(infinite, inputs="ice", input_dims=WHOLE, mask=True).read([11])


def test_masked_points_are_filled_and_told_by_channels() -> None:
    data = with_nan()
    windows = dsinga.windows(
        data, inputs=["ice", "sst"], targets=["sst", "ice"], input_dims=WHOLE, context={"time": (1, 0)}, mask="sst",
        fill=-9, within={"time": ("2000-01-02", None)}, edges={"time": "edge"},
    )  # fmt: skip
    assert windows.layout.channel_names() == (
        "ice time-1", "ice", "sst time-1", "sst", "mask of sst time-1", "mask of sst"
    )  # fmt: skip
    refused(lambda: windows.read([0]), "variable 'ice' has NaN at time=2000-01-02")
    masked = dsinga.windows(data, inputs="sst", targets=["sst", "ice"], input_dims=WHOLE, mask=True, fill={"sst": -9})
    inputs, targets = masked.read([3])
    assert masked.layout.channel_names() == ("sst", "mask of sst")
    np.testing.assert_array_equal(inputs[0, 0], data.sst[3].fillna(-9))
    np.testing.assert_array_equal(inputs[0, 1], data.sst[3].notnull())
    np.testing.assert_array_equal(targets[0, 0], data.sst[3].astype(np.float32))
    np.testing.assert_array_equal(targets[0, 1], data.ice[3].astype(np.float32))


def test_points_beyond_an_edge_of_zeros_are_masked_too() -> None:
    windows = dsinga.windows(
        dataset(), inputs="sst", input_dims={"time": 1, "lat": 3, "lon": -1}, context={"lat": 1}, mask=True,
        edges={"lat": "zero"},
    )  # fmt: skip
    inputs, _ = windows.read([0, 1])
    assert inputs[0, 1].any(axis=1).tolist() == [False, True, True, True, True]
    assert inputs[1, 1].any(axis=1).tolist() == [True, True, True, True, False]
    assert not inputs[0, 0, 0].any()


def test_windows_with_much_nan_are_left_out(caplog: pytest.LogCaptureFixture) -> None:
    data = dataset()
    data.sst[:, :3, :4] = np.nan
    data.sst[4, 3:] = np.nan
    cut = {"inputs": "sst", "input_dims": {"time": 1, "lat": 3, "lon": 4}}
    caplog.set_level(logging.WARNING, "dsinga")  # a Dask cluster of other tests may have disabled the handler
    without = dsinga.windows(data, **cut, max_nan=0)
    assert len(without) == 12 * 3 - 2
    assert "14 of 48 windows have more than max_nan=0 of NaN" in caplog.text
    places = [tuple(first[row] for first in without.positions(np.arange(34)).values()) for row in range(34)]
    shares = np.isnan(data.sst.values).reshape(12, 2, 3, 2, 4).mean(axis=(2, 4))
    assert places == [(time, lat * 3, lon * 4) for time, lat, lon in np.argwhere(shares == 0)]
    assert np.isfinite(without.read(np.arange(34))[0]).all()
    half = dsinga.windows(data, inputs="sst", input_dims={"time": 1, "lat": -1, "lon": -1}, max_nan=0.5, mask=True)
    assert len(half) == 11  # all but step 4, which has 60 % of NaN
    with pytest.raises(UserError, match=r"all 12 windows have more than max_nan=0.1 of NaN; give a larger share"):
        dsinga.windows(data, inputs="sst", input_dims=WHOLE, max_nan=0.1, mask=True)


MISTAKES = [
    refusal(lambda: day_ahead().split(0.8), "split takes one dimension", "split(time=ds['time'].values[int(0.8 * "),
    refusal(lambda: day_ahead().split(time=0.8), "'0.8' is no date along 'time'", "int(0.8 * ds.sizes['time'])"),
    refusal(lambda: day_ahead()[0], "FieldWindows has no index", ".read([0])"),
    refusal(lambda: dsinga.windows("era5.nc", input_dims=WHOLE), "era5.nc was not found", "give the path or URL"),
    refusal(lambda: net(3).fit(day_ahead()), "'data_target'", "(1, 4, 6)", 'padding="same"'),
    refusal(lambda: field_statistics(day_ahead()), "Dataset is needed, not windows", "give windows.dataset"),
    refusal(lambda: predicted(dataset().isel(time=slice(0))), "no point of 'time'", "ds.sel(...)"),
    refusal(
        lambda: predicted(with_nan()), "'sst' has NaN", "without a mask of it", "mask=['sst']", "ds.fillna(ds.mean())"
    ),
    refusal(lambda: net(1).fit(day_ahead(), validation_split=0.2), "FieldWindows", "windows.split(time=...)"),
]


@pytest.mark.parametrize(("call", "words", "error"), MISTAKES)
def test_a_mistake_is_named_with_its_remedy(call: Any, words: Any, error: Any, request: pytest.FixtureRequest) -> None:
    check_refusal(call, words, error, request)


def day_ahead() -> Any:
    return dsinga.windows(dataset(), inputs="sst", targets="sst", input_dims=WHOLE, lead={"time": 1})


def predicted(data: xr.Dataset) -> Any:
    model = net(1)
    model.fit(day_ahead(), progress=False)
    return model.predict(data).compute()


def net(kernel_size: int) -> nn.Sequential:
    model = nn.Sequential([nn.Conv2D(1, kernel_size)])
    model.compile("adam", "mse")
    return model


def test_a_part_begins_at_a_date_of_the_dataset() -> None:
    data, by_text = dataset(), day_ahead().split(time=["2000-01-04", "2000-01-08"])
    for cuts in (data.time[[3, 7]], [data.time[3], data.time[7]]):
        assert list(map(len, day_ahead().split(time=cuts))) == list(map(len, by_text))


def test_a_target_that_is_an_input_of_the_same_time_is_said_once(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, "dsinga")
    day_ahead().split(time="2000-01-05")
    assert "copy" not in caplog.text
    dsinga.windows(dataset(), inputs="sst", targets="sst", input_dims=WHOLE).split(time="2000-01-05")
    assert caplog.text.count("'sst' is also an input of the same time") == 1
    assert "give lead={'time': 1}" in caplog.text


# Arguments of windows, splits, statistics and predictions: each of a wrong type is refused in one sentence.
DAYS = np.datetime64("2000-01-01", "ns") + np.arange(9) * np.timedelta64(1, "D")
DATA = xr.Dataset({"t": (("time", "lat"), np.arange(36.0).reshape(9, 4))}, {"time": DAYS, "lat": [30.0, 20, 10, 0]})
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
        "time": lambda value: windows.split(time=value), "dim": lambda value: field_statistics(DATA, value),
        "client": lambda value: field_statistics(DATA, client=value), "of_inputs": statistics.of_inputs,
        "of_targets": statistics.of_targets,
    }  # fmt: skip
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


def test_statistics_as_a_mean_are_answered_with_the_line_to_write():
    refused(lambda: nn.Normalization(field_statistics(dataset())), r"FieldStatistics.*\(\*\*statistics.of_inputs")

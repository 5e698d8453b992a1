"""Errors by group against pandas: windows and groups of each kind, of data whose numbers say where they lie."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import dsinga
from dsinga.addons.fields.prediction.evaluate import GroupedErrors, make_baselines
from dsinga.addons.fields.prediction.label_groups import LabelPoints
from dsinga.base.errors import UserError
from dsinga.data import FieldWindows, field_climatology
from dsinga.layers import Layer
from dsinga.layers.metrics.composed_metrics import metric_values
from dsinga.ops import BACKENDS, layout
from dsinga.training import add_metrics
from tests.support.layer_cases import context, layer_of
from tests.support.refusals import refused

xr = pytest.importorskip("xarray")
pandas = pytest.importorskip("pandas")
SIZES = {"time": 26, "level": 2, "lat": 5, "lon": 8}
COORDINATES: dict[str, Any] = {
    "time": np.datetime64("2000-01-31", "ns") + np.arange(26) * np.timedelta64(15, "D"),
    "level": [500, 850],
    "lat": np.linspace(60, -60, 5),
    "lon": np.arange(8) * 45.0,
}


def numbered(first: int, *dims: str) -> Any:
    """Return a variable whose numbers count its points."""
    shape = [SIZES[dim] for dim in dims]
    return dims, first + np.arange(np.prod(shape), dtype=np.float32).reshape(shape)


DATA = xr.Dataset(
    {"t": numbered(0, "time", "lat", "lon"), "z": numbered(10_000, "time", "level", "lat", "lon")}, COORDINATES
)
AREAS = xr.DataArray(
    np.array([["land", "sea", None, "sea"] * 2] * 5, object), [("lat", COORDINATES["lat"]), ("lon", COORDINATES["lon"])]
).rename("area")
REGIONS = {"tropics": {"lat": (-30, 30)}, "west": {"lon": (-100, 10), "lat": (60, -30)}}
WINDOWS: dict[str, dict[str, Any]] = {
    "whole fields": {"targets": "t", "input_dims": {"time": 1, "lat": -1, "lon": -1}, "lead": {"time": 2}},
    "patches, several leads, levels": {
        "targets": ["z", "t"],
        "input_dims": {"time": 2, "lat": 2, "lon": 4},
        "context": {"time": (1, 0), "lat": 1, "lon": (1, 0)},
        "lead": {"time": 3},
        "edges": {"lat": "inside", "lon": "periodic"},
    },
    "leads at once": {
        "targets": ["z", "t"],
        "input_dims": {"time": 1, "lat": -1, "lon": -1},
        "lead": {"time": 2},
        "leads": 3,
        "direct": True,
    },
    "weights and masks": {
        "targets": "t",
        "input_dims": {"time": 1, "lat": 3, "lon": -1},
        "lead": {"time": 1},
        "weights": "cos(lat)",
        "mask": True,
    },
}
GROUPS: list[Any] = [
    (), "variable", ("lead", "season"), ("lat", "lon"), ("time", REGIONS), ("month", AREAS), ("year", "lon"),
]  # fmt: skip


def make_windows(kind: str) -> FieldWindows:
    data = DATA.where(DATA.t % 7 != 3) if "masks" in kind else DATA
    return dsinga.windows(data, inputs="t", **WINDOWS[kind])


def frame(windows: FieldWindows, predictions: np.ndarray) -> Any:
    """Return a row for each number of the labels: where it lies, as its own value says, and the prediction of it."""
    labels = windows.read(np.arange(len(windows)))[1]
    weights = labels[:, -1:] if windows.definition.weights else np.ones_like(labels[:, :1])
    labels = labels[:, : predictions.shape[1]]
    starts = windows.positions(np.arange(len(windows)))["time"].reshape(-1, 1, 1, 1)
    columns = {"y": labels, "x": predictions, "w": weights, "start": starts}
    rows = pandas.DataFrame({name: np.broadcast_to(each, labels.shape).ravel() for name, each in columns.items()})
    rows = rows.dropna().reset_index(drop=True)
    is_z = rows.y >= 10_000
    number = np.where(is_z, rows.y - 10_000, rows.y).astype(int)
    number, lon = np.divmod(number, SIZES["lon"])
    number, lat = np.divmod(number, SIZES["lat"])
    time = np.where(is_z, number // SIZES["level"], number)
    last = rows.start + windows.definition.input_dims["time"] - 1
    dates = pandas.DatetimeIndex(COORDINATES["time"][time])
    seasons = {12: "DJF", 1: "DJF", 2: "DJF", 3: "MAM", 4: "MAM", 5: "MAM", 6: "JJA", 7: "JJA", 8: "JJA"}
    return rows.assign(
        variable=np.where(is_z, "z", "t"), lat=COORDINATES["lat"][lat], lon=COORDINATES["lon"][lon], time=dates,
        lead=(time - last) * np.timedelta64(15, "D"), month=dates.month, year=dates.year,
        season=[seasons.get(month, "SON") for month in dates.month], area=AREAS.values[lat, lon],
    )  # fmt: skip


def in_region(rows: Any, name: str) -> Any:
    if name == "tropics":
        return rows[rows.lat.abs() <= 30]
    return rows[((rows.lon >= 260) | (rows.lon <= 10)) & (rows.lat >= -30)]


@pytest.mark.parametrize("kind", WINDOWS)
def test_errors_of_each_group_are_those_of_its_numbers(kind: str, monkeypatch: Any) -> None:
    windows = make_windows(kind)
    shape = windows.label_shape[0] - bool(windows.definition.weights), *windows.label_shape[1:]
    rng = np.random.default_rng(0)
    predictions = (rng.normal(size=(len(windows), *shape)) * 100).astype(np.float32)
    rows = frame(windows, predictions)
    for by in GROUPS:
        found = GroupedErrors(windows, by).add_all([predictions[:7], predictions[7:].reshape(len(windows) - 7, -1)])
        result = found.dataset()
        keys = [
            key if isinstance(key, str) else getattr(key, "name", "region")
            for key in ([by] if by == "variable" else by)
        ]
        assert list(result.rmse.dims) == keys
        cells = result.stack(cell=keys) if keys else result.expand_dims("cell")
        compared = 0
        for place in range(cells.sizes["cell"]):
            cell, chosen = cells.isel(cell=place), rows
            for key in keys:
                label = cell[key].item() if key not in ("lead", "time") else cell[key].values
                chosen = in_region(chosen, label) if key == "region" else chosen[chosen[key] == label]
            assert int(cell["count"]) == len(chosen)
            if not len(chosen):
                assert np.isnan(cell.rmse)
                continue
            error = chosen.x.astype(float) - chosen.y
            np.testing.assert_allclose(cell.rmse, np.average(error**2, weights=chosen.w) ** 0.5, rtol=1e-12)
            np.testing.assert_allclose(cell.mae, np.average(error.abs(), weights=chosen.w), rtol=1e-12)
            np.testing.assert_allclose(cell.bias, np.average(error, weights=chosen.w), rtol=1e-10, atol=1e-10)
            compared += len(chosen)
        assert compared == len(rows) or compared > 0 and keys[1:] in (["region"], ["area"])
    batches = np.split(predictions, [1, 4])  # however predictions come
    monkeypatch.setattr("dsinga.addons.fields.prediction.evaluate.PART_NUMBERS", 3 * predictions[0].size)
    one, several = (GroupedErrors(windows, "lat").add_all(each).sums for each in ([predictions], batches))
    np.testing.assert_array_equal(several, one)


@pytest.mark.parametrize("kind", WINDOWS)
def test_baselines_are_the_last_inputs_and_the_means_of_months(kind: str) -> None:
    windows = make_windows(kind)
    points, rows = LabelPoints(windows), np.arange(len(windows))
    labels = windows.read(rows)[1][:, : points.channels]
    per_step = np.where(labels >= 10_000, 80, 40)  # how much later numbers of the data are larger
    persistence, climatological = make_baselines(points, ["persistence", field_climatology(windows.dataset)])
    last = persistence.read(rows)
    expected = labels - per_step * points.leads("time").reshape(1, -1, 1, 1)
    if "masks" in kind:
        shifted = windows.dataset.t.shift(time=windows.definition.along("time").lead).values
        expected = np.where(np.isin(expected, shifted), expected, np.nan)
        both = ~np.isnan(labels)
        np.testing.assert_array_equal(last[both], expected[both])
    else:
        np.testing.assert_array_equal(last, expected)
        time = points.points("time", rows)
        months = pandas.DatetimeIndex(COORDINATES["time"]).month.values
        means = np.array([np.flatnonzero(months == month).mean() for month in months])
        np.testing.assert_allclose(climatological.read(rows), labels + per_step * (means[time] - time), rtol=1e-6)


def test_baselines_are_compared_on_the_points_that_all_have() -> None:
    windows = make_windows("weights and masks")
    data = windows.dataset
    errors = GroupedErrors(windows, "variable", ["persistence", field_climatology(data)])
    result = errors.add_all([windows.read(np.arange(len(windows)))[1][:, :1]]).dataset().isel(variable=0)
    assert list(result.forecast.values) == ["model", "persistence", "climatology"]
    months, last = data.t.groupby("time.month").mean("time"), data.t.shift(time=1)
    anomalies = data.t - months.sel(month=data.time.dt.month)
    weights = np.cos(np.deg2rad(data.lat[:3]))
    valid = last.notnull() & data.t.notnull()
    for forecast, error in (("model", 0 * data.t), ("persistence", data.t - last), ("climatology", anomalies)):
        square = (error**2).where(valid).isel(lat=slice(0, 3), time=slice(1, None))
        expected = float(square.weighted(weights).mean()) ** 0.5
        np.testing.assert_allclose(result.rmse.sel(forecast=forecast), expected, rtol=1e-5)
    np.testing.assert_allclose(result.anomaly_correlation.sel(forecast="model"), 1)


def test_stations_with_names_lie_along_time() -> None:
    names = np.array(["a", "b"], object)  # as files have texts
    numbers = np.arange(100, dtype=np.float32).reshape(2, 50)
    dates = COORDINATES["time"][0] + np.arange(50) * np.timedelta64(10, "D")
    data = xr.Dataset({"t": (("station", "time"), numbers)}, {"station": names, "time": dates})
    climatology = field_climatology(data)
    windows = dsinga.windows(
        data, inputs="t", targets="t", input_dims={"station": 1, "time": 1}, lead={"time": 1}, climatology=climatology
    )
    errors = GroupedErrors(windows, ("station", "month"), climatology)
    found = errors.add_all([np.zeros((len(windows), 1), np.float32)]).dataset()
    monthly = ((data.t - climatology.at(data.time).t)[:, 1:] ** 2).groupby("time.month").mean() ** 0.5
    for forecast in found.rmse.transpose("forecast", ...):  # an anomaly of 0 is the climatology
        np.testing.assert_allclose(forecast, monthly, rtol=1e-5)


def test_areas_lie_where_their_coordinates_say() -> None:
    windows = make_windows("whole fields")
    predictions = [np.zeros((len(windows), 1, 5, 8), np.float32)]
    expected = GroupedErrors(windows, AREAS).add_all(predictions).dataset()
    turned = AREAS.roll(lon=3, roll_coords=True).isel(lat=slice(None, None, -1))
    turned = turned.assign_coords(lon=(turned.lon + 180) % 360 - 180)
    for areas in (turned, AREAS.reindex(lat=[*AREAS.lat.values, -90])):
        xr.testing.assert_identical(GroupedErrors(windows, areas).add_all(predictions).dataset(), expected)


FAULTS: list[tuple[dict[str, Any], str]] = [
    ({"by": "seson"}, "by takes no 'seson'; did you mean 'season'"),
    ({"by": ("lat", "lat")}, "by names 'lat' twice; give it once"),
    ({"by": {"north": {"latitude": (0, 90)}}}, "names 'latitude', which is no coordinate of numbers of the data"),
    ({"by": {"north": {"lat": (70, 90)}}}, "no point of the data is in the region 'north'"),
    ({"by": {"north": {"lat": 70}}}, "the region 'north' takes the first and last 'lat', not 70"),
    ({"by": AREAS.isel(lon=slice(4))}, "has other points of 'lon' than the data of the windows"),
    ({"against": "persistense"}, "against takes 'persistence' and a climatology"),
    ({"against": ["persistence", "persistence"]}, "against has one baseline of a kind"),
    ({"against": 3}, "against takes 'persistence' and a climatology, .* not 3"),
    ({"against": field_climatology(DATA[["z"]])}, "variable 't'"),
    ({"against": field_climatology(DATA.isel(lat=slice(3)))}, "the climatology lacks points of 'lat'"),
]


@pytest.mark.parametrize(("arguments", "message"), FAULTS)
def test_groups_and_baselines_that_are_not_there_are_refused(arguments: dict[str, Any], message: str) -> None:
    refused(lambda: GroupedErrors(make_windows("whole fields"), **arguments), message)


def test_windows_and_predictions_that_cannot_be_compared_are_refused() -> None:
    settings: dict[str, Any] = {"inputs": "t", "input_dims": {"time": 1, "lat": -1, "lon": -1}}
    refused(lambda: GroupedErrors(dsinga.windows(DATA, **settings)), "the windows have no targets")
    same = dsinga.windows(DATA, **settings, targets="t")
    refused(lambda: GroupedErrors(same, against="persistence"), "persistence is a forecast of targets that lie ahead")
    refused(lambda: GroupedErrors(same).add_all([np.zeros((2, 3, 5, 8))]), "has 3 x 5 x 8", "1 x 5 x 8")
    with pytest.raises(UserError, match="needs dates, which the coordinate 'time' does not have"):
        GroupedErrors(dsinga.windows(DATA.assign_coords(time=np.arange(26)), **settings, targets="t"), "season")
    series = dsinga.windows(DATA.t.to_dataset(), inputs="t", targets="t", input_dims={"time": 4, "lat": 1}, channels=[])
    assert GroupedErrors(series, ("time", "lat")).add_all([series.read(np.arange(len(series)))[1]]).sums[0, 0].any()
    refused(lambda: GroupedErrors(series, "lead"), "by='lead' needs targets whose steps of 'time' are channels")


# Errors of fields and anomaly correlation, of all records however they were cut, against xarray and WeatherBench.
xarray = pytest.importorskip("xarray")
CTX = context(BACKENDS["numpy"]())
TIMES, LATITUDES = 12, np.linspace(80, -80, 5)
SHAPE = (TIMES, 2, 5, 4)
DIMS = ("time", "channel", "lat", "lon")


def figures_of(layer: Layer, sources: Sequence[np.ndarray], cuts: Sequence[int] = ()) -> dict[str, Any]:
    """Return the figures of all rows, of which each part was given to the layer by itself."""
    parts = zip(*(np.split(source, cuts) for source in sources), strict=True)
    return metric_values(add_metrics([dict(layer.compute_feature((), part, CTX).metrics) for part in parts]))


def fields(seed: int = 0) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return predictions, labels far from 0, and weights by latitude."""
    rng = np.random.default_rng(seed)
    labels = rng.normal(280, 5, SHAPE).astype(np.float32)
    weights = np.broadcast_to(np.cos(np.deg2rad(LATITUDES))[:, None], (TIMES, 1, 5, 4)).astype(np.float32)
    return (labels + rng.normal(0.5, 2, SHAPE)).astype(np.float32), labels, weights / weights.mean()


def weatherbench_acc(prediction: Any, label: Any, climatology: Any) -> float:
    """Return compute_weighted_acc of github.com/pangeo-data/WeatherBench, src/score.py."""
    weights = np.cos(np.deg2rad(prediction.lat))
    forecast, truth = prediction - climatology, label - climatology
    forecast, truth = forecast - forecast.mean(), truth - truth.mean()
    variances = (weights * forecast**2).sum() * (weights * truth**2).sum()
    return float((weights * forecast * truth).sum() / np.sqrt(variances))


def labelled(array: np.ndarray) -> Any:
    return xarray.DataArray(array.astype(np.float64), dims=DIMS, coords={"lat": LATITUDES})


@settings(max_examples=20)
@given(st.lists(st.integers(0, TIMES), max_size=3).map(sorted), st.integers(0, 99), st.integers(1, 40))
def test_weighted_errors_and_anomaly_correlation(cuts: list[int], seed: int, block: int) -> None:
    prediction, label, weights = fields(seed)
    climatology = label.mean(axis=0)
    conf = {"weighted": True, "climatology": climatology.ravel().tolist(), "channel": ["t", "z"]}
    both = np.concatenate([label, weights], axis=1)
    layer = layer_of("kFieldError", prediction.shape, both.shape, fielderror_conf=conf)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(layout, "BLOCK", block)
        found = figures_of(layer, (prediction, both), cuts)
    x, y = labelled(prediction), labelled(label)
    error, mean = (x - y).weighted(np.cos(np.deg2rad(x.lat))), xarray.DataArray(climatology, dims=DIMS[1:])
    squares = ((x - y) ** 2).weighted(np.cos(np.deg2rad(x.lat)))
    assert found["rmse"] == pytest.approx(float(squares.mean()) ** 0.5, rel=1e-6)
    assert found["bias"] == pytest.approx(float(error.mean()), rel=1e-6)
    for channel, name in enumerate(("t", "z")):
        rmse = squares.mean(["time", "lat", "lon"])[channel] ** 0.5
        assert found[f"rmse_{name}"] == pytest.approx(float(rmse), rel=1e-6)
        acc = weatherbench_acc(x[:, channel], y[:, channel], mean[channel])
        assert found[f"anomaly_correlation_{name}"] == pytest.approx(acc, rel=1e-5)
    of_channels = [found[f"anomaly_correlation_{name}"] for name in ("t", "z")]
    assert found["anomaly_correlation"] == pytest.approx(np.mean(of_channels))
    assert {*found} == {*layer.metric_names}


def test_masked_points_are_in_no_sum() -> None:
    prediction, label, weights = fields()
    label[np.random.default_rng(1).uniform(size=label.shape) < 0.4] = np.nan
    label[:, 1, 2] = np.nan
    wild = np.where(np.isnan(label), np.inf, prediction)
    conf = {"masked": True, "weighted": True}
    both = np.concatenate([label, weights], axis=1)
    layer = layer_of("kFieldError", prediction.shape, both.shape, prediction.shape, fielderror_conf=conf)
    climatology = np.full_like(prediction, 280)
    found = figures_of(layer, (wild, both, climatology), [5])
    error, weights = prediction - label, np.broadcast_to(weights, label.shape)
    valid = ~np.isnan(label)
    assert found["mae"] == pytest.approx(np.average(np.abs(error[valid]), weights=weights[valid]), rel=1e-6)
    squares = [np.average(error[:, c][valid[:, c]] ** 2, weights=weights[:, c][valid[:, c]]) for c in range(2)]
    assert found["rmse_by_channel"] == pytest.approx(np.sqrt(squares), rel=1e-6)
    both = labelled(np.where(valid, prediction, np.nan)), labelled(label)
    acc = weatherbench_acc(both[0][:, 1], both[1][:, 1], 280)
    assert found["anomaly_correlation_by_channel"][1] == pytest.approx(acc, rel=1e-5)


def test_a_field_without_valid_points_has_no_figures() -> None:
    nothing = np.full((3, 1, 2, 2), np.nan, np.float32)
    layer = layer_of("kFieldError", nothing.shape, nothing.shape, fielderror_conf={"masked": True})
    assert figures_of(layer, (np.zeros_like(nothing), nothing)) == {}


@pytest.mark.parametrize(
    ("conf", "message"),
    [
        ({"channel": ["t"]}, "channel has 1 names, but the labels have 2 channels"),
        ({"climatology": [1.0, 2.0, 3.0]}, "climatology has 3 numbers; give one for each of 2 channels, or 40"),
        ({"weighted": True}, "of which the last has weights; give both as many"),
    ],
)
def test_settings_that_do_not_fit_are_refused(conf: dict[str, Any], message: str) -> None:
    refused(lambda: layer_of("kFieldError", SHAPE, SHAPE, fielderror_conf=conf), message)


def test_labels_that_are_nan_are_refused() -> None:
    prediction, label, _ = fields()
    label[2, 1, 4, 0] = np.nan
    layer = layer_of("kFieldError", SHAPE, SHAPE)
    refused(lambda: layer.compute_feature((), (prediction, label), CTX), "NaN in row 2", "masked")

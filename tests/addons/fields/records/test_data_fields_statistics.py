"""Statistics of fields beside xarray's in float64; their bits for any chunks; those of the channels of windows."""

import logging
from typing import Any

import numpy as np
import pytest

import dsinga
from dsinga.addons.fields.records import statistics
from dsinga.addons.fields.records.climatology import climatology_of, climatology_text
from dsinga.base.errors import ClusterNotReady, UserError
from dsinga.data import FieldClimatology, field_climatology, field_statistics
from tests.support.refusals import refused

xr = pytest.importorskip("xarray")
pytest.importorskip("cftime")


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(statistics, "BLOCK_NUMBERS", 100)
    monkeypatch.setattr(statistics, "PIECE_NUMBERS", 30)


def fields(offset: float = 0.0, scale: float = 1.0) -> Any:
    rng = np.random.default_rng(5)
    values = offset + scale * rng.normal(size=(11, 3, 6, 7))
    values[rng.random(values.shape) < 0.2] = np.nan
    dims = ("time", "level", "lat", "lon")
    coordinates = {"level": [500, 700, 850], "lat": np.arange(6.0), "lon": np.arange(7.0)}
    return xr.Dataset({"z": (dims, values), "t": (dims[:1] + dims[2:], values[:, 0].astype(np.float32))}, coordinates)


@pytest.mark.parametrize("dim", [None, "time", ["time", "lat", "lon"], ["lat", "lon"], []])
def test_they_are_those_of_xarray(dim: Any) -> None:
    data = fields(3, 2)
    found = field_statistics(data, dim)
    for name in data:
        over = [one for one in data[name].dims if dim is None or one in ([dim] if isinstance(dim, str) else dim)]
        array = data[name].astype(np.float64)
        for moment in ("count", "mean", "std", "min", "max"):
            expected = getattr(array, moment)(over)
            xr.testing.assert_allclose(getattr(found, moment)[name], expected, rtol=1e-13)


def test_a_large_mean_does_not_spoil_a_small_deviation() -> None:
    data = fields(1e6, 1e-2)
    exact = (data["z"] - 1e6).std()  # of numbers that have lost nothing but their own rounding
    np.testing.assert_allclose(field_statistics(data).std["z"], exact, rtol=1e-9)


@pytest.mark.parametrize("chunks", [{}, {"time": 1}, {"lat": 2, "lon": 3}, {"time": 4, "level": 1}, {"time": -1}])
def test_chunks_change_no_bit(tmp_path: Any, chunks: dict[str, int]) -> None:
    data = fields(280, 9)
    data.chunk(chunks).to_zarr(tmp_path / "fields.zarr", consolidated=False)
    for stored in (xr.open_zarr(tmp_path / "fields.zarr", consolidated=False), tmp_path / "fields.zarr"):
        for dim in (None, "time"):
            found, expected = field_statistics(stored, dim), field_statistics(data, dim)
            for moment in statistics.MOMENTS:
                xr.testing.assert_identical(getattr(found, moment), getattr(expected, moment))


def test_a_constant_has_no_deviation_at_all() -> None:
    data = xr.Dataset({"t": ("time", np.full(1000, 0.1))})
    found = field_statistics(data)
    assert float(found.std["t"]) == 0
    assert float(found.mean["t"]) == 0.1


def test_infinity_and_no_points_at_all() -> None:
    found = field_statistics(xr.Dataset({"t": ("time", [1.0, np.inf]), "z": ("level", np.zeros(0))}))
    assert not np.isfinite(found.mean["t"])
    assert float(found.max["t"]) == np.inf
    assert int(found.count["z"]) == 0
    assert np.isnan(found.mean["z"])


@pytest.mark.ci
@pytest.mark.process
def test_workers_of_a_cluster_compute_them(tmp_path: Any, processes: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(statistics, "PIECE_NUMBERS", 1 << 16)  # as on the workers
    data = fields(280, 9)
    data.chunk({"time": 3}).to_zarr(tmp_path / "fields.zarr", consolidated=False)
    for dim in (None, "time"):
        found, expected = field_statistics(tmp_path / "fields.zarr", dim, client=processes), field_statistics(data, dim)
        for moment in statistics.MOMENTS:
            xr.testing.assert_identical(getattr(found, moment), getattr(expected, moment))
    ran = processes.run_on_scheduler(lambda dask_scheduler: [str(name) for name in dask_scheduler.task_prefixes])
    assert any(name.startswith("moments_of") for name in ran), ran


def windows(data: Any, **more: Any) -> Any:
    sizes = {"time": 1, "lat": -1, "lon": -1}
    return dsinga.windows(
        data, inputs=["z", "t"], targets="t", input_dims=sizes, lead={"time": 1}, context={"time": (1, 0)},
        coordinates="cos(lat)", mask=True, **more,
    )  # fmt: skip


def test_channels_of_windows_have_those_of_their_variables() -> None:
    data = fields(3, 2)
    found = field_statistics(data, ["time", "lat", "lon"])
    source = windows(data)
    channels = found.of_inputs(source)
    z, t = found.mean["z"].values, float(found.mean["t"])
    names = source.layout.channel_names()
    expected = [
        0.0 if name.startswith(("mask", "cos")) else t if name.startswith("t") else z[[500, 700, 850].index(level)]
        for name in names
        for level in [int(name.split("level=")[1].split()[0]) if "level=" in name else 0]
    ]
    np.testing.assert_array_equal(channels["mean"], expected)
    assert channels["std"].shape == (source.shape[0],)
    np.testing.assert_array_equal(found.of_targets(source)["mean"], [t])


def test_statistics_at_each_point_are_fields() -> None:
    data = fields(3, 2)
    found = field_statistics(data, "time")
    channels = found.of_inputs(windows(data))
    assert channels["mean"].shape == windows(data).shape
    np.testing.assert_array_equal(found.of_targets(windows(data))["mean"][0], found.mean["t"])
    part = windows(data.isel(lat=slice(0, 4)))
    refused(lambda: found.of_inputs(part), "statistics of 'z' have 6 points along 'lat', but the windows' data 4")
    refused(lambda: found.of_inputs(windows(data.isel(lat=slice(None, None, -1)))), "'lat'", "the windows' data")


def test_mistakes_are_named_with_their_remedies() -> None:
    data = fields()
    data["t"][:, 2, 3] = 4.0
    found = field_statistics(data, "time")
    refused(lambda: found.of_inputs(windows(data)), "'t' is constant", "by its std")
    refused(lambda: field_statistics(fields(), "times"), "no dimension 'times'.*time")
    refused(lambda: field_statistics(xr.Dataset({"name": ("x", ["a", "b"])})), "'name' is of <U1, not of numbers")


def test_the_first_worker_of_a_client_is_awaited(monkeypatch: pytest.MonkeyPatch) -> None:
    from distributed import Client, LocalCluster

    options: Any = {"n_workers": 0, "threads_per_worker": 1, "processes": False, "dashboard_address": None}
    with LocalCluster(**options) as cluster, Client(cluster) as client:
        with monkeypatch.context() as patch:
            patch.setattr(statistics, "PATIENCE", 0.1)
            refused(lambda: field_statistics(fields(), client=client), "has come .* start", error=ClusterNotReady)
        said, handler = [], logging.Handler()
        handler.emit = lambda record: (said.append(record.getMessage()), cluster.scale(1))
        monkeypatch.setattr(statistics._log, "handlers", [handler])
        found = field_statistics(fields(), client=client)
    assert said[-1].endswith("has no worker; waiting for one, 0:10:00 at most")
    xr.testing.assert_identical(found.mean, field_statistics(fields()).mean)


# Climatologies against xarray's means of months and numpy's least squares, in each calendar, chunks and gaps.
CALENDARS = ["standard", "noleap", "360_day", "proleptic_gregorian"]


def dataset(calendar: str, days: int = 1100) -> Any:
    time = xr.date_range("2001-02-01", periods=days, freq="D", calendar=calendar, use_cftime=calendar != "standard")
    values = np.random.default_rng(1).normal(280, 5, (days, 2, 3)).astype(np.float32)
    values[:, 0, 1] = np.nan  # land
    values[100:250, 1, 2] = np.nan  # ice
    return xr.Dataset(
        {"t": (("time", "lat", "lon"), values), "h": (("lat", "lon"), values[0])}, {"time": time, "lat": [1.0, 2.0]}
    )


@pytest.mark.parametrize("calendar", CALENDARS)
def test_months_are_xarrays_means(calendar: str) -> None:
    data = dataset(calendar)
    climatology = field_climatology(data)
    assert list(climatology.means.data_vars) == ["t"]
    expected = data.t.astype(float).groupby("time.month").mean("time")
    np.testing.assert_allclose(climatology.means.t, expected, rtol=1e-12)
    xr.testing.assert_allclose(
        climatology.at(data.time).t.drop_vars("lat"), expected.sel(month=data.time.dt.month).drop_vars(["month", "lat"])
    )


@pytest.mark.parametrize("calendar", CALENDARS)
def test_days_are_the_waves_that_fit_best(calendar: str) -> None:
    data = dataset(calendar)
    found = field_climatology(data, "day").at(data.time).t.values
    year = {"noleap": 365, "360_day": 360}.get(calendar)
    days = np.asarray(data.time.dt.dayofyear.values) - 1
    length = year or np.where(np.asarray(data.time.dt.year.values) % 4, 365, 366)
    angles = 2 * np.pi * days / length
    waves = np.stack([np.ones_like(angles)] + [f(k * angles) for k in (1, 2, 3) for f in (np.cos, np.sin)], axis=1)
    for point in np.ndindex(2, 3):
        numbers = data.t.values[(slice(None), *point)].astype(float)
        known = ~np.isnan(numbers)
        if not known.any():
            assert np.isnan(found[(slice(None), *point)]).all()
            continue
        fit, *_ = np.linalg.lstsq(waves[known], numbers[known], rcond=None)
        np.testing.assert_allclose(found[(slice(None), *point)], waves @ fit, rtol=1e-9)


@pytest.mark.parametrize("by", ["month", pytest.param("day", marks=pytest.mark.ci)])
def test_chunks_change_no_bit_and_calendars_can_be_exchanged(by: str, tmp_path: Any, monkeypatch: Any) -> None:
    monkeypatch.setattr("dsinga.addons.fields.records.climatology_of_data.BLOCK_NUMBERS", 700)
    data = dataset("360_day")
    means = field_climatology(data, by).means
    data.chunk(time=7, lon=1).to_zarr(tmp_path / "t.zarr", zarr_format=2, consolidated=False)
    xr.testing.assert_identical(field_climatology(data.chunk(time=333), by).means, means)
    xr.testing.assert_identical(field_climatology(tmp_path / "t.zarr", by).means, means)
    june = xr.DataArray(xr.date_range("2030-06-01", periods=3, freq="D"), dims="time", name="time")
    here = field_climatology(data, by).at(june)
    assert np.isfinite(here.t.isel(lat=1)).all()
    assert (here.time == june).all()


def test_data_without_dates_or_months_are_refused() -> None:
    data = dataset("standard")
    for wrong, message in (
        (data[["h"]], "none lies along 'time'"),
        (data.assign_coords(time=np.arange(1100)), "function of dates, which the coordinate 'time' does not have"),
        (data.isel(time=slice(0, 200)), "'time' has none in month 1"),
        (data.rename(lat="month"), "the data have a dimension 'month', which the climatology needs for itself"),
    ):
        with pytest.raises(UserError, match=message):
            field_climatology(wrong)
    refused(lambda: field_climatology(data).at(data.time.values), "of dates, such as dataset.time, not a ndarray")
    refused(lambda: field_climatology(data, "daily"), "by is 'month' or 'day', not 'daily'")
    refused(lambda: FieldClimatology(data[["t"]]), "'t' has the dimensions time, lat, lon; the first one is")


def test_longitudes_are_known_by_their_units_once_a_net_keeps_the_climatology() -> None:
    data = (
        dataset("standard").assign_coords(lon=("lon", [0.0, 120.0, 240.0], {"units": "degrees_east"})).rename(lon="x")
    )
    west = data.isel(x=[2, 0, 1]).assign_coords(x=("x", [-120.0, 0.0, 120.0], {"units": "degrees_east"}))
    kept = climatology_of(climatology_text(field_climatology(data)))
    found = kept.at_points_of(west[["t"]], "time").means
    np.testing.assert_array_equal(found.t, kept.means.t[..., [2, 0, 1]])

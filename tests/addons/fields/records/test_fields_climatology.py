"""Climatologies against xarray's means of months and numpy's least squares, in each calendar, chunks and gaps."""

from typing import Any

import numpy as np
import pytest

from dsinga.addons.fields.records.climatology import climatology_of, climatology_text
from dsinga.base.errors import UserError
from dsinga.data import FieldClimatology, field_climatology
from tests.support.refusals import refused

xr = pytest.importorskip("xarray")
pytest.importorskip("cftime")
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

"""Two published climate files: longitudes rolled, a climatology by month, errors by region; see the marker ``data``."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import dsinga
from dsinga import nn
from dsinga.data import field_climatology

xr = pytest.importorskip("xarray")
pytestmark = pytest.mark.data


def test_anomalies_of_the_sea_are_better_than_baselines_and_the_same_from_the_west(real_data: Path) -> None:
    path = str(real_data / "climate" / "ersst-v5-mnmean.nc")
    sea = xr.open_dataset(path)[["sst"]]
    months, cut = sea.sst.isel(time=slice(100)), str(sea.time.values[100])
    climatology = field_climatology(months)
    expected = months.astype(float).groupby("time.month").mean("time")
    np.testing.assert_allclose(climatology.means.sst, expected, rtol=1e-12)
    windows = dsinga.windows(
        path, inputs="sst", targets="sst", input_dims={"time": 1, "lat": -1, "lon": -1}, lead={"time": 1}, mask=True,
        weights="cos(lat)", climatology=climatology,
    )  # fmt: skip
    train, test = windows.split(time=cut)
    model = nn.Sequential([nn.Input(windows.shape), nn.Padding2D(1, ("edge", "periodic")), nn.Conv2D(1, 3)])
    model.compile(nn.Adam(0.01), nn.MeanSquaredError(masked=True, weighted=True))
    model.fit(train, epochs=4, batch_size=8, progress=False)
    settings: dict[str, Any] = {"by": {"all": {"lat": (-90, 90)}}, "against": ["persistence", climatology]}
    model_error, persistence, climate = model.evaluate(test, **settings).rmse.values.ravel()
    assert model_error < 1.1 * persistence < climate
    anomalies = sea.sst - expected.sel(month=sea.time.dt.month)
    square = (anomalies.isel(time=slice(101, None)) ** 2).weighted(np.cos(np.deg2rad(sea.lat)))
    np.testing.assert_allclose(climate, float(square.mean()) ** 0.5, rtol=1e-4)
    west = sea.roll(lon=90, roll_coords=True)
    west = west.assign_coords(lon=(west.lon + 180) % 360 - 180)
    there, here = model.predict(west), model.predict(sea)
    np.testing.assert_array_equal(there.sst.roll(lon=-90), here.sst)
    np.testing.assert_array_equal(there.lon, west.lon)


def test_hours_of_era5_by_time_and_place(real_data: Path) -> None:
    path = str(real_data / "climate" / "era5-2mt-2019-03-uk.nc")
    data = xr.open_dataset(path)
    name = str(next(iter(data.data_vars)))
    dims = [str(dim) for dim in data[name].dims]
    windows = dsinga.windows(
        path, inputs=name, targets=name, input_dims={dims[0]: 1, dims[1]: -1, dims[2]: -1}, lead={dims[0]: 6}
    )
    model = nn.Sequential([nn.Input(windows.shape), nn.Conv2D(1, 1)])
    model.compile("sgd", "mse")
    model.params = {key: np.ones_like(each) * (each.ndim > 1) for key, each in model.params.items()}
    maps = model.evaluate(windows, by=("hour", *dims[1:]), against="persistence")
    np.testing.assert_array_equal(maps.rmse[0], maps.rmse[1])  # a net that gives its input is persistence
    error = data[name].shift({dims[0]: 6}) - data[name]
    expected = np.sqrt((error.astype(float) ** 2).groupby(f"{dims[0]}.hour").mean())
    np.testing.assert_allclose(maps.rmse[1], expected, rtol=1e-5)

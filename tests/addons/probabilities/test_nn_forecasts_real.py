"""Intervals of ERA5's hourly temperature over the United Kingdom in March 2019, on days that training has not seen."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import dsinga
from dsinga import nn

xr = pytest.importorskip("xarray")
pytestmark = pytest.mark.data


@pytest.mark.parametrize(
    ("outputs", "make_loss", "last", "promised"),
    [
        (3, lambda: nn.QuantileLoss([0.05, 0.5, 0.95], weighted=True), [], 0.9),
        (2, lambda: nn.DistributionLoss("normal", weighted=True), [nn.DistributionParams("normal")], 0.8),
    ],
    ids=["quantiles", "normal"],
)
def test_intervals_hold_on_days_that_were_left_out(
    real_data: Path, outputs: int, make_loss: Any, last: list[Any], promised: float
):
    """Six hours ahead, after 496 hours of training: the share of the last ten days' points inside is near that said."""
    with xr.open_dataset(real_data / "climate" / "era5-2mt-2019-03-uk.nc") as opened:
        t2m = opened.t2m.load()
    early = t2m.sel(time=slice(None, "2019-03-21"))
    anomaly = (t2m.groupby("time.hour") - early.groupby("time.hour").mean("time")).drop_vars("hour")
    dataset = xr.Dataset({"t": anomaly / float(anomaly.sel(time=early.time).std())})
    windows = dsinga.windows(
        dataset, inputs="t", targets="t", lead={"time": 6}, context={"time": (2, 0)}, weights="cos(latitude)",
        input_dims={"time": 1, "latitude": -1, "longitude": -1},
    )  # fmt: skip
    train, test = windows.split(time="2019-03-22")
    hidden = [nn.Conv2D(16, 3, activation="relu") for _ in range(2)]
    model = nn.Sequential([nn.Input(windows.shape), nn.Padding2D(2, "edge"), *hidden, nn.Conv2D(outputs, 1), *last])
    model.compile(nn.Adam(0.003), make_loss(), metrics=["crps", "coverage"])
    model.fit(train, epochs=10, batch_size=16, seed=0, progress=False)
    found = model.evaluate(test)
    assert found["coverage"] == pytest.approx(promised, abs=0.08)
    late = dataset.t.sel(time=slice("2019-03-22", None))
    persistence = np.abs(late.values[6:] - late.values[:-6])
    weights = np.broadcast_to(np.cos(np.deg2rad(late.latitude.values))[:, None], persistence.shape)
    assert found["crps"] < 0.8 * np.average(persistence, weights=weights)

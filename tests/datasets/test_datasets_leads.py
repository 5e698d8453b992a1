"""Temperatures of ERA5: a net trained on four leads forecasts two days ahead better than one trained on one."""

from pathlib import Path

import numpy as np
import pytest
import xarray as xr

import dsinga
from dsinga import models, nn

pytestmark = pytest.mark.data

LEADS, STEPS, HELD_OUT = 8, 200, "2019-03-25"


def train(fields: xr.Dataset, leads: int) -> nn.Model:
    """Return a net trained on so many leads: the field itself and its change by a residual net."""
    several = {"leads": leads, "lead_start": [0, STEPS // 2, STEPS * 3 // 4, STEPS * 3 // 4][:leads]}
    windows, _ = dsinga.windows(
        fields,
        inputs="t2m",
        targets="t2m",
        input_dims={"time": 1, "latitude": -1, "longitude": -1},
        lead={"time": 6},
        coordinates=["sin(hour of day)", "cos(hour of day)"],
        **(several if leads > 1 else {}),
    ).split(time=HELD_OUT)
    x = nn.Input(windows.shape)
    change = models.field_resnet(windows.shape, 1, width=16, blocks=2, padding=("edge", "edge"), normalisation="none")
    model = nn.Model(x, nn.Add()([x[:, :1], change(x)]))
    model.compile(nn.Adam(1e-3), nn.MeanSquaredError())
    model.fit(windows, train_steps=STEPS, batch_size=16, seed=1, progress=False)
    return model


def errors(fields: xr.Dataset, model: nn.Model) -> list[tuple[float, float]]:
    """Return the root mean squared error at each lead, and that of persistence, weighted by the cosine of latitude."""
    held_out = fields.sel(time=slice(HELD_OUT, None)).t2m
    forecasts = model.predict(held_out.to_dataset(), leads=LEADS).t2m.compute()
    forecasts = forecasts.isel(time=np.flatnonzero(forecasts.valid_time[:, -1] <= held_out.time[-1]))
    weights = np.broadcast_to(np.cos(np.deg2rad(held_out.latitude.values))[:, None], held_out.shape[1:])
    now = held_out.sel(time=forecasts.time).values

    def error(fields: np.ndarray, truth: np.ndarray) -> float:
        squares = np.square(np.subtract(fields, truth, dtype=np.float64))
        return float(np.sqrt(np.average(squares.mean(axis=0), weights=weights)))

    found = []
    for lead in range(LEADS):
        truth = held_out.sel(time=forecasts.valid_time[:, lead].values).values
        found.append((error(forecasts.isel(lead=lead).values, truth), error(now, truth)))
    return found


def test_four_leads_in_training_keep_forecasts_of_eight_stable(real_data: Path) -> None:
    with xr.open_dataset(real_data / "climate" / "era5-2mt-2019-03-uk.nc", engine="h5netcdf") as dataset:
        fields = (dataset[["t2m"]].load() - 280) / 4
    first, several = (errors(fields, train(fields, leads)) for leads in (1, 4))
    assert all(of_several < of_one for (of_several, _), (of_one, _) in zip(several[3:], first[3:], strict=True))
    assert 2 * several[7][0] < first[7][0]
    assert several[0][0] < 1.1 * first[0][0] < several[0][1]  # the next step is forecast as well, persistence is worse

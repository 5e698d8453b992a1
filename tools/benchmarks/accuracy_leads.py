"""Forecasts of several leads by nets that were trained on one lead, and on several by feeding predictions back.

    python -m tools.benchmarks.accuracy_leads [era5] [ersst]

Prints, for each lead, the error of forecasts from the times held out, weighted by the cosine of latitude, of a net
trained on one lead, of the same net trained on as many steps on four leads (half of them on one, a quarter on two), and
of persistence. All begin at the same times.

era5: the temperature over the United Kingdom, in steps of six hours; the last week is held out. ersst: departures of
the sea-surface temperature from the climatology, in months; the last two years are held out, land is masked. The data
are those of :mod:`tools.benchmarks.accuracy_fields`.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import click
import numpy as np
import xarray as xr

import dsinga
from dsinga import models, nn
from tools.benchmarks.accuracy_fields import RAW, weighted_rmse

LEADS, TRAINED = 8, 4


class Case(NamedTuple):
    """A Dataset with one variable, how windows are cut out of it, when the times held out begin, and the unit."""

    dataset: xr.Dataset
    settings: dict[str, Any]
    cut: str
    unit: float
    padding: tuple[str, str]
    steps: int
    batchsize: int

    @property
    def name(self) -> str:
        """The name of the variable."""
        return str(self.settings["targets"])

    @property
    def masked(self) -> bool:
        """Whether points are masked."""
        return bool(self.settings.get("mask"))


def era5() -> Case:
    """Return the forecast of the temperature from one field, in steps of six hours."""
    with xr.open_dataset(RAW / "era5-2mt-2019-03-uk.nc", engine="h5netcdf") as dataset:
        fields = (dataset[["t2m"]].load() - 280) / 4
    settings = {
        "inputs": "t2m",
        "targets": "t2m",
        "input_dims": {"time": 1, "latitude": -1, "longitude": -1},
        "lead": {"time": 6},
        "coordinates": ["sin(hour of day)", "cos(hour of day)"],
    }
    return Case(fields, settings, "2019-03-25", 4.0, ("edge", "edge"), 800, 16)


def ersst() -> Case:
    """Return the forecast of the departure of the sea-surface temperature, in months."""
    with xr.open_dataset(RAW / "ersst-v5-mnmean.nc", engine="h5netcdf") as dataset:
        fields = dataset[["sst"]].load()
    past = fields.sel(time=slice(None, "2018-06"))
    departure = fields.groupby("time.month") - past.groupby("time.month").mean()
    settings = {
        "inputs": "sst",
        "targets": "sst",
        "input_dims": {"time": 1, "lat": -1, "lon": -1},
        "lead": {"time": 1},
        "coordinates": ["sin(day of year)", "cos(day of year)", "cos(lat)"],
        "mask": True,
    }
    return Case(departure.drop_vars("month"), settings, "2018-07-01", 1.0, ("edge", "periodic"), 400, 4)


CASES = {"era5": era5, "ersst": ersst}


def train(case: Case, leads: int) -> nn.Model:
    """Return the net, trained on so many leads: the field itself and its change by a residual net."""
    starts = [0, case.steps // 2, case.steps * 3 // 4, case.steps * 3 // 4][:leads]
    several = {"leads": leads, "lead_start": starts} if leads > 1 else {}
    windows, _ = dsinga.windows(case.dataset, **case.settings, **several).split(time=case.cut)
    x = nn.Input(windows.shape)
    change = models.field_resnet(windows.shape, 1, width=16, blocks=2, padding=case.padding, normalisation="none")
    model = nn.Model(x, nn.Add()([x[:, :1], change(x)]))
    model.compile(nn.Adam(1e-3), nn.MeanSquaredError(masked=case.masked))
    model.fit(windows, train_steps=case.steps, batch_size=case.batchsize, seed=1, progress=False)
    return model


def errors(case: Case, model: nn.Model) -> list[tuple[float, float]]:
    """Return the error at each lead of the forecasts from the times held out, and that of persistence."""
    held_out = case.dataset.sel({"time": slice(case.cut, None)})
    forecasts = model.predict(held_out, leads=LEADS)[case.name].compute()
    forecasts = forecasts.isel(time=np.flatnonzero(forecasts.valid_time[:, -1] <= held_out.time[-1]))
    latitude = next(held_out[name] for name in ("latitude", "lat") if name in held_out)
    weights = np.cos(np.deg2rad(latitude.values))[:, None]
    truth, now = held_out[case.name], held_out[case.name].sel(time=forecasts.time).values
    found = []
    for lead in range(LEADS):
        later = truth.sel(time=forecasts.valid_time[:, lead].values).values
        found.append(
            tuple(
                case.unit * weighted_rmse(fields[:, None], later[:, None], weights)
                for fields in (forecasts.isel(lead=lead).values, now)
            )
        )
    return found


@click.command()
@click.argument("names", nargs=-1, type=click.Choice(list(CASES)))
def main(names: tuple[str, ...]) -> None:
    """Print a row for each case and way to train."""
    print("| case |", *(f"{lead} |" for lead in range(1, LEADS + 1)))
    print("|" + " --- |" * (LEADS + 1))
    for name in names or CASES:
        case = CASES[name]()
        found = {leads: errors(case, train(case, leads)) for leads in (1, TRAINED)}
        rows = {f"trained on {leads}": [error for error, _ in pairs] for leads, pairs in found.items()}
        rows["persistence"] = [error for _, error in found[1]]
        for what, numbers in rows.items():
            print(f"| {name}, {what} |", *(f"{number:.3f} |" for number in numbers), flush=True)


if __name__ == "__main__":
    main()

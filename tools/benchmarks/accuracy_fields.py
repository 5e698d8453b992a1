"""Forecasts of fields beside PyTorch's same net and simple forecasts: losses, errors and time.

    python -m tools.benchmarks.accuracy_fields [era5-1] [era5-4] [ersst]

dsinga and PyTorch train in turn, each in a process of its own on the same core with one thread: the same net, the same
initial params, the same windows in the same order, Adam with the same settings. Prints the error of forecasts of the
windows held out, weighted by the cosine of latitude, and the median milliseconds of an iteration.

A second table has the largest relative differences of the losses of the first 50 steps. Both frameworks also train in
float64, where the losses are the same. How far float32 is from float64 is rounding; float64 training whose params alone
are rounded to float32 after each step shows how much of it no float32 training can avoid. ``--curves`` leaves out the
first table and trains 50 steps only.

era5-1, era5-4: the temperature over the United Kingdom six hours ahead, from one field or from those of four hours; the
last week is held out. ersst: the departure of the sea-surface temperature of the next month from the climatology of the
months before the last two years, which are held out; land is masked, longitude periodic. The data are looked for in the
folder of real data: DSINGA_DATA, or ../shared/data beside the checkout.
"""

from __future__ import annotations

import json
import os
import statistics
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import click
import numpy as np
import xarray as xr

import dsinga
from dsinga import models, nn
from dsinga.addons.fields.records.field_windows import FieldWindows
from dsinga.job import Job, Phase
from dsinga.reading.checked_job import CheckedJob
from tests.support.float64_training import largest_difference, round_to_float32, train_in_float64
from tools.benchmarks.turns import take_turn

MODULE = "tools.benchmarks.accuracy_fields"
RAW = Path(os.environ.get("DSINGA_DATA", Path(__file__).resolve().parents[3] / "shared/data")) / "climate"
COMPARED, BLOCKS = 50, 2


class Case(NamedTuple):
    """Windows to train from, windows held out, how a net is trained, and errors of simple forecasts by name.

    ``unit`` is what errors are multiplied by to be in the units of the data.
    """

    train: FieldWindows
    test: FieldWindows
    padding: tuple[str, str]
    epochs: int
    batchsize: int
    simple: dict[str, float]
    unit: float
    masked: bool = False

    def model(self) -> nn.Model:
        """Return the net, compiled."""
        net = models.field_resnet(
            self.train.shape, 1, width=16, blocks=BLOCKS, padding=self.padding, normalisation="none"
        )
        net.compile(nn.Adam(1e-3), nn.MeanSquaredError(masked=True) if self.masked else "mse")
        return net

    def error(self, forecasts: np.ndarray) -> float:
        """Return the error of forecasts (n, 1, H, W) of the windows held out, in the units of the data."""
        latitude = next(self.test.dataset[name] for name in ("latitude", "lat") if name in self.test.dataset)
        return self.unit * weighted_rmse(forecasts, labels(self.test), np.cos(np.deg2rad(latitude.values))[:, None])


def weighted_rmse(forecasts: np.ndarray, targets: np.ndarray, weights: np.ndarray) -> float:
    """Return the root of the weighted mean squared difference over all points that are not NaN."""
    squares = np.square(np.subtract(forecasts, targets, dtype=np.float64))
    valid = np.isfinite(squares)
    return float(np.sqrt((np.where(valid, squares, 0) * weights).sum() / (valid * weights).sum()))


def labels(windows: FieldWindows) -> np.ndarray:
    """Return the targets of all windows."""
    targets = windows.read_labels(np.arange(len(windows)))
    assert targets is not None
    return targets


def era5(hours: int) -> Case:
    """Return the forecast of the change of temperature in six hours from the fields of so many hours."""
    mean, std = 280.0, 4.0
    with xr.open_dataset(RAW / "era5-2mt-2019-03-uk.nc", engine="h5netcdf") as dataset:
        fields = dataset.load()
    fields["t2m"] = (fields["t2m"] - mean) / std
    fields["change"] = fields["t2m"] - fields["t2m"].shift(time=6)
    windows = dsinga.windows(
        fields.isel(time=slice(6, None)),
        inputs="t2m",
        targets="change",
        input_dims={"time": 1, "latitude": -1, "longitude": -1},
        context={"time": (hours - 1, 0)},
        lead={"time": 6},
        coordinates=["sin(hour of day)", "cos(hour of day)"],
    )
    case = Case(*windows.split(time="2019-03-25"), ("edge", "edge"), 20, 16, {}, std)
    (x, y), records = case.train.read(np.arange(len(case.train))), case.test.read(np.arange(len(case.test)))[0]
    assert y is not None
    fits = regression(x[:, :hours], y[:, 0], records[:, :hours])[:, None]
    simple = {"persistence": case.error(np.zeros_like(fits)), "regression at each point": case.error(fits)}
    return case._replace(simple=simple)


def regression(x: np.ndarray, y: np.ndarray, records: np.ndarray) -> np.ndarray:
    """Return the least-squares forecast (m, H, W) of ``records`` (m, C, H, W) at each point, fitted to x and y."""
    forecasts = np.empty((len(records), *y.shape[1:]))
    for point in np.ndindex(y.shape[1:]):
        with_one = [np.insert(fields[(..., *point)], 0, 1, axis=1) for fields in (x, records)]
        forecasts[:, *point] = with_one[1] @ np.linalg.lstsq(with_one[0], y[:, *point], rcond=None)[0]
    return forecasts


def ersst() -> Case:
    """Return the forecast of the sea-surface temperature of the next month, as a change of its departure."""
    with xr.open_dataset(RAW / "ersst-v5-mnmean.nc", engine="h5netcdf") as dataset:
        fields = dataset[["sst"]].load()
    past = fields["sst"].sel(time=slice(None, "2018-08"))
    departure = fields["sst"].groupby("time.month") - past.groupby("time.month").mean()
    fields = xr.Dataset({"departure": departure, "change": departure - departure.shift(time=1)})
    windows = dsinga.windows(
        fields.isel(time=slice(1, None)),
        inputs="departure",
        targets="change",
        input_dims={"time": 1, "lat": -1, "lon": -1},
        context={"time": (2, 0)},
        lead={"time": 1},
        coordinates=["sin(day of year)", "cos(day of year)", "cos(lat)"],
        mask=True,
    )
    train, test = windows.split(time="2018-06-01")  # the months from which the months held out are forecast
    case = Case(train, test, ("edge", "periodic"), 20, 4, {}, 1.0, masked=True)
    now = test.read(np.arange(len(test)))[0][:, 2:3]
    simple = {"persistence of the departure": case.error(np.zeros_like(now)), "climatology": case.error(-now)}
    return case._replace(simple=simple)


CASES: dict[str, Callable[[], Case]] = {"era5-1": lambda: era5(1), "era5-4": lambda: era5(4), "ersst": ersst}


def job_of(case: Case, steps: int = 0) -> Job:
    """Return the job of training for so many steps, by default for all epochs."""
    steps = steps or case.epochs * len(case.train) // case.batchsize
    return case.model().job(case.train, batch_size=case.batchsize, train_steps=steps)


def batches(case: Case, job: Job) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yield the batches of training, records and targets."""
    sampler = CheckedJob(job).reader(Phase.kTrain).sampler
    for step in range(job.train_steps):
        x, y = case.train.read(sampler.rows(step))
        assert y is not None
        yield x, y


def ours(case: Case, steps: int) -> dict[str, Any]:
    """Return the losses of all steps, the error, and the milliseconds of an iteration of dsinga."""
    model, steps = case.model(), job_of(case, steps).train_steps
    history = model.fit(
        case.train, batch_size=case.batchsize, train_steps=steps, disp_freq=1, cluster=None, progress=False
    )
    rows = [row for row in history if row["phase"] == "train"]
    first = min(COMPARED, steps // 2)
    seconds = (rows[-1]["time"] - rows[first]["time"]) / (len(rows) - 1 - first)
    error = case.error(np.asarray(model.predict(case.test)))
    return {"losses": [row["loss"] for row in rows], "error": error, "ms": 1e3 * seconds}


def theirs(case: Case, steps: int, precision: str = "float32") -> dict[str, Any]:
    """Return the same figures of PyTorch."""
    import torch

    from tests.support.torch_fields import Peer

    torch.set_num_threads(1)
    dtype = getattr(torch, precision)
    job = job_of(case, steps)
    params = nn.LocalNet(job).initial_params()
    tensors = {name: torch.tensor(value, dtype=dtype, requires_grad=True) for name, value in params.items()}
    peer = Peer(tensors, case.padding, "none")
    adam = torch.optim.Adam(tensors.values(), lr=1e-3, eps=job.updater.delta, fused=True)  # its own default is 1e-8
    losses, seconds = [], []
    began = time.perf_counter()
    for batch in batches(case, job):
        x, y = (torch.tensor(array, dtype=dtype) for array in batch)
        adam.zero_grad(set_to_none=True)
        loss = torch.where(torch.isfinite(y), peer.field_resnet(x, BLOCKS) - y, 0).square().mean()
        loss.backward()
        adam.step()
        losses.append(float(loss.detach()))
        seconds.append(time.perf_counter() - began)
        began = time.perf_counter()
    with torch.no_grad():
        records = torch.tensor(case.test.read(np.arange(len(case.test)))[0], dtype=dtype)
        error = case.error(peer.field_resnet(records, BLOCKS).numpy())
    return {"losses": losses, "error": error, "ms": 1e3 * statistics.median(seconds)}


def in_float64(case: Case, rounds_params: bool = False) -> dict[str, Any]:
    """Return the first losses of dsinga in float64; ``rounds_params`` to float32 after each step."""
    job = job_of(case, COMPARED)
    losses = []
    for loss, params in train_in_float64(job, nn.LocalNet(job).initial_params(), batches(case, job)):
        losses.append(loss)
        if rounds_params:
            round_to_float32(params)
    return {"losses": losses}


TURNS: dict[str, Callable[[Case, int], dict[str, Any]]] = {
    "dsinga": ours,
    "pytorch": theirs,
    "dsinga float64": lambda case, _: in_float64(case),
    "pytorch float64": lambda case, _: theirs(case, COMPARED, "float64"),
    "rounded params": lambda case, _: in_float64(case, rounds_params=True),
}


@click.command()
@click.argument("names", nargs=-1, type=click.Choice(list(CASES)))
@click.option("--curves", is_flag=True, help="Only the losses of the first steps.")
@click.option("--turn", type=click.Choice(list(TURNS)), hidden=True)
def main(names: tuple[str, ...], curves: bool, turn: str | None) -> None:
    """Print a row for each case in both tables."""
    if turn:
        print(json.dumps(TURNS[turn](CASES[names[0]](), COMPARED if curves else 0)))
        return
    errors, differences = [], []
    for name in names or CASES:
        arguments = [name, *(["--curves"] if curves else [])]
        runs = {what: take_turn(MODULE, "--turn", what, *arguments) for what in TURNS}
        first, second = runs["dsinga"], runs["pytorch"]
        simple = ", ".join(f"{what} {error:.3f}" for what, error in CASES[name]().simple.items())
        times = f"{first['ms']:.1f} | {second['ms']:.1f} | {first['ms'] / second['ms']:.2f}"
        errors.append(f"| {name} | {first['error']:.3f} | {second['error']:.3f} | {simple} | {times} |")
        differences.append(f"| {name} | {' | '.join(compared(runs))} |")
    if not curves:
        header = "| case | error: dsinga | PyTorch | simple forecasts | ms: dsinga | PyTorch | ratio |"
        print(header, "|" + " --- |" * 7, *errors, "", sep="\n")
    columns = "dsinga and PyTorch | both in float64 | dsinga and float64 | PyTorch and float64 | params rounded"
    print(f"| first {COMPARED} losses | {columns} |", "|" + " --- |" * 6, *differences, sep="\n")


def compared(runs: dict[str, dict[str, Any]]) -> list[str]:
    """Return the largest differences of the first losses, in the order of the columns."""
    first = {what: run["losses"][:COMPARED] for what, run in runs.items()}
    pairs = [("dsinga", "pytorch"), ("dsinga float64", "pytorch float64")]
    pairs += [(what, "pytorch float64") for what in ("dsinga", "pytorch", "rounded params")]
    return [f"{largest_difference(first[what], first[other]):.1e}" for what, other in pairs]


if __name__ == "__main__":
    main()

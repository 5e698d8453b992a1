"""Flows in two dimensions, forecast by a U-Net beside PyTorch's same net: relative L2 errors and time.

    python datasets/navier-stokes/make_navier_stokes.py flows.zarr --samples 120 --times 20 --variance 686
    python -m tools.benchmarks.accuracy_navier_stokes flows.zarr [--epochs 20] [--width 16] [--depth 3]

The net gives the vorticity of the next time from those of ten times; the last sixth of the flows is held out. dsinga
and PyTorch train in turn, each in a process of its own on the same core with one thread: the same net, the same initial
params, the same windows in the same order, Adam at a rate that falls along a cosine. The error of a forecast is the
norm of the difference divided by that of the flow, in the mean over flows: of the next time, and of all times after the
tenth, where forecasts are fed back, as in Li et al., Fourier Neural Operator (2021), table 1.
"""

from __future__ import annotations

import json
import math
import statistics
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import click
import numpy as np
import xarray as xr

import dsinga
from dsinga import models, nn
from dsinga.data import FieldWindows
from dsinga.job import Phase
from dsinga.reading.checked_job import CheckedJob
from tools.benchmarks.turns import take_turn

MODULE = "tools.benchmarks.accuracy_navier_stokes"
PAST, BATCH, RATE = 10, 20, 1e-3


class Budget(NamedTuple):
    """How large the net is, and how often it reads all windows."""

    epochs: int
    width: int
    depth: int


def open_flows(path: str) -> tuple[FieldWindows, np.ndarray]:
    """Return the windows to train from, and the flows that are held out, (n, times, y, x)."""
    flows = xr.open_zarr(path, consolidated=False, chunks=None)
    held_out = flows.sizes["sample"] // 6
    windows = dsinga.windows(
        flows.isel(sample=slice(None, -held_out)).load(),
        inputs="vorticity",
        targets="vorticity",
        input_dims={"sample": 1, "time": 1, "y": -1, "x": -1},
        context={"time": (PAST - 1, 0)},
        lead={"time": 1},
    )
    return windows, flows["vorticity"].isel(sample=slice(-held_out, None)).transpose("sample", "time", "y", "x").values


def make_model(windows: FieldWindows, budget: Budget) -> nn.Model:
    """Return the U-Net, compiled."""
    model = models.unet(
        windows.shape, 1, width=budget.width, depth=budget.depth, padding="periodic", normalisation="group"
    )
    model.compile(nn.Adam(nn.CosineDecay(RATE, decay_steps=steps_of(windows, budget))), "mse")
    return model


def steps_of(windows: FieldWindows, budget: Budget) -> int:
    """Return the number of steps of training."""
    return budget.epochs * len(windows) // BATCH


def errors(flows: np.ndarray, forecast: Callable[[np.ndarray], np.ndarray]) -> dict[str, float]:
    """Return the relative errors of the next time, and of all times after the first, forecasts being fed back."""
    fields, ahead = flows[:, :PAST], []
    for _ in range(PAST, flows.shape[1]):
        following = forecast(np.ascontiguousarray(fields))
        ahead.append(following)
        fields = np.concatenate([fields[:, 1:], following], axis=1)
    return {
        "next": relative_error(ahead[0], flows[:, PAST : PAST + 1]),
        "all": relative_error(np.concatenate(ahead, axis=1), flows[:, PAST:]),
    }


def relative_error(forecasts: np.ndarray, flows: np.ndarray) -> float:
    """Return the mean over flows of ‖forecast - flow‖ / ‖flow‖."""
    difference, size = (np.linalg.norm(x.reshape(len(x), -1), axis=1) for x in (forecasts - flows, flows))
    return float(np.mean(difference / size))


def ours(path: str, budget: Budget) -> dict[str, Any]:
    """Return the losses of all steps, the errors, and the milliseconds of an iteration of dsinga."""
    windows, flows = open_flows(path)
    model, steps = make_model(windows, budget), steps_of(windows, budget)
    history = model.fit(windows, batch_size=BATCH, train_steps=steps, disp_freq=1, progress=False)
    rows = [row for row in history if row["phase"] == "train"]
    first = min(20, steps // 2)
    seconds = (rows[-1]["time"] - rows[first]["time"]) / (len(rows) - 1 - first)
    found = errors(flows, lambda fields: np.asarray(model.predict(fields)))
    return {"losses": [row["loss"] for row in rows], "ms": 1e3 * seconds, **found}


def theirs(path: str, budget: Budget) -> dict[str, Any]:
    """Return the same figures of PyTorch."""
    import torch

    from tests.support.torch_fields import Peer

    torch.set_num_threads(1)
    windows, flows = open_flows(path)
    steps = steps_of(windows, budget)
    job = make_model(windows, budget).job(windows, batch_size=BATCH, train_steps=steps)
    params = nn.LocalNet(job).initial_params()
    tensors = {name: torch.tensor(value, requires_grad=True) for name, value in params.items()}
    peer = Peer(tensors, ("periodic", "periodic"), "group")
    adam = torch.optim.Adam(tensors.values(), lr=RATE, eps=job.updater.delta, fused=True)
    sampler = CheckedJob(job).reader(Phase.kTrain).sampler
    losses, seconds = [], []
    for step in range(steps):
        began = time.perf_counter()
        x, y = (torch.tensor(array) for array in windows.read(sampler.rows(step)))
        for group in adam.param_groups:
            group["lr"] = RATE * (1 + math.cos(math.pi * step / steps)) / 2
        adam.zero_grad(set_to_none=True)
        loss = (peer.unet(x, budget.depth) - y).square().mean()
        loss.backward()
        adam.step()
        losses.append(float(loss.detach()))
        seconds.append(time.perf_counter() - began)

    def forecast(fields: np.ndarray) -> np.ndarray:
        with torch.no_grad():
            return peer.unet(torch.tensor(fields), budget.depth).numpy()

    return {"losses": losses, "ms": 1e3 * statistics.median(seconds), **errors(flows, forecast)}


@click.command()
@click.argument("path", type=click.Path(exists=True))
@click.option("--epochs", default=20, show_default=True)
@click.option("--width", default=16, show_default=True)
@click.option("--depth", default=3, show_default=True)
@click.option("--turn", hidden=True)
def main(path: str, epochs: int, width: int, depth: int, turn: str | None) -> None:
    """Print the table of the flows in the store PATH."""
    if turn:
        framework, *budget = json.loads(turn)
        print(json.dumps((ours if framework == "dsinga" else theirs)(path, Budget(*budget))))
        return
    windows, flows = open_flows(path)
    persistence = errors(flows, lambda fields: fields[:, -1:])
    print(
        f"{len(windows)} windows, {len(flows)} flows held out, {steps_of(windows, Budget(epochs, width, depth))} steps"
    )
    print("| | error of the next time | of all times | last loss | ms |\n|" + " --- |" * 5)
    print(f"| persistence | {persistence['next']:.4f} | {persistence['all']:.4f} | | |")
    for framework in ("dsinga", "pytorch"):
        row = take_turn(MODULE, path, "--turn", json.dumps([framework, epochs, width, depth]))
        print(
            f"| {framework} | {row['next']:.4f} | {row['all']:.4f} | {row['losses'][-1]:.3g} | {row['ms']:.0f} |",
            flush=True,
        )


if __name__ == "__main__":
    main()

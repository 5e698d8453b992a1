"""The small GPT in micro-batches: how far params are from those of whole batches, and both from float64.

    python -m tools.benchmarks.accuracy_micro_batches [--steps 10] [--width 128] ... [UPDATER ...]

The net of accuracy_gpt.py trains on tinyshakespeare from the same params on the same batches: whole, in 2, 4 and 8
micro-batches, in float64, and in float64 with params rounded to float32 after each step. PyTorch's same net trains
whole and in as many micro-batches under SGD and AdamW. Prints the largest differences of a param's numbers, each as a
share of the largest number in the param. The text is looked for as by accuracy_gpt.py.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import click
import numpy as np

from dsinga import models, nn
from dsinga.data import TextWindows, import_records, open_text
from dsinga.job import Job, UpdaterConf
from tests.support.float64_training import round_to_float32, train_in_float64
from tools.benchmarks.accuracy_gpt import RAW, with_sizes

COUNTS = (2, 4, 8)
UPDATERS: dict[str, UpdaterConf] = {
    "SGD": nn.SGD(5e-4),
    "Lamb": nn.Lamb(1e-3),
    "Muon": nn.Muon(1e-3),
    "Muon, AdamW for the embedding": nn.Muon(1e-3, adamw_match=["embedding*"]),
    "AdamW": nn.AdamW(1e-3, epsilon=1e-8),
}
Batches = list[tuple[np.ndarray, np.ndarray]]
Values = Mapping[str, np.ndarray]


def ours(job: Job, batches: Batches) -> Values:
    """Return the params after training in float32."""
    local = nn.LocalNet(job)
    params, updater = local.initial_params(), local.updater()
    for step, (x, y) in enumerate(batches):
        updater.step(params, local.backward(params, x, y, step=step).gradients)
    return params


def exact(job: Job, batches: Batches, rounds_params: bool = False) -> Values:
    """Return the params after training in float64."""
    params: Any = {}
    for _, params in train_in_float64(job, nn.LocalNet(job).initial_params(), batches):
        if rounds_params:
            round_to_float32(params)
    return params


def theirs(job: Job, batches: Batches, sizes: dict[str, int], count: int) -> Values:
    """Return the params after training by PyTorch in ``count`` micro-batches."""
    import torch

    from tools.benchmarks.torch_gpt import GPT

    torch.set_num_threads(1)
    conf, steps = job.updater, sizes["steps"]
    model = GPT(nn.LocalNet(job).initial_params(), sizes["blocks"], sizes["heads"], steps)
    rate = conf.learning_rate.base_lr
    optimizer: Any = torch.optim.SGD(model.parameters(), rate)
    if conf == UPDATERS["AdamW"]:
        optimizer = torch.optim.AdamW(model.parameters(), rate, eps=conf.delta, weight_decay=conf.weight_decay)
    for batch in batches:
        optimizer.zero_grad()
        for x, y in zip(*(np.split(array, count) for array in batch), strict=True):
            scores = model(torch.tensor(x.astype(np.int64))).flatten(0, 1)
            loss = torch.nn.functional.cross_entropy(scores, torch.tensor(y).flatten())
            (loss * (steps / count)).backward()
        optimizer.step()
    return {name: param.detach().numpy() for name, param in model.named_parameters()}


def in_pytorch(params: Values, sizes: dict[str, int]) -> Values:
    """Return params by PyTorch's names, of which some join several of ours."""
    from tools.benchmarks.torch_gpt import GPT

    model = GPT(params, sizes["blocks"], sizes["heads"], sizes["steps"])
    return {name: param.detach().numpy() for name, param in model.named_parameters()}


def difference(params: Values, others: Values) -> float:
    """Return the largest difference of two numbers, as a share of the largest number of the param."""
    return max(float(np.abs(params[name] - other).max() / np.abs(other).max()) for name, other in others.items())


def row_of(job: Job, batches: Batches, sizes: dict[str, int]) -> list[str]:
    """Return the figures of the updater of a job, in the order of the columns."""
    whole, reference = ours(job, batches), exact(job, batches)
    parts = [ours(job.replace(micro_batches=count), batches) for count in COUNTS]
    row = [joined(difference(params, whole) for params in parts), "", f"{difference(whole, reference):.1e}", ""]
    if job.updater in (UPDATERS["SGD"], UPDATERS["AdamW"]):
        peer = theirs(job, batches, sizes, 1)
        row[1] = joined(difference(theirs(job, batches, sizes, count), peer) for count in COUNTS)
        row[3] = f"{difference(peer, in_pytorch(reference, sizes)):.1e}"
    row.append(joined(difference(params, reference) for params in parts))
    row.append(f"{difference(exact(job, batches, rounds_params=True), reference):.1e}")
    return row


def joined(figures: Iterable[float]) -> str:
    """Return figures as text."""
    return ", ".join(f"{figure:.1e}" for figure in figures)


@click.command()
@click.argument("names", nargs=-1, type=click.Choice(list(UPDATERS)))
@click.option("--steps", "train_steps", default=10, show_default=True, help="Steps of training.")
@with_sizes
def main(names: tuple[str, ...], train_steps: int, **sizes: int) -> None:
    """Print a row for each updater."""
    print("| updater | 2, 4, 8 micro-batches and whole | PyTorch's | whole and float64 | PyTorch's ", end="")
    print("| 2, 4, 8 and float64 | params rounded and float64 |\n|" + " --- |" * 7)
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        import_records("text", RAW / "tinyshakespeare" / "input.txt", folder, held_out=0.1)
        text = open_text(folder / "train_data.zarr")
        rows = sizes["batchsize"]
        windows = TextWindows(text, rows, sizes["steps"], True)
        batches = [windows.read(range(step * rows, (step + 1) * rows)) for step in range(train_steps)]
        job = models.gpt(len(text.vocabulary), temporary, **sizes, train_steps=train_steps)
        for name in names or UPDATERS:
            row = row_of(job.replace(updater=UPDATERS[name]), batches, sizes)
            print(f"| {name} | {' | '.join(row)} |", flush=True)


if __name__ == "__main__":
    main()

"""The small GPT on tinyshakespeare: loss of each step, held-out loss and time of an iteration, beside PyTorch.

    python -m tools.benchmarks.accuracy_gpt [--steps 300] [--width 128] [--length 128] ...

dsinga and PyTorch train in turn, each in a process of its own on the same core with one thread: the same net, the same
initial params, the same batches in the same order, Adam with the same settings. Prints the largest relative difference
of the losses of the first 50 steps, the losses on all held-out windows after the last step, and the median
milliseconds of an iteration. The text is looked for in the folder of real data: DSINGA_DATA, or ../shared/data beside
the checkout.
"""

from __future__ import annotations

import json
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import numpy as np

import dsinga
from dsinga import models
from dsinga.addons.planner.benchmark import measure
from dsinga.cluster import connect
from dsinga.data import TextWindows, import_records, open_text
from dsinga.job import Job, Phase
from dsinga.layers import RecordInfo
from dsinga.net import create_net
from dsinga.training import initial_values
from tools.benchmarks.turns import take_turn

MODULE = "tools.benchmarks.accuracy_gpt"
RAW = Path(os.environ.get("DSINGA_DATA", Path(__file__).resolve().parents[3] / "shared/data"))
COMPARED, TIMED = 50, 40


def job(folder: Path, sizes: dict[str, int], train_steps: int) -> Job:
    """Return the job, which reports each step."""
    codes = len(open_text(folder / "train_data.zarr").vocabulary)
    never = {"test_freq": 0, "checkpoint_freq": 0, "disp_freq": 1}
    return models.gpt(codes, str(folder), **sizes, **never, train_steps=train_steps)


def ours(folder: Path, sizes: dict[str, int], train_steps: int) -> dict[str, Any]:
    """Return the figures of dsinga."""
    conf = job(folder, sizes, train_steps)
    with connect(workers=1) as client:
        milliseconds = measure(conf, client, steps=TIMED, synthetic=False)["ms_per_iteration"]
        result = dsinga.train(conf, client=client, workers=1, progress=False)
        held_out = dsinga.evaluate(conf, result.params, client=client)["loss"]
    return {"ms": milliseconds, "held_out": held_out, "losses": [entry["loss"] for entry in result.history]}


def theirs(folder: Path, sizes: dict[str, int], train_steps: int) -> dict[str, Any]:
    """Return the figures of PyTorch."""
    import torch

    from tools.benchmarks.torch_gpt import GPT

    torch.set_num_threads(1)
    conf, steps, rows = job(folder, sizes, train_steps), sizes["steps"], sizes["batchsize"]
    info = {"data": RecordInfo((steps,), rows, label_shape=(steps,))}
    net = create_net(conf.neuralnet, Phase.kTrain, info)
    model = GPT(initial_values(net.params, conf.seed), sizes["blocks"], sizes["heads"], steps)
    adam = torch.optim.Adam(model.parameters(), lr=conf.updater.learning_rate.base_lr, betas=(0.9, 0.95), fused=True)
    texts = {
        part: TextWindows(open_text(folder / f"{part}_data.zarr"), rows, steps, True) for part in ("train", "test")
    }

    def loss_of(part: str, step: int) -> Any:
        start = step * rows % len(texts[part])
        codes, labels = texts[part].read(range(start, start + rows))
        scores = model(torch.tensor(codes.astype(np.int64)))
        return torch.nn.functional.cross_entropy(scores.flatten(0, 1), torch.tensor(labels).flatten())

    seconds, losses = [], []
    for step in range(train_steps):
        began = time.perf_counter()
        adam.zero_grad(set_to_none=True)
        loss = loss_of("train", step)
        (loss * steps).backward()  # of the sum over the steps of a row
        adam.step()
        losses.append(float(loss.detach()))
        seconds.append(time.perf_counter() - began)
    with torch.no_grad():
        held_out = statistics.mean(float(loss_of("test", step)) for step in range(len(texts["test"]) // rows))
    return {"ms": 1e3 * statistics.median(seconds), "held_out": held_out, "losses": losses}


SIZES = (
    click.option("--width", default=128, show_default=True),
    click.option("--blocks", default=4, show_default=True),
    click.option("--heads", default=4, show_default=True),
    click.option("--length", "steps", default=128, show_default=True, help="Codes that the net sees at once."),
    click.option("--batchsize", default=16, show_default=True),
)


def with_sizes(command: Callable[..., None]) -> Callable[..., None]:
    """Add the options of the sizes of the GPT, with the names that ``models.gpt`` has for them, to a command."""
    for option in reversed(SIZES):
        command = option(command)
    return command


@click.command()
@click.option("--steps", "train_steps", default=300, show_default=True, help="Steps of training.")
@with_sizes
@click.option("--turn", hidden=True)
def main(train_steps: int, turn: str | None, **sizes: int) -> None:
    """Print the table."""
    if turn:
        framework, folder, sizes, train_steps = json.loads(turn)
        print(json.dumps((ours if framework == "dsinga" else theirs)(Path(folder), sizes, train_steps)))
        return
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        import_records("text", RAW / "tinyshakespeare" / "input.txt", folder, held_out=0.1)
        first, second = (
            take_turn(MODULE, "--turn", json.dumps([framework, str(folder), sizes, train_steps]))
            for framework in ("dsinga", "pytorch")
        )
    pairs = list(zip(first["losses"], second["losses"], strict=True))
    print("| | dsinga | PyTorch |\n| --- | --- | --- |")
    for step in (1, 10, COMPARED, train_steps):
        if step <= train_steps:
            print(f"| loss of step {step} | {pairs[step - 1][0]:.6f} | {pairs[step - 1][1]:.6f} |")
    print(f"| held-out loss | {first['held_out']:.4f} | {second['held_out']:.4f} |")
    print(f"| ms of an iteration | {first['ms']:.1f} | {second['ms']:.1f} |")
    difference = max(abs(a - b) / b for a, b in pairs[:COMPARED])
    print(f"largest relative difference of the first {COMPARED} losses: {difference:.1e}")
    print(f"time ratio: {first['ms'] / second['ms']:.2f}")


if __name__ == "__main__":
    main()

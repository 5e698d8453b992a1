"""Sentiment of movie reviews and ratings of MovieLens: result and time of an iteration, beside the same in PyTorch.

    python -m tools.benchmarks.accuracy_text [--seeds 1] [--epochs N] [NET ...]

For each net and seed dsinga and PyTorch train in turn, each in a process of its own on the same core with one thread,
on the same records, with the same updater, sizes and epochs; initial params, order and dropout differ. Prints the
accuracy, or the RMSE in stars, on the held-out records, and the median milliseconds of an iteration. The raw files are
looked for in the folder of real data: DSINGA_DATA, or ../shared/data beside the checkout.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import click
import numpy as np

import dsinga
from dsinga import models
from dsinga.addons.planner.benchmark import measure
from dsinga.cluster import connect
from dsinga.data import import_records, open_store
from dsinga.job import Job

RAW = Path(os.environ.get("DSINGA_DATA", Path(__file__).resolve().parents[3] / "shared/data"))
REVIEWS, RATINGS = ("convolution", "lstm"), ("cosine", "product")
TIMED = 200  # iterations


def job(net: str, folder: Path, seed: int = 1, epochs: int | None = None) -> Job:
    """Return the job of a net, with its own number of epochs by default."""
    quiet = {"seed": seed, "disp_freq": 0, "test_freq": 0, **({"epochs": epochs} if epochs else {})}
    if net in REVIEWS:
        words = len(open_store(folder / "reviews" / "train_data.zarr").vocabulary)
        return getattr(models, f"sentiment_{net}")(words, str(folder / "reviews"), **quiet)
    sizes = (len(open_store(folder / "ratings" / "films" / f"{name}.zarr").vocabulary) for name in ("films", "titles"))
    return models.recommender(943, *sizes, str(folder / "ratings"), similarity=net, **quiet)


def ours(net: str, folder: Path, seed: int, epochs: int | None) -> dict[str, float]:
    """Return the figures of dsinga."""
    conf = job(net, folder, seed, epochs)
    with connect(workers=1) as client:
        milliseconds = measure(conf, client, steps=TIMED, synthetic=False)["ms_per_iteration"]
        params = dsinga.train(conf, client=client, workers=1, progress=False).params
        metrics = dsinga.evaluate(conf, params, client=client)
    return {"ms": milliseconds, "result": metrics["accuracy" if net in REVIEWS else "rmse"]}


def arrays(net: str, folder: Path, part: str) -> tuple[list[np.ndarray], np.ndarray]:
    """Return records and labels."""
    if net in REVIEWS:
        store = open_store(folder / "reviews" / f"{part}_data.zarr")
        data, labels = store.read(range(len(store)))
        return [data.astype(np.int64)], labels
    stores = [open_store(folder / "ratings" / part / f"{name}.zarr") for name in ("users", "films", "titles", "genres")]
    read = [store.read(range(len(store))) for store in stores]
    return [data.astype(np.int64) if data.dtype == np.int32 else data for data, _ in read], read[0][1]


def theirs(net: str, folder: Path, seed: int, epochs: int | None) -> dict[str, float]:
    """Return the figures of PyTorch."""
    import torch

    from tools.benchmarks import torch_text

    torch.set_num_threads(1)
    torch.manual_seed(seed)
    conf = job(net, folder, seed, epochs)
    sizes = [layer.embedding_conf.vocab_size for layer in conf.net.layer if layer.embedding_conf]
    kinds = {"convolution": torch_text.Convolution, "lstm": torch_text.StackedLSTM}
    model = kinds[net](sizes[0]) if net in REVIEWS else torch_text.Recommender(*sizes[:3], product=net == "product")
    updaters = torch_text.make_updaters(model, conf.updater.learning_rate.base_lr)
    (train, labels), (test, answers) = (arrays(net, folder, part) for part in ("train", "test"))
    batch, random, seconds = conf.net.layer[0].store_conf.batchsize[0], np.random.default_rng(seed), []
    loss_of = torch.nn.functional.cross_entropy if net in REVIEWS else torch.nn.functional.mse_loss
    for _ in range(conf.epochs):
        order = random.permutation(len(labels))
        for start in range(0, len(order), batch):
            began = time.perf_counter()
            rows = order[start : start + batch]
            target = torch.tensor(labels[rows])
            for updater in updaters:
                updater.zero_grad(set_to_none=True)
            loss_of(model(*(torch.tensor(array[rows]) for array in train)), target).backward()
            for updater in updaters:
                updater.step()
            seconds.append(time.perf_counter() - began)
    model.eval()
    with torch.no_grad():
        outputs = np.concatenate(
            [
                model(*(torch.tensor(array[start : start + 500]) for array in test)).numpy()
                for start in range(0, len(answers), 500)
            ]
        )
    right = (outputs.argmax(1) == answers).mean() if net in REVIEWS else np.sqrt(np.mean((outputs - answers) ** 2))
    return {"ms": 1e3 * statistics.median(seconds), "result": float(right)}


def take_turn(framework: str, net: str, folder: Path, seed: int, epochs: int | None) -> dict[str, float]:
    """Run :func:`ours` or :func:`theirs` in a process of its own, on one core."""
    core = min(os.sched_getaffinity(0))
    command = ["taskset", "-c", str(core), sys.executable, "-m", "tools.benchmarks.accuracy_text"]
    options = ["--turn", framework, "--folder", str(folder), "--first-seed", str(seed), net]
    options += ["--epochs", str(epochs)] if epochs else []
    env = {**os.environ, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    done = subprocess.run([*command, *options], capture_output=True, text=True, env=env, check=False, timeout=3600)
    if done.returncode:
        raise RuntimeError(done.stderr)
    return json.loads(done.stdout.splitlines()[-1])


@click.command()
@click.argument("nets", nargs=-1, type=click.Choice([*REVIEWS, *RATINGS]))
@click.option("--seeds", default=1, show_default=True)
@click.option("--first-seed", default=1, show_default=True)
@click.option("--epochs", type=int, help="Instead of those of the model.")
@click.option("--turn", type=click.Choice(["dsinga", "pytorch"]), hidden=True)
@click.option("--folder", type=click.Path(path_type=Path), hidden=True)
def main(
    nets: Sequence[str], seeds: int, first_seed: int, epochs: int | None, turn: str | None, folder: Path | None
) -> None:
    """Print the table."""
    if turn and folder:
        print(json.dumps((ours if turn == "dsinga" else theirs)(nets[0], folder, first_seed, epochs)))
        return
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        import_records("sentences", RAW / "movie-reviews", folder / "reviews", encoding="latin-1")
        import_records("movielens", RAW / "movielens-100k", folder / "ratings")
        print("| net | seed | dsinga | PyTorch | dsinga ms | PyTorch ms | ratio |\n| " + "--- | " * 7, flush=True)
        for net in nets or (*REVIEWS, *RATINGS):
            for seed in range(first_seed, first_seed + seeds):
                figures = [take_turn(framework, net, folder, seed, epochs) for framework in ("dsinga", "pytorch")]
                results = " | ".join(f"{each['result']:.4f}" for each in figures)
                first, second = (each["ms"] for each in figures)
                print(f"| {net} | {seed} | {results} | {first:.2f} | {second:.2f} | {first / second:.2f} |", flush=True)


if __name__ == "__main__":
    main()

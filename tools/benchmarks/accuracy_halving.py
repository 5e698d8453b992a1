"""Halving beside the full search on three spaces: whether it finds the best setting, and in which part of the steps.

    python -m tools.benchmarks.accuracy_halving [--space digits] [--seeds 3] [--halving 3] [--last]

The spaces: the digits of scikit-learn by dense layers (27 settings of rate and width), 2,000 images of MNIST by a
convolutional net (30 of rate, filters and dropout), and a made table with noisy labels (36 of rate, decay and dropout).
All are trained for 18 epochs with a validation after each, keep their best params, and are compared by the loss of
these; with --last by that of the last epoch.

For each seed there is a full search and one with halving. The setting that is found is "the best", or "within noise":
its mean loss over the seeds is above that of the best setting by no more than the standard deviation of the best
setting's losses over the seeds. MNIST is looked for in the folder of real data: DSINGA_DATA, or ../shared/data beside
the checkout.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import numpy as np

import dsinga
from dsinga import SearchResult, nn
from dsinga.extensions import KeepBest
from dsinga.job import Job

MNIST = Path(os.environ.get("DSINGA_DATA", Path(__file__).resolve().parents[3] / "shared/data")) / "mnist"
EPOCHS = 18
Split = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]  # of records and labels: to train on, to validate with


@functools.cache
def digits() -> Split:
    """Return the digits, shuffled: 1,297 to train on, 500 to validate with."""
    from sklearn.datasets import load_digits

    x, y = load_digits(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(y))
    x, y = x[order].astype(np.float32) / 16, y[order]
    return x[500:], y[500:], x[:500], y[:500]


@functools.cache
def images() -> Split:
    """Return images of MNIST: 2,000 to train on, 2,000 to validate with."""
    import gzip

    def read(name: str, head: int) -> np.ndarray:
        return np.frombuffer(gzip.decompress((MNIST / f"train-{name}.gz").read_bytes()), np.uint8)[head:]

    x = read("images-idx3-ubyte", 16).reshape(-1, 1, 28, 28)[:4000].astype(np.float32) / 255
    y = read("labels-idx1-ubyte", 8)[:4000].astype(np.int64)
    return x[:2000], y[:2000], x[2000:], y[2000:]


@functools.cache
def table() -> Split:
    """Return a made table of 16 numbers, whose label is noisy and depends on 8 of them: 2,000 rows for each."""
    random = np.random.default_rng(0)
    x = random.normal(size=(4000, 16)).astype(np.float32)
    score = (
        np.sin(2 * x[:, 0] * x[:, 1]) + np.abs(x[:, 2]) - x[:, 3] * (x[:, 4] > 0) + x[:, 5] * x[:, 6] + 0.5 * x[:, 7]
    )
    y = (score + random.logistic(0, 0.5, len(x)) > score.mean()).astype(np.int64)
    return x[:2000], y[:2000], x[2000:], y[2000:]


def job_of(layers: list[Any], split: Split, optimizer: Any, seed: int, batch_size: int) -> Job:
    """Return the job of a net for a space."""
    model = nn.Sequential(layers)
    model.compile(optimizer, "sparse_categorical_crossentropy")
    x, y, *held_out = split
    return model.job(x, y, validation_data=tuple(held_out), epochs=EPOCHS, batch_size=batch_size, seed=seed)


def dense_job(rate: float, width: int, seed: int) -> Job:
    """Return the job of the digits."""
    layers = [nn.Input((64,)), nn.Dense(width, "relu"), nn.Dense(width, "relu"), nn.Dense(10)]
    return job_of(layers, digits(), nn.Adam(rate), seed, 32)


def convolutional_job(rate: float, filters: int, dropout: float, seed: int) -> Job:
    """Return the job of MNIST."""
    layers = [
        nn.Input((1, 28, 28)), nn.Conv2D(filters, 5, strides=2, activation="relu"), nn.MaxPooling2D(2),
        nn.Flatten(), nn.Dropout(dropout), nn.Dense(10),
    ]  # fmt: skip
    return job_of(layers, images(), nn.SGD(rate, momentum=0.9), seed, 50)


def table_job(rate: float, decay: float, dropout: float, seed: int) -> Job:
    """Return the job of the made table."""
    layers = [nn.Input((16,)), nn.Dense(64, "relu"), nn.Dropout(dropout), nn.Dense(64, "relu"), nn.Dense(2)]
    return job_of(layers, table(), nn.AdamW(rate, weight_decay=decay), seed, 50)


RATES = [0.0001, 0.0003, 0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0]
SPACES: dict[str, tuple[Callable[..., Job], dict[str, list[Any]]]] = {
    "digits": (dense_job, {"rate": RATES, "width": [16, 64, 256]}),
    "images": (convolutional_job, {"rate": RATES[3:8], "filters": [4, 8, 16], "dropout": [0.0, 0.3]}),
    "table": (table_job, {"rate": RATES[1:5], "decay": [0.0, 0.1, 1.0], "dropout": [0.0, 0.2, 0.5]}),
}


def scores(result: SearchResult) -> np.ndarray:
    """Return the score of each setting; infinity for those that failed or diverged."""
    values = [np.inf if row["score"] is None else row["score"] for row in result]
    return np.nan_to_num(np.array(values, float), nan=np.inf, posinf=np.inf)


def compare(name: str, seeds: int, halving: int, last: bool) -> list[tuple[Any, ...]]:
    """Return a row of the printed table for each seed of a space."""
    make, space = SPACES[name]
    search = functools.partial(dsinga.search, make, progress=False, extensions=[] if last else [KeepBest("val/loss")])
    searched = [search({**space, "seed": [seed]}) for seed in range(seeds)]
    losses = np.stack([scores(result) for result in searched])
    means, noise = losses.mean(axis=0), losses.std(axis=0, ddof=min(1, seeds - 1))
    best_of_all = int(means.argmin())
    rows = []
    for seed, full in enumerate(searched):
        halved = search({**space, "seed": [seed]}, halving=halving)
        assert full.best is not None
        assert halved.best is not None
        best, found = full.best["number"], halved.best["number"]
        share = sum(row["steps"] for row in halved) / sum(row["steps"] for row in full)
        is_near = means[found] - means[best_of_all] <= noise[best_of_all]
        verdict = "the best" if found == best else "within noise" if is_near else "worse"
        place = 1 + int((losses[seed] < losses[seed, found]).sum())
        rows.append((name, len(full), seed, f"{share:.3f}", describe(full, best), f"{losses[seed, best]:.4f}",
                     describe(full, found), f"{losses[seed, found]:.4f}", place, f"{means[found]:.4f}",
                     f"{means[best_of_all]:.4f}±{noise[best_of_all]:.4f}", verdict))  # fmt: skip
    return rows


def describe(result: SearchResult, number: int) -> str:
    """Return the values of a setting."""
    return "/".join(f"{result[number][name]:g}" for name in result.columns[1:] if name in SETTINGS)


SETTINGS = ("rate", "width", "filters", "decay", "dropout")
HEAD = ("space", "settings", "seed", "share of steps", "best", "its loss", "found", "its loss", "place",
        "found: mean of seeds", "best mean±sd", "found is")  # fmt: skip


@click.command()
@click.option("--space", "names", multiple=True, type=click.Choice(list(SPACES)), help="By default all.")
@click.option("--seeds", default=3, show_default=True)
@click.option("--halving", default=3, show_default=True)
@click.option("--last", is_flag=True, help="Compare by the loss of the last epoch.")
def main(names: tuple[str, ...], seeds: int, halving: int, last: bool) -> None:
    """Print the table."""
    print("| " + " | ".join(HEAD) + " |\n" + "| --- " * len(HEAD) + "|", flush=True)
    for name in names or SPACES:
        for row in compare(name, seeds, halving, last):
            print("| " + " | ".join(map(str, row)) + " |", flush=True)


if __name__ == "__main__":
    main()

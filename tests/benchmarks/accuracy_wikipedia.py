"""What the multi-modal net learns of Wikipedia's pairs: ``python tests/benchmarks/accuracy_wikipedia.py RAW``.

RAW is the folder of the published files (datasets/wikipedia/README.md). Prints, of the 693 test pairs, the accuracy of
both label losses beside that of the nearest class mean, and the mean average precision of images that look for texts
and of texts that look for images: by chance, by class posteriors of the nearest class mean, and by the net.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
from pathlib import Path

import numpy as np

import dsinga
from dsinga.data import import_records, open_store
from dsinga.job import load
from dsinga.retrieval import chance, mean_average_precision

CONF = Path(__file__).parents[2] / "datasets" / "wikipedia" / "job.conf"
SEEDS = (1, 2, 3)


def records(folder: Path, name: str) -> tuple[np.ndarray, np.ndarray]:
    """Return the records and the labels of a store."""
    store = open_store(str(folder / f"{name}.zarr"))
    data, labels = store.read(range(len(store)))
    assert labels is not None
    return data, labels


def centroid_posteriors(folder: Path, letter: str) -> np.ndarray:
    """Return p(class | test record) of normal distributions about the class means, of one variance: (N, 10)."""
    (train, labels), (test, _) = records(folder, f"{letter}_tr"), records(folder, f"{letter}_te")
    means = np.stack([train[labels == label].mean(axis=0) for label in range(10)])
    variance = ((train - means[labels]) ** 2).mean()
    exponent = -((test[:, None] - means) ** 2).sum(axis=-1) / (2 * variance)
    p = np.exp(exponent - exponent.max(axis=1, keepdims=True))
    return p / p.sum(axis=1, keepdims=True)


def both_ways(images: np.ndarray, texts: np.ndarray, labels: np.ndarray) -> list[float]:
    """Return MAP of images that look for texts, and of texts that look for images, by the cosine."""
    return [mean_average_precision(*pair, labels, labels) for pair in ((images, texts), (texts, images))]


def trained(folder: Path, labels: np.ndarray, seed: int) -> dict[str, list[float]]:
    """Train the job; return the accuracies of both paths, and MAP by codes and by class probabilities."""
    job = load(CONF).replace(seed=seed, test_freq=0)
    result = dsinga.train(job, workers=1, data_root=str(folder), progress=False)
    metrics = dsinga.evaluate(job, result.params, data_root=str(folder))
    features = {
        name: dsinga.predict(job, result.params, name, data_root=str(folder))
        for name in ("image_code", "text_code", "image_loss", "text_loss")
    }
    return {
        "accuracy": [metrics[f"{path}_loss/accuracy"] for path in ("image", "text")],
        "codes": both_ways(features["image_code"], features["text_code"], labels),
        "classes": both_ways(features["image_loss"], features["text_loss"], labels),
    }


def main(raw: str) -> None:
    """Import, train with several seeds, print the table."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        import_records("mat", raw, folder)
        labels = records(folder, "I_te")[1]
        means = [centroid_posteriors(folder, letter) for letter in "IT"]
        runs = [trained(folder, labels, seed) for seed in SEEDS]
    hits = [float((p.argmax(axis=1) == labels).mean()) for p in means]
    print(f"{len(labels)} test pairs; the net: median of seeds {SEEDS}")
    print(f"{'label accuracy':38} {'image':>8} {'text':>8}")
    print_row("nearest class mean", hits)
    print_row("net", middle(runs, "accuracy"))
    print(f"{'mean average precision':38} {'i -> t':>8} {'t -> i':>8}")
    print_row("chance", [chance(labels, labels)] * 2)
    print_row("posteriors of the nearest class mean", both_ways(*means, labels))
    print_row("codes of the net", middle(runs, "codes"))
    print_row("class probabilities of the net", middle(runs, "classes"))


def middle(runs: list[dict[str, list[float]]], name: str) -> list[float]:
    """Return the medians over the runs."""
    return [statistics.median(run[name][column] for run in runs) for column in (0, 1)]


def print_row(name: str, values: list[float]) -> None:
    """Print a line of the table."""
    print(f"  {name:36} {values[0]:8.3f} {values[1]:8.3f}")


if __name__ == "__main__":
    main(sys.argv[1])

"""Measure accuracy and retrieval of the multi-modal net on Wikipedia's pairs.

    python tools/benchmarks/accuracy_wikipedia.py RAW [SVG]

RAW is the folder of the published files (datasets/wikipedia/README.md). For the 693 test pairs, prints the accuracy of
both label losses and of the nearest class mean, and the mean average precision of retrieving texts by images and images
by texts: of chance, of class posteriors of the nearest class mean, and of the net. SVG, if given, is a file for the
curves of precision by recall, with those of the net for the first seed.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
from pathlib import Path

import numpy as np

import dsinga
from dsinga.addons.pictures.panels import COLOURS, Line, Panel, draw_panels
from dsinga.addons.retrieval import chance, mean_average_precision, precision_at_recall, ranked_relevance
from dsinga.data import import_records, open_store
from dsinga.job import load

CONF = Path(__file__).parents[2] / "datasets" / "wikipedia" / "job.conf"
SEEDS = (1, 2, 3)
LEVELS = np.linspace(0, 1, 21)

Features = dict[str, tuple[np.ndarray, np.ndarray]]  # of images and of texts, by the kind of feature


def records(folder: Path, name: str) -> tuple[np.ndarray, np.ndarray]:
    """Return the records and the labels of a store."""
    store = open_store(str(folder / f"{name}.zarr"))
    data, labels = store.read(range(len(store)))
    assert labels is not None
    return data, labels


def centroid_posteriors(folder: Path, letter: str) -> np.ndarray:
    """Return p(class | test record) (N, 10) for normal distributions around the class means, with one variance."""
    (train, labels), (test, _) = records(folder, f"{letter}_tr"), records(folder, f"{letter}_te")
    means = np.stack([train[labels == label].mean(axis=0) for label in range(10)])
    variance = ((train - means[labels]) ** 2).mean()
    exponent = -((test[:, None] - means) ** 2).sum(axis=-1) / (2 * variance)
    p = np.exp(exponent - exponent.max(axis=1, keepdims=True))
    return p / p.sum(axis=1, keepdims=True)


def both_ways(images: np.ndarray, texts: np.ndarray, labels: np.ndarray) -> list[float]:
    """Return MAP by cosine distance of texts retrieved by images, and of images retrieved by texts."""
    return [mean_average_precision(*pair, labels, labels) for pair in ((images, texts), (texts, images))]


def train_net(folder: Path, seed: int) -> tuple[list[float], Features]:
    """Train the job; return the accuracies of both paths, the codes, and the probabilities of classes."""
    job = load(CONF).replace(seed=seed, test_freq=0)
    result = dsinga.train(job, workers=1, data_root=str(folder), progress=False)
    metrics = dsinga.evaluate(job, result.params, data_root=str(folder))
    accuracies = [metrics[f"{path}_loss/accuracy"] for path in ("image", "text")]

    def features(end: str) -> tuple[np.ndarray, np.ndarray]:
        image, text = (
            dsinga.predict(job, result.params, f"{path}_{end}", data_root=str(folder)) for path in ("image", "text")
        )
        return image, text

    return accuracies, {"codes": features("code"), "classes": features("loss")}


def main(raw: str, svg: str = "") -> None:
    """Import, train with several seeds, print the table, draw the curves."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        import_records("mat", raw, folder)
        labels = records(folder, "I_te")[1]
        image, text = (centroid_posteriors(folder, letter) for letter in "IT")
        runs = [train_net(folder, seed) for seed in SEEDS]
    print(f"{len(labels)} test pairs; the net: median of seeds {SEEDS}")
    print(f"{'label accuracy':38} {'image':>8} {'text':>8}")
    print_row("nearest class mean", [float((p.argmax(axis=1) == labels).mean()) for p in (image, text)])
    print_row("net", medians([accuracies for accuracies, _ in runs]))
    print(f"{'mean average precision':38} {'i -> t':>8} {'t -> i':>8}")
    print_row("chance", [chance(labels, labels)] * 2)
    print_row("posteriors of the nearest class mean", both_ways(image, text, labels))
    for kind in runs[0][1]:
        print_row(f"{kind} of the net", medians([both_ways(*features[kind], labels) for _, features in runs]))
    if svg:
        Path(svg).write_text(draw_curves({"means": (image, text), **runs[0][1]}, labels), encoding="utf-8")


def draw_curves(features: Features, labels: np.ndarray) -> str:
    """Return a picture with a panel for each direction, and a curve of precision by recall for each kind of feature."""
    panels = []
    for title, order in (("texts by images", 1), ("images by texts", -1)):
        lines = {}
        for colour, (kind, pair) in zip(COLOURS, features.items(), strict=False):
            blocks = ranked_relevance(*pair[::order], labels, labels)
            curve = np.concatenate([precision_at_recall(relevant, LEVELS) for relevant in blocks]).mean(axis=0)
            lines[kind] = Line(list(zip(LEVELS, curve, strict=True)), colour)
        panels.append(Panel(title, lines, "recall", integer_ticks=False))
    return draw_panels(panels, "precision by recall")


def medians(rows: list[list[float]]) -> list[float]:
    """Return the median of each column."""
    return [statistics.median(column) for column in zip(*rows, strict=True)]


def print_row(name: str, values: list[float]) -> None:
    """Print a line of the table."""
    print(f"  {name:36} {values[0]:8.3f} {values[1]:8.3f}")


if __name__ == "__main__":
    main(*sys.argv[1:])

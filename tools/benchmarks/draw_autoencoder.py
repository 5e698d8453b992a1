"""Draw pictures of a trained auto-encoder of images: ``draw_autoencoder.py JOB CHECKPOINT RBM FOLDER``.

JOB and CHECKPOINT are those of ``accuracy_autoencoder.py``, RBM is the checkpoint of the first restricted Boltzmann
machine. Writes to FOLDER: rbm-filters.png, the weights of that machine's hidden units; autoencoder-images.png, test
images and their reconstructions by the auto-encoder and by principal components; and, if the code has two numbers,
autoencoder-code.png, the codes of test images by digit and their first two principal components.
"""

from __future__ import annotations

import math
import sys
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
from accuracy_autoencoder import code_length, images
from PIL import Image

import dsinga
from dsinga.checkpoint import read_params
from dsinga.job import Job, Phase, load

SHOWN = 12  # images in a row
SPREAD = 4000  # codes in a picture


def sheet(rows: np.ndarray, columns: int, scale: int = 1) -> Image.Image:
    """Return rows of numbers, from 0 (white) to 1 (black), as square images in a grid."""
    side = math.isqrt(rows.shape[1])
    tiles = np.pad(rows.reshape(-1, columns, side, side), ((0, 0), (0, 0), (1, 1), (1, 1)))
    image = tiles.transpose(0, 2, 1, 3).reshape(-1, columns * (side + 2))
    grey = (255 * (1 - image.clip(0, 1))).astype(np.uint8)
    return Image.fromarray(grey.repeat(scale, axis=0).repeat(scale, axis=1))


def filters(weight: np.ndarray, count: int = 60) -> Image.Image:
    """Return a picture of the weights of hidden units, dark where positive: the first ones with large weights."""
    strong = np.sort(np.argsort(-np.square(weight).sum(axis=1))[: len(weight) // 2])[:count]
    limit = np.abs(weight[strong]).max(axis=1, keepdims=True)
    return sheet(0.5 + 0.5 * weight[strong] / limit, 2 * SHOWN - 4)


def main(path: str, checkpoint: str, machine: str, to: str) -> None:
    """Draw all pictures."""
    job, folder = load(path), Path(to)
    filters(read_params(machine)["w1"]).save(folder / "rbm-filters.png", optimize=True)
    train, test = (images(job, phase) for phase in (Phase.kTrain, Phase.kTest))
    labels = np.concatenate([batch for _, batch in dsinga.api.predict_with_labels(job, checkpoint, "data")])
    mean, count = train.mean(axis=0), code_length(job)
    components = np.linalg.eigh((train - mean).T @ (train - mean))[1][:, -count:]
    linear = (test - mean) @ components
    rebuilt = dsinga.predict(job, checkpoint, job.net.layer[-2].name)
    first = [np.flatnonzero(labels == digit % 10)[digit // 10] for digit in range(SHOWN)]
    rows = [test[first], rebuilt[first], linear[first] @ components.T + mean]
    sheet(np.concatenate(rows), SHOWN, 2).save(folder / "autoencoder-images.png", optimize=True)
    if count == 2:
        draw_codes({"principal components": linear, "auto-encoder": codes(job, checkpoint)}, labels, folder)


def codes(job: Job, checkpoint: str) -> np.ndarray:
    """Return the codes of the test images."""
    inner = [layer.name for layer in job.net.layer if layer.innerproduct_conf]
    return dsinga.predict(job, checkpoint, inner[len(inner) // 2 - 1])


def draw_codes(points: dict[str, np.ndarray], labels: np.ndarray, folder: Path) -> None:
    """Write autoencoder-code.png: a scatter plot for each title, with points coloured by digit."""
    figure, axes = plt.subplots(1, len(points), figsize=(9, 4.4), dpi=80, layout="constrained")
    for axis, (title, codes_) in zip(axes, points.items(), strict=True):
        axis.scatter(codes_[:SPREAD, 0], codes_[:SPREAD, 1], s=1, c=labels[:SPREAD], cmap="tab10")
        axis.set(title=title, xticks=[], yticks=[])
    for digit in range(10):
        axes[-1].plot([], [], "o", color=plt.cm.tab10(digit), label=digit)
    axes[-1].legend(loc="center left", bbox_to_anchor=(1, 0.5), frameon=False)
    figure.canvas.draw()
    picture = Image.fromarray(np.asarray(figure.canvas.buffer_rgba())[:, :, :3])
    picture.quantize(24).save(folder / "autoencoder-code.png", optimize=True)


if __name__ == "__main__":
    main(*sys.argv[1:])

"""The nets of the cases as all peers have them: layers, records, and how params are updated."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

WORDS, SENTENCE_STEPS, SHORTEST = 8000, 32, 8  # codes of each language, words of the longest sentence, of the shortest


class Net(NamedTuple):
    """Layers one after the other, images of a shape (channels, height, width), and SGD.

    A layer is its kind and numbers: "convolution" filters, size, stride, padding; "normalised" the same with batch
    normalisation and ReLU in place of a bias; "residual" filters, stride; "max" and "mean" size, stride; "lrn" size, α;
    "dense" outputs; "dropout" share; "relu", "tanh" (SINGA's kSTanh), "global mean" and "flatten" nothing.
    """

    record: tuple[int, int, int]
    classes: int
    layers: tuple[tuple, ...]
    rate: float
    momentum: float = 0.0
    decay: float = 0.0


FULLY_CONNECTED = (
    ("flatten",),
    *(("dense", 4096), ("relu",), ("dropout", 0.5)) * 2,
    ("dense", 1000),
)
NETS = {
    "cifar10": Net(
        (3, 32, 32),
        10,
        (
            *(("convolution", 32, 5, 1, 2), ("max", 3, 2), ("relu",), ("lrn", 3, 5e-5)),
            *(("convolution", 32, 5, 1, 2), ("relu",), ("mean", 3, 2), ("lrn", 3, 5e-5)),
            *(("convolution", 64, 5, 1, 2), ("relu",), ("mean", 3, 2), ("flatten",), ("dense", 10)),
        ),
        *(0.001, 0.9, 0.004),
    ),
    "mnist": Net(
        (1, 28, 28),
        10,
        (
            *(("convolution", 20, 5, 1, 0), ("max", 2, 2), ("convolution", 50, 5, 1, 0), ("max", 2, 2)),
            *(("flatten",), ("dense", 500), ("relu",), ("dense", 10)),
        ),
        *(0.01, 0.9, 5e-4),
    ),
    "mlp": Net(
        (1, 28, 28),
        10,
        (
            ("flatten",),
            *(layer for width in (2500, 2000, 1500, 1000, 500) for layer in (("dense", width), ("tanh",))),
            ("dense", 10),
        ),
        0.001,
    ),
    "alexnet": Net(
        (3, 227, 227),
        1000,
        (
            *(("convolution", 96, 11, 4, 0), ("relu",), ("max", 3, 2), ("lrn", 5, 1e-4)),
            *(("convolution", 256, 5, 1, 2), ("relu",), ("max", 3, 2), ("lrn", 5, 1e-4)),
            *(("convolution", 384, 3, 1, 1), ("relu",)) * 2,
            *(("convolution", 256, 3, 1, 1), ("relu",), ("max", 3, 2)),
            *FULLY_CONNECTED,
        ),
        *(0.01, 0.9, 5e-4),
    ),
    "alexnet-fc": Net((256, 6, 6), 1000, FULLY_CONNECTED, 0.001, 0.9),
    "resnet": Net(
        (3, 32, 32),
        10,
        (
            ("normalised", 16, 3, 1, 1),
            *(("residual", filters, 2 if filters > 16 and not block else 1)
              for filters in (16, 32, 64) for block in range(3)),
            *(("global mean",), ("flatten",), ("dense", 10)),
        ),
        *(0.1, 0.9, 1e-4),
    ),
}  # fmt: skip


def sentences(count: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return codes of both languages and labels, (count, SENTENCE_STEPS) int32 each, -1 after the end."""
    rng = np.random.default_rng(0)

    def codes() -> np.ndarray:
        lengths = rng.integers(SHORTEST, SENTENCE_STEPS + 1, count)[:, None]
        words = rng.integers(0, WORDS, (count, SENTENCE_STEPS), np.int32)
        return np.where(np.arange(SENTENCE_STEPS) < lengths, words, -1).astype(np.int32)

    source, target = codes(), codes()
    return source, target, np.where(target < 0, -1, rng.integers(0, WORDS, target.shape, np.int32))

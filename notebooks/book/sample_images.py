"""Generates images of ten shapes in the files of CIFAR-10."""

from __future__ import annotations

from pathlib import Path

import numpy as np

SIZE = 32
CLASSES = ("disc", "ring", "square", "frame", "cross", "rows", "columns", "diagonals", "checks", "dots")


def write_images(folder: str | Path, train: int = 1000, test: int = 200, seed: int = 0) -> None:
    """Write data_batch_1.bin, test_batch.bin and batches.meta.txt, with images of ten shapes, to ``folder``.

    A shape has two random colours, a random place and size, and noise, so that no single pixel tells the class.

    Args:
        folder: is created where it does not exist.
        train: number of images to learn from.
        test: number of other images.
        seed: of all random numbers.
    """
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(seed)
    for name, count in (("data_batch_1.bin", train), ("test_batch.bin", test)):
        labels = rng.integers(len(CLASSES), size=count).astype(np.uint8)
        images = np.stack([_image(int(label), rng) for label in labels]).reshape(count, -1)
        (folder / name).write_bytes(np.concatenate([labels[:, None], images], axis=1).tobytes())
    (folder / "batches.meta.txt").write_text("".join(f"{name}\n" for name in CLASSES))


def _image(label: int, rng: np.random.Generator) -> np.ndarray:
    """Return an image of a class, uint8 (3, 32, 32)."""
    foreground, background = rng.integers(0, 256, (2, 3, 1, 1))
    while np.abs(foreground - background).sum() < 200:  # two colours that can be told apart
        foreground, background = rng.integers(0, 256, (2, 3, 1, 1))
    image = np.where(_mask(CLASSES[label], rng), foreground, background) + rng.normal(0, 20, (3, SIZE, SIZE))
    return image.clip(0, 255).astype(np.uint8)


def _mask(shape: str, rng: np.random.Generator) -> np.ndarray:
    """Return which pixels belong to the shape, bool (32, 32)."""
    radius = rng.uniform(6, 12)
    top, left = rng.uniform(radius, SIZE - radius, 2)
    y, x = np.mgrid[:SIZE, :SIZE]
    round_, square = np.hypot(y - top, x - left), np.maximum(abs(y - top), abs(x - left))
    period = int(rng.integers(3, 6))
    y_stripe, x_stripe = (y + int(top)) // period % 2 == 0, (x + int(left)) // period % 2 == 0
    masks = {
        "disc": round_ < radius,
        "ring": (round_ < radius) & (round_ > 0.6 * radius),
        "square": square < 0.85 * radius,
        "frame": (square < 0.85 * radius) & (square > 0.5 * radius),
        "cross": (square < radius) & (np.minimum(abs(y - top), abs(x - left)) < 0.3 * radius),
        "rows": y_stripe,
        "columns": x_stripe,
        "diagonals": (y + x + int(top)) // period % 2 == 0,
        "checks": y_stripe ^ x_stripe,
        "dots": (y % 6 - 3) ** 2 + (x % 6 - 3) ** 2 < 5,
    }
    return masks[shape]

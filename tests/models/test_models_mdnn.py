"""The two paths of the multi-modal net learn similar codes for pairs."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import dsinga
from dsinga.data import write_store
from dsinga.models import mdnn
from dsinga.retrieval import chance, mean_average_precision


@pytest.fixture(scope="module")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, np.ndarray]:
    """Pairs of four classes: noisy points about centres, of 12 numbers as images and of 5 as texts."""
    rng, folder = np.random.default_rng(0), tmp_path_factory.mktemp("pairs")
    centres = {"I": rng.normal(size=(4, 12)), "T": rng.normal(size=(4, 5))}
    for part, count in (("tr", 300), ("te", 99)):
        labels = rng.integers(0, 4, count)
        for letter, centre in centres.items():
            noisy = centre[labels] + rng.normal(size=(count, centre.shape[1])) * 0.6
            write_store(folder / f"{letter}_{part}.zarr", [(noisy.astype(np.float32), labels)])
    return folder, labels


@pytest.mark.parametrize("workers", [1, 2])
def test_images_find_texts_of_their_class(pairs: tuple[Path, np.ndarray], workers: int) -> None:
    folder, labels = pairs
    job = mdnn((16,), (8,), code=6, classes=4, data=str(folder), train_steps=150, test_freq=150, test_steps=1)
    result = dsinga.train(job, workers=workers, progress=False)
    last = result.history[-1]
    assert last["loss"] == pytest.approx(sum(last[f"{name}/loss"] for name in ("image_loss", "text_loss", "distance")))
    assert min(last["image_loss/accuracy"], last["text_loss/accuracy"]) > 0.8
    images, texts = (dsinga.predict(job, result.params, f"{name}_code") for name in ("image", "text"))
    assert mean_average_precision(images, texts, labels, labels) > 0.8 > 2 * chance(labels, labels)

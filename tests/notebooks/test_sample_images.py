"""The made images have the form of CIFAR-10, and a small net can tell their classes."""

from pathlib import Path

import numpy as np
import pytest

from dsinga.addons.importers.image_sets import cifar10
from notebooks.book.sample_images import CLASSES, write_images


@pytest.fixture(scope="module")
def contents(tmp_path_factory: pytest.TempPathFactory):
    folder = tmp_path_factory.mktemp("images")
    write_images(folder, train=300, test=100, seed=3)
    return cifar10(str(folder))


def test_the_importer_reads_them(contents):
    batches = list(contents["train_data.zarr"].batches)
    images, labels = (np.concatenate([getattr(batch, name) for batch in batches]) for name in ("data", "labels"))
    assert images.shape == (300, 3, 32, 32)
    assert np.bincount(labels, minlength=len(CLASSES)).min() > 10
    assert images.reshape(300, -1).std(axis=1).min() > 30  # every shape can be seen


def test_the_same_seed_gives_the_same_files(tmp_path: Path):
    for name, seed in (("one", 1), ("same", 1), ("other", 2)):
        write_images(tmp_path / name, train=5, test=5, seed=seed)
    one, same, other = ((tmp_path / name / "data_batch_1.bin").read_bytes() for name in ("one", "same", "other"))
    assert one == same != other

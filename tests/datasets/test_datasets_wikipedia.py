"""Wikipedia's published pairs are imported, and the net finds them better than class means (marker ``data``)."""

from pathlib import Path

import numpy as np
import pytest

import dsinga
from dsinga.addons.retrieval import chance, mean_average_precision
from dsinga.data import RecordStore, import_records

pytestmark = pytest.mark.data

CONF = Path(__file__).parents[2] / "datasets" / "wikipedia" / "job.conf"
CENTROIDS = {"image": 0.227, "text": 0.680}  # accuracy of the nearest class mean


@pytest.fixture(scope="module")
def stores(real_data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wikipedia")
    import_records("mat", real_data / "wikipedia-rasiwasia", folder)
    return folder


def test_pairs_are_aligned_and_labelled(stores: Path) -> None:
    for part, count in (("tr", 2173), ("te", 693)):
        images, texts = (RecordStore(stores / f"{letter}_{part}.zarr") for letter in "IT")
        assert (len(images), images.shape, len(texts), texts.shape) == (count, (128,), count, (10,))
        assert images.classes == texts.classes
        assert images.classes[:2] == ("art", "biology")
        labels = images.read_labels(range(count))
        np.testing.assert_array_equal(labels, texts.read_labels(range(count)))
        assert np.bincount(labels).min() > 30
        for store in (images, texts):  # histograms and shares of topics, which add up to 1
            np.testing.assert_allclose(store.read(range(count))[0].sum(axis=1), 1, rtol=1e-5)


def test_class_means_have_the_published_accuracy(stores: Path) -> None:
    for name, letter in (("image", "I"), ("text", "T")):
        train, test = (RecordStore(stores / f"{letter}_{part}.zarr") for part in ("tr", "te"))
        (x, labels), (test_x, test_labels) = train.read(range(len(train))), test.read(range(len(test)))
        means = np.stack([x[labels == label].mean(axis=0) for label in range(10)])
        nearest = ((test_x[:, None] - means) ** 2).sum(axis=-1).argmin(axis=1)
        assert (nearest == test_labels).mean() == pytest.approx(CENTROIDS[name], abs=5e-4)


def test_the_net_is_better_than_class_means_and_chance(stores: Path) -> None:
    result = dsinga.train(CONF, workers=1, data_root=str(stores), progress=False)
    tests = result.history.phase("test")
    for name, accuracy in CENTROIDS.items():
        assert tests[-1, f"{name}_loss/accuracy"] > accuracy
    images, texts = (
        dsinga.predict(CONF, result.params, f"{name}_code", data_root=str(stores)) for name in ("image", "text")
    )
    labels = RecordStore(stores / "I_te.zarr").read_labels(range(693))
    assert mean_average_precision(images, texts, labels, labels) > 0.26 > 2 * chance(labels, labels)
    assert mean_average_precision(texts, images, labels, labels) > 0.21

"""The published files of MNIST and CIFAR-10, through the importers and the reader; see the marker ``data``."""

import gzip
import lzma
from pathlib import Path

import numpy as np
import pytest

from dsinga.data import RecordStore, import_records

pytestmark = pytest.mark.data


@pytest.fixture(scope="module")
def stores(real_data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("real")
    for kind in ("mnist", "cifar10"):
        import_records(kind, real_data / kind, folder / kind)
    return folder


@pytest.mark.parametrize(("name", "prefix", "count"), [("train", "train", 60000), ("test", "t10k", 10000)])
def test_mnist_has_the_published_bytes(stores: Path, real_data: Path, name: str, prefix: str, count: int) -> None:
    store = RecordStore(stores / "mnist" / f"{name}_data.zarr")
    data, labels = store.read(range(count))
    assert (len(store), store.shape, store.dtype) == (count, (28, 28), np.uint8)
    assert data.tobytes() == gzip.decompress((real_data / f"mnist/{prefix}-images-idx3-ubyte.gz").read_bytes())[16:]
    raw = gzip.decompress((real_data / f"mnist/{prefix}-labels-idx1-ubyte.gz").read_bytes())[8:]
    np.testing.assert_array_equal(labels, np.frombuffer(raw, np.uint8))


def test_cifar10_has_the_published_bytes(stores: Path, real_data: Path) -> None:
    store = RecordStore(stores / "cifar10" / "train_data.zarr")
    files = sorted((real_data / "cifar10").glob("data_batch_*.bin.xz"))
    assert len(store) == 10000 * len(files)
    assert store.classes[:3] == ("airplane", "automobile", "bird")
    for number, file in enumerate(files):
        raw = np.frombuffer(lzma.decompress(file.read_bytes()), np.uint8).reshape(-1, 3073)
        data, labels = store.read(range(10000 * number, 10000 * (number + 1)))
        np.testing.assert_array_equal(labels, raw[:, 0])
        assert data.tobytes() == raw[:, 1:].tobytes()

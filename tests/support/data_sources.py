"""Small sources of every kind, written from given records, for the tests of importers."""

import gzip
import lzma
import struct
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import lmdb
import numpy as np
from PIL import Image
from scipy.io import savemat

from dsinga.addons.importers.kvfile import CaffeDatum, RecordProto


class Source(NamedTuple):
    """A source on disk, and the expected data and labels of each imported store, by path below the destination."""

    kind: str
    path: Path
    expected: dict[str, tuple[np.ndarray, np.ndarray | None]]
    options: dict[str, Any] = {}


def records(count: int, shape: tuple[int, ...], seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    return rng.integers(0, 256, (count, *shape), np.uint8), rng.integers(0, 10, count)


def idx(array: np.ndarray) -> bytes:
    magic = struct.pack(">HBB", 0, 8, array.ndim)
    return magic + struct.pack(f">{array.ndim}I", *array.shape) + array.astype(np.uint8).tobytes()


def mnist(folder: Path) -> Source:
    train, test = records(2500, (28, 28)), records(30, (28, 28), 1)
    for prefix, (data, labels) in (("train", train), ("t10k", test)):
        (folder / f"{prefix}-images-idx3-ubyte.gz").write_bytes(gzip.compress(idx(data), 1))
        (folder / f"{prefix}-labels-idx1-ubyte").write_bytes(idx(labels))
    return Source("mnist", folder, {"train_data.zarr": train, "test_data.zarr": test})


def cifar_rows(data: np.ndarray, labels: np.ndarray) -> bytes:
    return np.hstack([labels.astype(np.uint8)[:, None], data.reshape(len(data), -1)]).tobytes()


def _cifar_expected() -> dict[str, tuple[np.ndarray, np.ndarray | None]]:
    train, test = records(700, (3, 32, 32)), records(20, (3, 32, 32), 1)
    mean = train[0].astype(np.float64).mean(axis=0, keepdims=True).astype(np.float32)
    return {"train_data.zarr": train, "test_data.zarr": test, "image_mean.zarr": (mean, None)}


def cifar10(folder: Path) -> Source:
    expected = _cifar_expected()
    (data, labels), test = expected["train_data.zarr"], expected["test_data.zarr"]
    for number in range(1, 11):  # ten files, whose order by number differs from their order by name
        rows = slice(70 * (number - 1), 70 * number)
        raw = cifar_rows(data[rows], labels[rows])
        if number % 2:
            (folder / f"data_batch_{number}.bin").write_bytes(raw)
        else:
            (folder / f"data_batch_{number}.bin.xz").write_bytes(lzma.compress(raw, preset=0))
    (folder / "test_batch.bin").write_bytes(cifar_rows(*test))
    return Source("cifar10", folder, expected)


def cifar10_tar(folder: Path) -> Source:
    (folder / "files").mkdir()
    source = cifar10(folder / "files")
    path = folder / "cifar-10-binary.tar.gz"
    with tarfile.open(path, "w:gz", compresslevel=1) as archive:
        for file in sorted(source.path.iterdir(), reverse=True):  # the published archive is not sorted either
            raw = lzma.decompress(file.read_bytes()) if file.suffix == ".xz" else file.read_bytes()
            plain = folder / file.name.removesuffix(".xz")
            plain.write_bytes(raw)
            archive.add(plain, f"cifar-10-batches-bin/{plain.name}")
    return Source("cifar10", path, source.expected)


def csv(folder: Path) -> Source:
    rng = np.random.default_rng(0)
    data, labels = rng.normal(size=(5000, 20)).astype(np.float32), rng.integers(-3, 1000, 5000)
    path = folder / "train.csv"
    rows = [",".join(map(repr, [int(label), *row.tolist()])) for label, row in zip(labels, data, strict=True)]
    rows.insert(7, "")  # an empty line is not a record
    path.write_text("\n".join(rows))
    return Source("csv", path, {"": (data, labels)})


def csv_unlabelled(folder: Path) -> Source:
    data = np.random.default_rng(0).normal(size=(50, 3)).astype(np.float32)
    path = folder / "test.txt.gz"
    path.write_bytes(gzip.compress("\n".join(";".join(map(repr, map(float, row))) for row in data).encode()))
    return Source("textfile", path, {"": (data, None)}, {"separator": ";", "has_label": False})


def csv_targets(folder: Path) -> Source:
    values = np.random.default_rng(0).normal(size=(900, 5)).astype(np.float32)
    path = folder / "targets.csv"
    path.write_text("\n".join(",".join(map(repr, row)) for row in values.tolist()))
    return Source("csv", path, {"": (values[:, 2:], values[:, :2])}, {"label_columns": 2})


def csv_target(folder: Path) -> Source:
    source = csv_targets(folder)
    data, labels = source.expected[""]
    return source._replace(
        expected={"": (np.hstack([labels[:, 1:], data]), labels[:, 0])}, options={"label_columns": 1}
    )


def pair(key: bytes, value: bytes) -> bytes:
    return struct.pack("=Q", len(key)) + key + struct.pack("=Q", len(value)) + value


def pixels(data: np.ndarray, label: int) -> bytes:
    return RecordProto(shape=data.shape, label=int(label), pixel=data.tobytes()).SerializeToString()


def kvfile(folder: Path) -> Source:
    data, labels = records(900, (28, 28))
    path = folder / "train_data.bin"
    values = (pixels(image, label) for image, label in zip(data, labels, strict=True))
    path.write_bytes(b"".join(pair(b"%08d" % number, value) for number, value in enumerate(values)))
    return Source("kvfile", path, {"": (data, labels)})


def kvfile_floats(folder: Path) -> Source:
    """Floats without a shape and without labels, wrapped in SINGA's Record."""
    data = np.random.default_rng(0).normal(size=(40, 6)).astype(np.float32)
    path = folder / "floats.bin"
    values = [RecordProto(image=RecordProto(data=row)).SerializeToString() for row in data]
    # Record's field 1, the type of record, is a varint where RecordProto's field 1 is a shape
    path.write_bytes(b"".join(pair(b"", b"\x08\x00" + value) for value in values))
    return Source("kvfile", path, {"": (data, None)})


def _lmdb(folder: Path, values: list[bytes]) -> Path:
    path = folder / "train_lmdb"
    with lmdb.open(str(path), map_size=1 << 26) as environment, environment.begin(write=True) as transaction:
        for number, value in enumerate(values):
            transaction.put(b"%08d" % number, value)
    return path


def lmdb_datum(folder: Path) -> Source:
    data, labels = records(300, (3, 8, 8))
    datums = [
        CaffeDatum(channels=3, height=8, width=8, data=image.tobytes(), label=int(label)).SerializeToString()
        for image, label in zip(data, labels, strict=True)
    ]
    return Source("lmdb", _lmdb(folder, datums), {"": (data, labels)})


def lmdb_record(folder: Path) -> Source:
    data, labels = records(300, (3, 8, 8))
    path = _lmdb(folder, [pixels(image, label) for image, label in zip(data, labels, strict=True)])
    return Source("lmdb", path, {"": (data, labels)})


def npz(folder: Path) -> Source:
    data, labels = records(1000, (4, 5, 6))
    path = folder / "arrays.npz"
    np.savez_compressed(path, x=data, y=labels.astype(np.int16))
    return Source("npz", path, {"": (data, labels)})


def npz_targets(folder: Path) -> Source:
    data, _ = records(1000, (4, 5))
    labels = np.random.default_rng(0).normal(size=(1000, 3))
    np.savez(folder / "arrays.npz", x=data, y=labels)
    return Source("npz", folder / "arrays.npz", {"": (data, labels.astype(np.float32))})


def npz_multilabel(folder: Path) -> Source:
    data, labels = records(1000, (4, 5))
    labels = labels[:, None] == np.arange(10)
    np.savez(folder / "arrays.npz", x=data, y=labels)
    return Source("npz", folder / "arrays.npz", {"": (data, labels.astype(np.int64))})


def npz_fortran(folder: Path) -> Source:
    data = np.random.default_rng(0).normal(size=(30, 7))
    path = folder / "arrays.npz"
    np.savez(path, data=np.asfortranarray(data))
    return Source("npz", path, {"": (data.astype(np.float32), None)})


def mat(folder: Path) -> Source:
    """One file with two modalities, their labels counted from 1, a matrix without labels, and other variables."""
    rng = np.random.default_rng(0)
    images, texts, numbers = (rng.normal(size=shape) for shape in ((6000, 50), (6000, 3), (7, 4)))
    labels = rng.integers(0, 5, 6000)
    path = folder / "features.mat"
    others = {"note": "hello", "scale_tr": 0.5, "weight_tr": rng.normal(size=9), "empty": np.zeros((0, 4))}
    others["limits_tr"] = np.array([0, np.inf])
    savemat(path, {"I_tr": images, "T_tr": texts.astype(np.float32), "L_tr": labels + 1.0, "other": numbers, **others})
    floats = {name: array.astype(np.float32) for name, array in (("I_tr", images), ("T_tr", texts), ("other", numbers))}
    return Source(
        "mat", path, {f"{name}.zarr": (data, labels if "_" in name else None) for name, data in floats.items()}
    )


def mat_lists(folder: Path) -> Source:
    """A folder with labels in list files, as of Wikipedia's features; bytes stay bytes."""
    (train, labels), (test, test_labels) = records(90, (12,)), records(30, (12,), 1)
    savemat(folder / "raw.mat", {"I_tr": train, "I_te": test})
    for name, numbers in (("trainset.list", labels), ("testset.list", test_labels)):
        (folder / name).write_text("".join(f"text-{row}.5\timage\t{label + 1}\n" for row, label in enumerate(numbers)))
    return Source("mat", folder, {"I_tr.zarr": (train, labels), "I_te.zarr": (test, test_labels)})


def imagefolder(folder: Path) -> Source:
    """Lossless images and a list file, whose order is kept."""
    data, labels = records(40, (3, 6, 5))
    for number, image in enumerate(data):
        Image.fromarray(image.transpose(1, 2, 0)).save(folder / f"image {number}.png")
    path = folder / "list.txt"
    path.write_text("".join(f"image {number}.png {label}\n" for number, label in enumerate(labels)))
    return Source("imagefolder", path, {"": (data, labels)})


NAMES = (
    "mnist cifar10 cifar10_tar csv csv_unlabelled csv_targets csv_target kvfile kvfile_floats lmdb_datum lmdb_record "
    "npz npz_targets npz_multilabel npz_fortran mat mat_lists imagefolder"
)
SOURCES: dict[str, Callable[[Path], Source]] = {name: globals()[name] for name in NAMES.split()}

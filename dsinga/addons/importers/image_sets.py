"""The importers of CIFAR-10, and of MNIST and data sets in its idx format (Fashion-MNIST, KMNIST, ...).

CIFAR-10's binary version, https://www.cs.toronto.edu/~kriz/cifar.html, has rows of 3,073 bytes: the label, then 1,024
bytes each of red, green and blue, row by row. An idx file, http://yann.lecun.com/exdb/mnist, has a magic number,
dimensions as big-endian 32-bit numbers, then bytes.
"""

from __future__ import annotations

import contextlib
import math
import os
import re
import struct
import tarfile
from collections.abc import Callable, Generator, Iterator
from contextlib import AbstractContextManager
from typing import IO, NamedTuple

import numpy as np

from dsinga.addons.importers.batches import Batch, OpenFile, StoreContents, find, naming_errors, opened
from dsinga.base.errors import UserError
from dsinga.base.registry import register
from dsinga.base.regular_files import open_regular
from dsinga.data.stores.store_format import chunk_rows

SHAPE = (3, 32, 32)
ROW = 1 + 3 * 32 * 32
ROWS = 1000


class _File(NamedTuple):
    """A file of the data set: name without .gz or .xz, path, size on disk, and a function that opens it."""

    name: str
    path: str
    size: int
    open: Callable[[], AbstractContextManager[OpenFile]]


@register("importer", "cifar10")
def cifar10(source: str) -> dict[str, StoreContents]:
    """Read a folder with data_batch_*.bin and test_batch*.bin (also .gz, .xz), or cifar-10-binary.tar.gz.

    Records are uint8 (3, 32, 32), labels 0 to 9. A third store has the training records' mean image, float32, which
    SINGA's jobs subtract.
    """
    files = _folder(source) if os.path.isdir(source) else _tar(source)
    train = _matching(files, r"data_batch_\d+\.bin")
    test = _matching(files, r"test_batch\w*\.bin")
    for matches, name in ((train, "data_batch_1.bin"), (test, "test_batch.bin")):
        if not matches:
            raise UserError(f"{source} has no {name} (or .gz, .xz); download the binary version of CIFAR-10")
    classes = _classes(files)
    mean = _Mean()
    return {
        "train_data.zarr": StoreContents(mean.accumulate(_read(train)), _size(train), classes),
        "test_data.zarr": StoreContents(_read(test), _size(test), classes),
        "image_mean.zarr": StoreContents(mean.batches(), 1),
    }


def _folder(source: str) -> list[_File]:
    def file(entry: os.DirEntry[str]) -> _File:
        name = re.sub(r"\.(gz|xz)$", "", entry.name)
        return _File(name, entry.path, entry.stat().st_size, lambda: opened(entry.path))

    with os.scandir(source) as entries:
        return [file(entry) for entry in entries if entry.is_file()]


def _tar(source: str) -> list[_File]:
    def file(member: tarfile.TarInfo) -> _File:
        path = f"{source}:{member.name}"
        return _File(os.path.basename(member.name), path, member.size, lambda: _opened_member(source, member))

    with _archive(source) as archive:
        return [file(member) for member in archive if member.isfile()]


@contextlib.contextmanager
def _archive(source: str) -> Iterator[tarfile.TarFile]:
    with naming_errors(source):
        try:
            with open_regular(source) as file, tarfile.open(fileobj=file) as archive:
                yield archive
        except tarfile.TarError as error:
            raise UserError(f"{source} cannot be read as a tar archive: {str(error).splitlines()[0]}") from None


@contextlib.contextmanager
def _opened_member(source: str, member: tarfile.TarInfo) -> Iterator[OpenFile]:
    with _archive(source) as archive:
        file = archive.extractfile(member)
        assert file is not None, member  # only regular files were listed
        yield OpenFile(file, file.tell)


def _matching(files: list[_File], pattern: str) -> list[_File]:
    matches = {
        file.name: file for file in sorted(files, key=lambda file: -len(file.path)) if re.fullmatch(pattern, file.name)
    }
    return [matches[name] for name in sorted(matches, key=lambda name: (len(name), name))]


def _size(files: list[_File]) -> int:
    return sum(file.size for file in files)


def _classes(files: list[_File]) -> tuple[str, ...]:
    for meta in _matching(files, r"batches\.meta\.txt"):
        with meta.open() as (file, _):
            try:
                return tuple(file.read().decode().split())
            except UnicodeDecodeError as error:
                raise UserError(
                    f"{meta.path}: not UTF-8 text ({error.reason}); save the names of the classes so, or remove it"
                ) from None
    return ()


def _read(files: list[_File]) -> Generator[Batch]:
    offset = 0
    for path, size, open_file in (file[1:] for file in files):
        with open_file() as (file, tell):
            row = 0
            while block := file.read(ROW * ROWS):
                if len(block) % ROW:
                    raise UserError(f"{path} is truncated: it ends within row {row + len(block) // ROW}")
                rows = np.frombuffer(block, np.uint8).reshape(-1, ROW)
                if len(bad := np.flatnonzero(rows[:, 0] > 9)):
                    label = rows[bad[0], 0]
                    raise UserError(f"{path} is not CIFAR-10: row {row + bad[0]} has label {label}, not 0 to 9")
                yield Batch(rows[:, 1:].reshape(-1, *SHAPE), rows[:, 0], offset + tell())
                row += len(rows)
        offset += size


class _Mean:
    """Computes the exact mean image of the records that pass through :meth:`accumulate`, from integer sums."""

    def __init__(self) -> None:
        self._sum = np.zeros(SHAPE, np.int64)
        self._count = 0

    def accumulate(self, batches: Generator[Batch]) -> Generator[Batch]:
        for batch in batches:
            self._sum += batch.data.sum(axis=0, dtype=np.int64)
            self._count += len(batch.data)
            yield batch

    def batches(self) -> Generator[Batch]:
        yield Batch((self._sum / self._count).astype(np.float32)[None], None)


IMAGES, LABELS = 2051, 2049
LARGEST_SIDE = 1 << 14  # pixels


@register("importer", "mnist")
def mnist(source: str) -> dict[str, StoreContents]:
    """Read a folder with the four idx files, compressed or not: records uint8 (28, 28), labels 0 to 9."""
    return {"train_data.zarr": _contents(source, "train"), "test_data.zarr": _contents(source, "t10k")}


def _contents(folder: str, prefix: str) -> StoreContents:
    images = find(folder, f"{prefix}-images-idx3-ubyte", f"{prefix}-images.idx3-ubyte")
    labels = find(folder, f"{prefix}-labels-idx1-ubyte", f"{prefix}-labels.idx1-ubyte")
    shape, count = _header(images, IMAGES), _header(labels, LABELS)
    if shape[:1] != count:
        raise UserError(f"{images} has {shape[0]} images but {labels} has {count[0]} labels")
    return StoreContents(_pairs(images, labels, chunk_rows(math.prod(shape[1:]))), shape[0])


def _pairs(images: str, labels: str, rows: int) -> Generator[Batch]:
    for data, label in zip(_read_idx(images, IMAGES, rows), _read_idx(labels, LABELS, rows), strict=True):
        yield Batch(data, label)


def _header(path: str, magic: int) -> tuple[int, ...]:
    with opened(path) as (file, _):
        return _read_header(file, path, magic)


def _read_idx(path: str, magic: int, rows: int) -> Iterator[np.ndarray]:
    """Yield an idx file's array, uint8, in blocks of ``rows`` rows."""
    with opened(path) as (file, _):
        shape = _read_header(file, path, magic)
        size = math.prod(shape[1:])
        for row in range(0, shape[0], rows):
            count = min(rows, shape[0] - row)
            block = file.read(count * size)
            if len(block) < count * size:
                raise UserError(f"{path} is truncated: it ends in row {row + len(block) // size} of {shape[0]}")
            yield np.frombuffer(block, np.uint8).reshape(count, *shape[1:])
        if file.read(1):
            raise UserError(f"{path} has more bytes than the {shape[0]} rows that its header gives")


def _read_header(file: IO[bytes], path: str, magic: int) -> tuple[int, ...]:
    start = file.read(4)
    if start != struct.pack(">i", magic):
        raise UserError(f"{path}: an idx file of {magic & 255} dimensions starts with {magic}, this one with {start!r}")
    dimensions = magic & 255  # the last byte of the magic number
    header = file.read(4 * dimensions)
    if len(header) < 4 * dimensions:
        raise UserError(f"{path} is truncated: it ends in its header")
    shape = struct.unpack(f">{dimensions}I", header)
    if not all(1 <= side <= LARGEST_SIDE for side in shape[1:]):
        raise UserError(
            f"{path}: its header says that images have {' x '.join(map(str, shape[1:]))} pixels; sides have 1 to "
            f"{LARGEST_SIDE}, so the header is damaged: download the file again"
        )
    return shape

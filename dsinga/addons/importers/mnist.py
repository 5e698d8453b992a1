"""The importer of MNIST and data sets in the same idx format (Fashion-MNIST, KMNIST, ...).

Format: http://yann.lecun.com/exdb/mnist: magic number, dimensions as big-endian 32-bit numbers, then bytes.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Generator, Iterator
from typing import IO

import numpy as np

from dsinga.addons.importers.batches import Batch, StoreContents, find, opened
from dsinga.base.errors import UserError
from dsinga.base.registry import register
from dsinga.data.stores.store_format import chunk_rows

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
    """Yield the array of an idx file, uint8, in blocks of ``rows`` rows.

    Raises:
        UserError: the magic number or the number of bytes does not match the header.
    """
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

"""The importer of arrays in numpy's npz files."""

from __future__ import annotations

import contextlib
import zipfile
from collections.abc import Generator, Iterator
from typing import IO, NamedTuple

import numpy as np
from numpy.lib import format as npy

from dsinga.data.importers.files import naming_errors
from dsinga.data.importers.records import Batch, StoreContents
from dsinga.data.store_format import chunk_rows
from dsinga.errors import UserError

DATA, LABELS = ("data", "x", "images"), ("labels", "y")


class _Header(NamedTuple):
    shape: tuple[int, ...]
    fortran: bool
    dtype: np.dtype


def npz(source: str) -> dict[str, StoreContents]:
    """Read the array ``data``, ``x`` or ``images`` (N, *shape), and ``labels`` or ``y`` if there is one.

    Bytes and booleans stay bytes, all other numbers become float32. Labels are (N,) or (N, K), integers or floats. The
    arrays are streamed, unless they are in Fortran order.
    """
    with _archive(source) as archive:
        names = {name.removesuffix(".npy") for name in archive.namelist()}
        data = next((name for name in DATA if name in names), None)
        labels = next((name for name in LABELS if name in names), None)
        if data is None:
            listing = ", ".join(sorted(names)) or "nothing"
            raise UserError(f"{source} has no array named {' or '.join(DATA)}; it has {listing}")
        header = _header(archive, source, data)
        shape = _header(archive, source, labels).shape if labels else header.shape[:1]
        if shape[:1] != header.shape[:1] or len(shape) > 2:
            raise UserError(f"{source}: {labels!r} has shape {shape}, but {data!r} has shape {header.shape}")
    return {"": StoreContents(_read(source, data, labels, header), header.shape[0])}


@contextlib.contextmanager
def _archive(source: str) -> Iterator[zipfile.ZipFile]:
    with naming_errors(source):
        try:
            with zipfile.ZipFile(source) as archive:
                yield archive
        except zipfile.BadZipFile as error:
            raise UserError(f"{source} cannot be read as an npz file: {error}") from None


def _read(source: str, data: str, labels: str | None, header: _Header) -> Generator[Batch]:
    rows = chunk_rows(header.dtype.itemsize * int(np.prod(header.shape[1:], dtype=np.int64)))
    with _archive(source) as archive:
        blocks = map(_as_numbers, _blocks(archive, source, data, rows))
        if labels is None:
            yield from (Batch(block, None) for block in blocks)
        else:
            yield from map(Batch, blocks, _blocks(archive, source, labels, rows))


def _as_numbers(block: np.ndarray) -> np.ndarray:
    """Return int32 records as float32, since a store treats int32 as codes."""
    return block.astype(np.float32) if block.dtype == np.int32 else block


def _blocks(archive: zipfile.ZipFile, source: str, name: str, rows: int) -> Iterator[np.ndarray]:
    """Yield the array ``name`` in blocks of ``rows`` rows."""
    with archive.open(f"{name}.npy") as file:
        shape, fortran, dtype = _read_header(file, source, name)
        if fortran:
            array = np.frombuffer(file.read(), dtype).reshape(shape, order="F")
            yield from (array[start : start + rows] for start in range(0, shape[0], rows))
            return
        size = dtype.itemsize * int(np.prod(shape[1:], dtype=np.int64))
        for start in range(0, shape[0], rows):
            count = min(rows, shape[0] - start)
            block = file.read(count * size)
            if len(block) < count * size:
                raise UserError(f"{source}: array {name!r} is truncated in row {start + len(block) // size}")
            yield np.frombuffer(block, dtype).reshape(count, *shape[1:])


def _header(archive: zipfile.ZipFile, source: str, name: str) -> _Header:
    with archive.open(f"{name}.npy") as file:
        return _read_header(file, source, name)


def _read_header(file: IO[bytes], source: str, name: str) -> _Header:
    try:
        version = npy.read_magic(file)
        read = npy.read_array_header_1_0 if version == (1, 0) else npy.read_array_header_2_0
        header = _Header(*read(file))
    except ValueError as error:
        raise UserError(f"{source}: {name!r} is not a numpy array: {error}") from None
    if header.dtype.hasobject or not header.shape:
        raise UserError(f"{source}: array {name!r} is {header.dtype} {header.shape}; it must have rows of numbers")
    return header

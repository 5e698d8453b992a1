"""The importer of arrays in numpy's npz files."""

from __future__ import annotations

import contextlib
import math
import shutil
import tempfile
import zipfile
from collections.abc import Generator, Iterator
from typing import IO, NamedTuple

import numpy as np
from numpy.lib import format as npy

from dsinga.addons.importers.batches import Batch, StoreContents, naming_errors
from dsinga.base.errors import UserError
from dsinga.base.registry import listed, register
from dsinga.base.regular_files import open_regular
from dsinga.data.conversion import record_dtype
from dsinga.data.stores.store_format import chunk_rows

DATA, LABELS = ("data", "x", "images"), ("labels", "y")
BAND_BYTES = 64 << 20  # of an array in Fortran order that are read together


class _Header(NamedTuple):
    shape: tuple[int, ...]
    fortran: bool
    dtype: np.dtype

    @property
    def row_bytes(self) -> int:
        return math.prod(self.shape[1:]) * self.dtype.itemsize


@register("importer", "npz")
def npz(source: str) -> dict[str, StoreContents]:
    """Read the array ``data``, ``x`` or ``images`` (N, *shape), and ``labels`` or ``y`` if there is one.

    Bytes and booleans stay bytes, all other numbers become float32. Labels are (N,) or (N, K), integers or floats. An
    array in Fortran order, with rows spread over the file, is first unpacked into a temporary file.
    """
    if source.endswith(".npy"):
        raise UserError(
            f"{source} is a single array, no npz file; write x and y with numpy.savez, or train from the array: "
            f'fit(numpy.load({source!r}, mmap_mode="r"), y)'
        )
    with _archive(source) as archive:
        names = {name.removesuffix(".npy") for name in archive.namelist() if name.endswith(".npy")}
        data = next((name for name in DATA if name in names), None)
        labels = next((name for name in LABELS if name in names), None)
        if data is None:
            x, y = (min((name for name in names if name.lower().startswith(key)), default="...") for key in "xy")
            raise UserError(
                f"{source} has no array named {' or '.join(DATA)}; it has {listed(sorted(names))}; save them by these "
                f"names: numpy.savez(path, x={x}{f', y={y}' if len(names) > 1 else ''})"
            )
        header = _header(archive, source, data)
        shape = _header(archive, source, labels).shape if labels else header.shape[:1]
        if shape[:1] != header.shape[:1] or len(shape) > 2:
            raise UserError(f"{source}: {labels!r} has shape {shape}, but {data!r} has shape {header.shape}")
    return {"": StoreContents(_read(source, data, labels, header), header.shape[0])}


@contextlib.contextmanager
def _archive(source: str) -> Iterator[zipfile.ZipFile]:
    try:
        with naming_errors(source), open_regular(source) as file, zipfile.ZipFile(file) as archive:
            yield archive
    except (UserError, MemoryError):
        raise
    except Exception as error:  # of zipfile and of numpy's parser of headers: any class
        raise UserError(
            f"{source} cannot be read as an npz file ({error!s:.200}); write it again with numpy.savez"
        ) from None


def _read(source: str, data: str, labels: str | None, header: _Header) -> Generator[Batch]:
    rows = chunk_rows(header.row_bytes)
    with _archive(source) as archive:
        blocks = map(_as_numbers, _blocks(archive, source, data, rows))
        if labels is None:
            yield from (Batch(block, None) for block in blocks)
        else:
            yield from map(Batch, blocks, _blocks(archive, source, labels, rows))


def _as_numbers(block: np.ndarray) -> np.ndarray:
    """Convert int32 records, which a store treats as codes, to float32."""
    return block.astype(np.float32) if block.dtype == np.int32 else block


def _blocks(archive: zipfile.ZipFile, source: str, name: str, rows: int) -> Iterator[np.ndarray]:
    with archive.open(f"{name}.npy") as file:
        header = _read_header(file, source, name)
        if header.fortran:
            yield from _fortran_blocks(file, source, name, header, rows)
            return
        for start in range(0, header.shape[0], rows):
            count = min(rows, header.shape[0] - start)
            block = file.read(count * header.row_bytes)
            if len(block) < count * header.row_bytes:
                row = start + len(block) // header.row_bytes
                raise UserError(f"{source}: array {name!r} is truncated in row {row}; write it again")
            yield np.frombuffer(block, header.dtype).reshape(count, *header.shape[1:])


def _fortran_blocks(file: IO[bytes], source: str, name: str, header: _Header, rows: int) -> Iterator[np.ndarray]:
    """Yield an array in Fortran order in blocks of ``rows`` rows, gathered from all columns."""
    length, size = header.shape[0], header.shape[0] * header.row_bytes
    columns, itemsize = math.prod(header.shape[1:]), header.dtype.itemsize
    band = rows * max(1, BAND_BYTES // (rows * header.row_bytes))
    with tempfile.TemporaryFile() as copy:
        _unpack(file, copy, source, name, size)
        for start in range(0, length, band):
            rows_of_columns = np.empty((columns, min(band, length - start)), header.dtype)
            for column in range(columns):
                copy.seek((column * length + start) * itemsize)
                copy.readinto(rows_of_columns[column])
            block = rows_of_columns.reshape(*header.shape[:0:-1], -1).T
            yield from (block[row : row + rows] for row in range(0, len(block), rows))


def _unpack(file: IO[bytes], copy: IO[bytes], source: str, name: str, size: int) -> None:
    """Decompress an array of ``size`` bytes into a temporary file; raise UserError if array or disk is too short."""
    try:
        shutil.copyfileobj(file, copy, 1 << 20)
    except OSError as error:
        raise UserError(
            f"{source}: array {name!r} is in Fortran order, so that it is unpacked into a temporary file of {size} "
            f"bytes: {error.strerror or error}; save numpy.ascontiguousarray of it, or set TMPDIR to another folder"
        ) from None
    if copy.tell() < size:
        raise UserError(f"{source}: array {name!r} has {copy.tell()} of {size} bytes; write it again")


def _header(archive: zipfile.ZipFile, source: str, name: str) -> _Header:
    with archive.open(f"{name}.npy") as file:
        return _read_header(file, source, name)


def _read_header(file: IO[bytes], source: str, name: str) -> _Header:
    try:
        version = npy.read_magic(file)
        read = npy.read_array_header_1_0 if version == (1, 0) else npy.read_array_header_2_0
        header = _Header(*read(file))
    except ValueError as error:
        raise UserError(f"{source}: {name!r} is not a numpy array ({error!s:.200}); write it again") from None
    if header.dtype.hasobject or not header.shape or min(header.shape) < 1:
        raise UserError(f"{source}: array {name!r} is {header.dtype} {header.shape}; it must have rows of numbers")
    try:
        record_dtype(header.dtype)
    except UserError as error:
        raise UserError(f"{source}: array {name!r}: {error}") from None
    return header

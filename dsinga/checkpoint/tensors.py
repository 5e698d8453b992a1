"""Files of named arrays: writing safetensors durably, reading safetensors and npz."""

from __future__ import annotations

import os
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np
import safetensors
import safetensors.numpy

from dsinga.errors import UserError
from dsinga.regular_files import open_regular

Arrays = dict[str, np.ndarray]


class Fingerprint(NamedTuple):
    """The length and CRC-32 of a file, to detect damage (safetensors itself checks the header only)."""

    bytes: int
    crc32: int


def write_tensors(path: Path, arrays: Mapping[str, np.ndarray]) -> Fingerprint:
    """Write a safetensors file, flush it to the disk and return its fingerprint.

    Raises OSError if it cannot be written.
    """
    try:
        # The format has neither strides nor byte order, so arrays must be contiguous.
        safetensors.numpy.save_file({name: np.ascontiguousarray(array) for name, array in arrays.items()}, path)
    except safetensors.SafetensorError as error:
        raise OSError(str(error)) from error
    with open(path, "r+b") as file:
        os.fsync(file.fileno())
    return fingerprint(path)


def fingerprint(path: Path) -> Fingerprint:
    """Return the fingerprint of a file."""
    length = crc = 0
    with open_regular(path) as file:
        while block := file.read(1 << 20):
            length += len(block)
            crc = zlib.crc32(block, crc)
    return Fingerprint(length, crc)


def read_safetensors(path: Path) -> Arrays:
    """Return the arrays of a safetensors file by name; raise UserError, naming the file, if it cannot be read."""
    try:
        open_regular(path).close()
        # Not by a memory map, which ends the process where the file is cut meanwhile.
        return safetensors.numpy.load_file(path, backend="pread")
    except (safetensors.SafetensorError, OSError, KeyError, TypeError, ValueError, OverflowError) as error:
        raise UserError(f"{path} cannot be read as safetensors: {error}") from None


def find_integers(params: Mapping[str, np.ndarray]) -> str:
    """Return which param has other than floating-point numbers, as half a sentence; "" if none has.

    Scalars may have: PyTorch counts batches in them.
    """
    for name, array in params.items():
        if array.ndim and array.dtype.kind != "f":
            return f"param {name!r} is {array.dtype}, not floating-point"
    return ""


def read_npz(path: Path) -> Arrays:
    """Return the arrays of a numpy ``.npz`` file by name; raise UserError, naming the file, if it cannot be read."""
    try:
        with open_regular(path) as file:  # numpy would leave the file open if it is not an archive
            archive = np.load(file, allow_pickle=False)
            if not isinstance(archive, np.lib.npyio.NpzFile):
                raise ValueError("it has an array without a name")
            return {name: archive[name] for name in archive.files}
    except Exception as error:  # numpy and zipfile raise errors of a dozen classes for damaged files
        raise UserError(f"{path} cannot be read as npz: {error}") from None

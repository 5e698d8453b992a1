"""Writes named arrays to safetensors files durably; reads safetensors and npz.

Nested dicts of plain values and arrays are separated into JSON data and named arrays.
"""

from __future__ import annotations

import json
import os
import re
import zlib
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import ml_dtypes  # noqa: F401  lets safetensors read bfloat16
import numpy as np
import safetensors
import safetensors.numpy

from dsinga.base.arrays import NamedParams, ParamArrays
from dsinga.base.errors import UserError
from dsinga.base.regular_files import is_of_torch, open_regular, parse_json

ORDER = "array_order"  # the metadata of a file: the names of its arrays, as JSON
RECORD_NAMES = "record_names"  # and of params those of classes and columns


class Fingerprint(NamedTuple):
    """A file's length and CRC-32, to detect damage, since safetensors checks only the header."""

    bytes: int
    crc32: int

    def mark(self) -> str:
        """Return a text that marks other files as saved together with this one."""
        return f"saved with params of {self.bytes} bytes and CRC-32 {self.crc32:08x}"


MARK = re.compile(rb"saved with params of \d+ bytes and CRC-32 [0-9a-f]{8}")


def check_marks(place: Callable[[str], Path], params: str, names: Iterable[str]) -> None:
    """Raise UserError if a file was saved with other params than the params' file has."""
    marks = {}
    for path in filter(Path.is_file, map(place, names)):
        with open_regular(path) as file:
            if match := MARK.search(file.read(1 << 12)):
                marks[path] = match[0].decode()
    expected = fingerprint(place(params)).mark() if marks else ""
    for path in (path for path in marks if marks[path] != expected):
        raise UserError(
            f"{path} was {marks[path]}, and {params} beside it has others: they are of two saves, or damaged; "
            "save the model again, or restore both files"
        )


def write_tensors(
    path: Path, arrays: Mapping[str, np.ndarray], metadata: Mapping[str, str] | None = None
) -> Fingerprint:
    """Write arrays to a safetensors file, flush it, and return its fingerprint.

    The file's metadata have the order of the arrays, the given texts, and names of records.
    """
    texts = {**(metadata or {}), ORDER: json.dumps(list(arrays))}
    if names := getattr(arrays, "names", None):
        texts[RECORD_NAMES] = json.dumps(names)
    path.touch()  # the library makes files that nobody else may read
    mode = path.stat().st_mode
    try:
        # The format has neither strides nor byte order, so arrays must be contiguous.
        contiguous = {name: np.ascontiguousarray(array) for name, array in arrays.items()}
        safetensors.numpy.save_file(contiguous, path, texts)
    except safetensors.SafetensorError as error:
        raise OSError(str(error)) from error
    path.chmod(mode)
    with open(path, "r+b") as file:
        os.fsync(file.fileno())
    return fingerprint(path)


def fingerprint(path: Path) -> Fingerprint:
    """Return a file's length and CRC-32, to detect damage later."""
    length = crc = 0
    with open_regular(path) as file:
        while block := file.read(1 << 20):
            length += len(block)
            crc = zlib.crc32(block, crc)
    return Fingerprint(length, crc)


def read_safetensors(path: Path) -> NamedParams:
    """Read the arrays of a safetensors file, by name, in the order in which they were written.

    bfloat16 becomes float32. Raises UserError, naming the file, if it cannot be read.
    """
    try:
        open_regular(path).close()
        # Not by a memory map, which ends the process where the file is cut meanwhile.
        with safetensors.safe_open(path, "numpy", backend="pread") as file:
            metadata, names = file.metadata() or {}, file.keys()
            order = parse_json(metadata.get(ORDER, "[]"))
            in_order = order if sorted(order) == sorted(names) else names
            arrays = {name: _known_dtype(file.get_tensor(name)) for name in in_order}
            return NamedParams(arrays, dict(parse_json(metadata.get(RECORD_NAMES, "{}"))))
    except (
        safetensors.SafetensorError,
        OSError,
        LookupError,
        TypeError,
        ValueError,
        ArithmeticError,
    ) as error:
        if is_of_torch(path):
            raise UserError(
                f"{path} is a pickle of PyTorch, which is not read; write it again: "
                f"safetensors.torch.save_file(torch.load({path.name!r}), 'model.safetensors')"
            ) from None
        raise UserError(f"{path} cannot be read as safetensors: {error}") from None


def _known_dtype(array: np.ndarray) -> np.ndarray:
    """Convert an array of unknown dtype, which is bfloat16, to float32."""
    return array.astype(np.float32) if array.dtype.kind == "V" else array


def find_integers(params: Mapping[str, np.ndarray]) -> str:
    """Say which param is not floating-point, as half a sentence; "" if none.

    Scalars are exempt, as PyTorch's counters of batches.
    """
    for name, array in params.items():
        if array.ndim and array.dtype.kind != "f":
            return f"param {name!r} is {array.dtype}, not floating-point"
    return ""


def read_npz(path: Path) -> ParamArrays:
    """Read the arrays of a numpy ``.npz`` file, by name."""
    try:
        with open_regular(path) as file:  # numpy would leave the file open if it is not an archive
            archive = np.load(file, allow_pickle=False)
            if not isinstance(archive, np.lib.npyio.NpzFile):
                raise ValueError("it has an array without a name")
            return {name: archive[name] for name in archive.files}
    except Exception as error:  # numpy and zipfile raise errors of a dozen classes for damaged files
        raise UserError(f"{path} cannot be read as npz: {error}") from None


# In JSON data, the only key of an object that stands for an array; its value is the array's name.
ARRAY = "$array"


def separate_arrays(state: Mapping[str, Any]) -> tuple[dict[str, Any], ParamArrays]:
    """Split a state, nested dicts with string keys, into JSON data and arrays by name.

    An array is named after its path, "KeepBest/params/w1".
    """
    arrays: ParamArrays = {}
    return _separate(state, "", arrays), arrays


def insert_arrays(data: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> dict[str, Any]:
    """Put arrays back into JSON data: undo :func:`separate_arrays`, with lists for tuples."""
    if data.keys() == {ARRAY}:
        return arrays[data[ARRAY]]  # type: ignore[return-value]
    return {key: insert_arrays(value, arrays) if isinstance(value, dict) else value for key, value in data.items()}


def _separate(value: Any, path: str, arrays: ParamArrays) -> Any:
    if isinstance(value, Mapping):
        wrong = [key for key in value if not isinstance(key, str) or key == ARRAY]
        if wrong:
            raise TypeError(f"{path or 'the state'} has the key {wrong[0]!r}; keys must be strings")
        return {key: _separate(inner, f"{path}/{key}" if path else key, arrays) for key, inner in value.items()}
    if isinstance(value, np.ndarray):
        while path in arrays:  # keys may contain the slash that separates them
            path += "'"
        arrays[path] = value
        return {ARRAY: path}
    if isinstance(value, np.generic):
        return value.item()
    try:
        json.dumps(value)
    except (TypeError, ValueError) as error:
        raise TypeError(f"{path} is neither plain data nor an array: {error}") from error
    return value

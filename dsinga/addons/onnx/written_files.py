"""Writes ONNX files, with large params in a separate file."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from dsinga.addons.onnx.files import first_line, onnx_package
from dsinga.base.durable_files import explained_writing, local_folder, replaced_files
from dsinga.base.errors import UserError

if TYPE_CHECKING:
    from onnx import ModelProto

EXTERNAL_BYTES = 10**9  # of all params; from this size they are in a separate file
SMALL_BYTES = 1024  # of a param that is in the net's file in any case
ALIGNMENT = 4096  # of the first byte of a param, so that servers can map the file into their memory
DATA = ".data"  # ends the name of the file with params


def write_onnx(
    model: ModelProto, params: Mapping[str, np.ndarray], path: str | os.PathLike[str], external: int = EXTERNAL_BYTES
) -> None:
    """Write a net and its params, arrays by name, to an ONNX file, after ONNX's own checks.

    Params of ``external`` bytes or more in all go, without a copy, to a second file with an additional ".data". Either
    both files are written or none.
    """
    onnx, path = onnx_package(), local_folder(path)
    if path.suffix not in ("", ".onnx"):
        raise UserError(f"{path.name} would be an ONNX file; name it {path.with_suffix('.onnx').name}")
    for place in path, path.parent / (path.name + DATA):
        if place.is_dir():
            raise UserError(f"{place} is a folder; name a file, as in {place / 'net.onnx'}")
    is_large = sum(array.nbytes for array in params.values()) >= external
    with explained_writing(path.parent), replaced_files(path.parent, [path.name, path.name + DATA]) as files:
        large = {name: array for name, array in params.items() if is_large and array.nbytes > SMALL_BYTES}
        apart = {name: array for name, array in large.items() if array.dtype != object}  # texts are in the net's file
        inner = [onnx.numpy_helper.from_array(array, name) for name, array in params.items() if name not in apart]
        model.graph.initializer.extend(inner)
        if apart:
            _write_apart(model, apart, files / (path.name + DATA))
        with open(files / path.name, "wb") as file:
            file.write(model.SerializeToString())
            file.flush()
            os.fsync(file.fileno())
        try:
            onnx.checker.check_model(files / path.name)
        except (onnx.checker.ValidationError, RuntimeError, ValueError) as error:
            raise UserError(f"{path} would not be as ONNX says ({first_line(error)}); try another opset") from None


def _write_apart(model: ModelProto, arrays: Mapping[str, np.ndarray], path: Path) -> None:
    onnx = onnx_package()
    with open(path, "wb") as file:
        for name, array in arrays.items():
            file.write(bytes(-file.tell() % ALIGNMENT))
            dtype = onnx.helper.np_dtype_to_tensor_dtype(array.dtype)
            tensor = model.graph.initializer.add(name=name, data_type=dtype, dims=array.shape)
            tensor.data_location = tensor.EXTERNAL
            for key, value in ("location", path.name), ("offset", file.tell()), ("length", array.nbytes):
                tensor.external_data.add(key=key, value=str(value))
            file.write(np.ascontiguousarray(array, array.dtype.newbyteorder("<")).data)
        file.flush()
        os.fsync(file.fileno())

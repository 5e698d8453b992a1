"""Writes nets for Triton's model repository and MLflow, and compares a net's file with its model."""

from __future__ import annotations

import contextlib
import json
import os
import warnings
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from dsinga.addons.onnx.export_estimators import given_records
from dsinga.addons.onnx.files import first_line, onnx_package
from dsinga.addons.onnx.written_files import write_onnx
from dsinga.base.durable_files import (
    draft_folder,
    explained_writing,
    local_folder,
    replace_folder,
    sync_folder,
    write_file,
)
from dsinga.base.errors import UserError

if TYPE_CHECKING:
    from onnx import ModelProto, ValueInfoProto

TRITON, MLFLOW = "config.pbtxt", "MLmodel"  # the file that marks a folder as a net for the server
TRITON_BATCH = 64  # the most rows that Triton joins in one batch
DTYPES = {"tensor(int64)": np.int64, "tensor(double)": np.float64, "tensor(bool)": np.bool_, "tensor(string)": object}


def write_triton(model: ModelProto, params: Mapping[str, np.ndarray], folder: str | os.PathLike[str]) -> None:
    """Write a net to a Triton model repository, as version 1 of a model named after ``folder``.

    Triton joins the rows of several requests. Replaces an older model in one step. Raises UserError if the folder has
    something else, or cannot be written.
    """
    with _new_folder(local_folder(folder), TRITON) as path:
        write_onnx(model, params, path / "1" / "model.onnx")
        fields = [f"name: {json.dumps(path.name)}", 'platform: "onnxruntime_onnx"', f"max_batch_size: {TRITON_BATCH}"]
        for kind, values in ("input", model.graph.input), ("output", model.graph.output):
            fields += [f"{kind} [", ",\n".join(map(_triton_value, values)), "]"]
        write_file(path / TRITON, "\n".join([*fields, "dynamic_batching { }", ""]))


def _triton_value(value: ValueInfoProto) -> str:
    dtype, shape = _dtype_and_shape(value)
    kind = {"float32": "FP32", "float64": "FP64", "object": "STRING"}.get(dtype.name, dtype.name.upper())
    sizes, reshape = ", ".join(map(str, shape[1:])), ""
    if not shape[1:]:  # which Triton does not take; the net gets one axis less
        sizes, reshape = "1", "\n    reshape { shape: [ ] }"
    return f"  {{\n    name: {json.dumps(value.name)}\n    data_type: TYPE_{kind}\n    dims: [ {sizes} ]{reshape}\n  }}"


def _dtype_and_shape(value: ValueInfoProto) -> tuple[np.dtype, tuple[int, ...]]:
    tensor = value.type.tensor_type
    shape = tuple(dim.dim_value if dim.HasField("dim_value") else -1 for dim in tensor.shape.dim)
    return onnx_package().helper.tensor_dtype_to_np_dtype(tensor.elem_type), shape


def write_mlflow(model: ModelProto, params: Mapping[str, np.ndarray], folder: str | os.PathLike[str]) -> None:
    """Write a net as a model of MLflow, like ``mlflow.onnx.save_model``, with its signature and metadata.

    Raises UserError if MLflow is not installed, or the folder has something else or cannot be written.
    """
    onnx = onnx_package()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about hints of types in MLflow itself
            import mlflow.onnx
            import mlflow.pyfunc
            from mlflow.models import ModelSignature
            from mlflow.types import Schema, TensorSpec
    except ImportError as error:
        raise UserError(f"MLflow's models need MLflow ({error}): pip install 'dsinga[mlflow,dataframe]'") from None
    inputs, outputs = (
        Schema([TensorSpec(*_dtype_and_shape(value), value.name) for value in values])
        for values in (model.graph.input, model.graph.output)
    )
    with _new_folder(local_folder(folder), MLFLOW) as path:
        write_onnx(model, params, path.parent / "model.onnx")
        mlflow.onnx.save_model(
            onnx.load(path.parent / "model.onnx"),
            path,
            signature=ModelSignature(inputs, outputs),
            pip_requirements=["numpy", f"onnx=={onnx.__version__}", "onnxruntime"],
            metadata={entry.key: entry.value for entry in model.metadata_props},
        )


@contextlib.contextmanager
def _new_folder(path: Path, known_by: str) -> Iterator[Path]:
    """Context with a draft folder that replaces ``path``, unless another thing is there."""
    if path.exists() and not (path / known_by).is_file() and not (path.is_dir() and not any(path.iterdir())):
        raise UserError(f"{path} is there, and has no {known_by} of an earlier export; name a new folder")
    with explained_writing(path.parent):
        path.parent.mkdir(parents=True, exist_ok=True)
        with draft_folder(path) as draft:
            (folder := draft / path.name).mkdir()
            yield folder
            (replace_folder if path.exists() else os.rename)(folder, path)
            sync_folder(path.parent)


def write_checked(
    server: str, net: tuple[ModelProto, Mapping[str, np.ndarray]], path: str | os.PathLike[str], model: Any, x: Any
) -> float | None:
    """Write a net as "onnx" file, or for the server "triton" or "mlflow".

    Return the largest difference from ``model``'s predictions of records x, None without x.

    ``net`` is the ONNX net of ``model``, with its params. With x, missing ONNX Runtime raises UserError before anything
    is written.
    """
    write, file = SERVERS[server]
    if x is not None:
        onnxruntime_package()
    write(*net, path)
    return None if x is None else greatest_difference(Path(path) / file, model, x)


def onnxruntime_package() -> Any:
    """Return the package onnxruntime; raise UserError if it is not installed."""
    try:
        import onnxruntime
    except ImportError as error:
        raise UserError(f"check= runs the net in ONNX Runtime ({error}): pip install 'dsinga[onnxruntime]'") from None
    return onnxruntime


def greatest_difference(path: str | os.PathLike[str], model: Any, x: Any) -> float:
    """Compare ONNX Runtime's outputs of a file with a model's predictions of x; return the largest difference."""
    package, expected, records = onnxruntime_package(), model.predict(x), given_records(model, x)
    options = package.SessionOptions()
    options.log_severity_level = 3
    try:
        session = package.InferenceSession(os.fspath(path), options, providers=["CPUExecutionProvider"])
        dtypes = {each.name: DTYPES.get(each.type, np.float32) for each in session.get_inputs()}
        outputs = session.run(None, {name: np.asarray(records[name], dtype) for name, dtype in dtypes.items()})
    except Exception as error:  # of a dozen classes, which the package does not name
        raise UserError(f"ONNX Runtime {package.__version__} cannot run {path}: {first_line(error)}") from None
    return max(map(_difference, outputs, expected if len(outputs) > 1 else [expected]))


def _difference(mine: np.ndarray, theirs: np.ndarray) -> float:
    """Return the largest difference between two arrays; equal places of NaN or infinity do not differ."""
    if mine.shape != theirs.shape:
        raise UserError(f"ONNX Runtime gives an output of the shape {mine.shape}, but predict one of {theirs.shape}")
    if mine.dtype.kind not in "biuf":
        return float(np.any(mine != theirs))
    with np.errstate(invalid="ignore"):  # of infinity
        differs = ~np.isclose(mine, theirs, rtol=0, atol=0, equal_nan=True)
        return float(np.max(np.abs(np.subtract(mine, theirs)), where=differs, initial=0.0))


# For each kind of server, the function that writes a net, and the path of the ONNX file in its output.
SERVERS: dict[str, tuple[Callable[..., None], str]] = {
    "onnx": (write_onnx, ""),
    "triton": (write_triton, "1/model.onnx"),
    "mlflow": (write_mlflow, "model.onnx"),
}

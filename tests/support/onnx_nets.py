"""Small ONNX nets for tests, written node by node; the names of a node's tensors are given in a row."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dsinga import nn

onnx = pytest.importorskip("onnx")


def node(operator: str, inputs: str = "x", outputs: str = "y", name: str = "", **attributes: Any) -> Any:
    """Return a node; two spaces in a row leave a tensor out."""
    tensors = (row.split(" ") if row else [] for row in (inputs, outputs))
    return onnx.helper.make_node(operator, *tensors, name, **attributes)


def info(name: str, shape: Any) -> Any:
    """Return the description of an input or output: float32 of a shape, or records like those of an array."""
    kind = onnx.TensorProto.FLOAT
    if isinstance(shape, np.ndarray):
        kind, shape = onnx.helper.np_dtype_to_tensor_dtype(shape.dtype), ["N", *shape.shape[1:]]
    return onnx.helper.make_tensor_value_info(name, kind, shape)


def graph_of(
    nodes: Iterable[Any],
    inputs: Any = None,
    outputs: Any = None,
    arrays: Any = (),
    opset: int = 21,
    domains: Iterable[str] = (),
    ir: int = 10,
    **more: Any,
) -> Any:
    """Return a net from x, (N, 3), to y, or of other inputs and outputs: by name as :func:`info`, or described.

    ``arrays`` are initializers, by name or as tensors.
    """
    given = ({"x": ["N", 3]} if inputs is None else inputs), ({"y": None} if outputs is None else outputs)
    infos = [[info(*each) for each in part.items()] if isinstance(part, dict) else part for part in given]
    if isinstance(arrays, dict):
        arrays = [onnx.numpy_helper.from_array(np.asarray(array), name) for name, array in arrays.items()]
    graph = onnx.helper.make_graph(nodes, "net", *infos, arrays)
    opsets = [onnx.helper.make_opsetid("", opset), *(onnx.helper.make_opsetid(domain, 1) for domain in domains)]
    return onnx.helper.make_model(graph, opset_imports=opsets, ir_version=ir, **more)


def loaded(net: Any, folder: Path, *shapes: Any) -> nn.Model:
    """Return the model of a net for records of these shapes, through a file "net.onnx"."""
    onnx.save(net, folder / "net.onnx")
    return nn.load_onnx(folder / "net.onnx", *shapes)


def session_of(net: Any) -> Any:
    """Return a session of ONNX Runtime for a net, or for a file that ONNX's checker accepts; it logs errors only."""
    runtime = pytest.importorskip("onnxruntime")
    onnx.checker.check_model(net, full_check=True)
    options = runtime.SessionOptions()
    options.log_severity_level = 3
    net = net if isinstance(net, Path) else net.SerializeToString()
    return runtime.InferenceSession(net, options, ["CPUExecutionProvider"])

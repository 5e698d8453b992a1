"""Models from ONNX files: layers, params and outputs are those of the net in the file."""

from __future__ import annotations

import numpy as np
import pytest

from dsinga import nn

onnx = pytest.importorskip("onnx")


def graph_of(nodes, inputs, outputs, arrays):
    """Return a model in ONNX of nodes, with shapes of inputs and outputs by name and initializers."""
    infos = [
        [onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, shape) for name, shape in given.items()]
        for given in (inputs, outputs)
    ]
    tensors = [onnx.numpy_helper.from_array(array, name) for name, array in arrays.items()]
    graph = onnx.helper.make_graph(nodes, "net", *infos, tensors)
    return onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 21)], ir_version=10)


def test_dense_layers_have_the_names_and_params_of_the_file(tmp_path):
    random = np.random.default_rng(0)
    arrays = {
        name: random.normal(size=shape).astype(np.float32)
        for name, shape in {"fc1.weight": (5, 3), "fc1.bias": (5,), "fc2.weight": (2, 5)}.items()
    }
    nodes = [
        onnx.helper.make_node("Gemm", ["x", "fc1.weight", "fc1.bias"], ["h"], transB=1),
        onnx.helper.make_node("Relu", ["h"], ["r"]),
        onnx.helper.make_node("Gemm", ["r", "fc2.weight"], ["y"], transB=1),
    ]
    onnx.save(graph_of(nodes, {"x": ["N", 3]}, {"y": ["N", 2]}, arrays), tmp_path / "net.onnx")
    model = nn.load_onnx(tmp_path / "net.onnx")
    assert {name: value.tolist() for name, value in model.params.items()} == {
        name.replace(".", "_"): array.tolist() for name, array in arrays.items()
    }
    x = random.normal(size=(7, 3)).astype(np.float32)
    expected = np.maximum(x @ arrays["fc1.weight"].T + arrays["fc1.bias"], 0) @ arrays["fc2.weight"].T
    np.testing.assert_allclose(model.predict(x), expected, rtol=1e-5, atol=1e-6)

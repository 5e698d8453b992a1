"""Models from ONNX files: layers, params and outputs are those of the net in the file."""

import numpy as np
import pytest

from dsinga import nn
from dsinga.addons.onnx.naming import layer_name
from tests.support.onnx_nets import graph_of, loaded, node
from tests.support.refusals import refused

onnx = pytest.importorskip("onnx")


def test_dense_layers_have_the_names_and_params_of_the_file(tmp_path):
    random = np.random.default_rng(0)
    arrays = {
        name: random.normal(size=shape).astype(np.float32)
        for name, shape in {"fc1.weight": (5, 3), "fc1.bias": (5,), "fc2.weight": (2, 5)}.items()
    }
    nodes = [
        node("Gemm", "x fc1.weight fc1.bias", "h", transB=1),
        node("Relu", "h", "r"),
        node("Gemm", "r fc2.weight", "y", transB=1),
    ]
    model = loaded(graph_of(nodes, arrays=arrays), tmp_path)
    assert {name: value.tolist() for name, value in model.params.items()} == {
        name.replace(".", "_"): array.tolist() for name, array in arrays.items()
    }
    x = random.normal(size=(7, 3)).astype(np.float32)
    expected = np.maximum(x @ arrays["fc1.weight"].T + arrays["fc1.bias"], 0) @ arrays["fc2.weight"].T
    np.testing.assert_allclose(model.predict(x), expected, rtol=1e-5, atol=1e-6)


def test_a_weight_and_its_transpose_are_one_param(tmp_path):
    random = np.random.default_rng(0)
    arrays = {"code.weight": random.normal(size=(5, 3)).astype(np.float32), "bias": np.ones(5, np.float32)}
    nodes = [
        node("MatMul", "x code.weight", "h"), node("Transpose", "code.weight", "turned", perm=[1, 0]),
        node("MatMul", "h turned", "product"), node("Add", "product bias", "y"),
    ]  # fmt: skip
    model = loaded(graph_of(nodes, {"x": ["N", 5]}, arrays=arrays), tmp_path)
    x = random.normal(size=(7, 5)).astype(np.float32)
    assert sorted(value.shape for value in model.params.values()) == [(3, 5), (5,)]
    expected = x @ arrays["code.weight"] @ arrays["code.weight"].T + 1
    np.testing.assert_allclose(model.predict(x), expected, rtol=1e-5, atol=1e-5)


def test_a_node_called_by_a_slash_and_an_input_without_a_shape(tmp_path):
    nodes = [node("Relu", "x", "y", name="/")]
    refused(lambda: loaded(graph_of(nodes, {"x": None}), tmp_path), "the file does not say", "the input x")
    assert nn.load_onnx(tmp_path / "net.onnx", 2).predict(np.float32([[1, -1]])).tolist() == [[1, 0]]


def test_layers_have_the_names_of_tensorflow_s_modules(tmp_path):
    names = ["net/top/MatMul/ReadVariableOp:0", "net/top/BiasAdd/ReadVariableOp:0"]
    nodes = [
        node("MatMul", f"x {names[0]}", "h", "net/top/MatMul"),
        node("Add", f"h {names[1]}", "z", "net/top/BiasAdd"),
        node("Relu", "z", "y", name="net/top/Relu"),
    ]
    arrays = {names[0]: np.ones((3, 2), np.float32), names[1]: np.ones(2, np.float32)}
    assert loaded(graph_of(nodes, arrays=arrays), tmp_path).params.keys() == {"net.top_weight", "net.top_bias"}


@pytest.mark.parametrize(
    ("module", "params", "name"),
    [
        ("/layer1/layer1.0/conv1/Conv", ["layer1.0.conv1.weight"], "layer1.0.conv1"),
        ("/layer1/layer1.0/conv1/Conv", ["onnx::Conv_193"], "layer1.0.conv1"),
        ("n0", ["gpu_0/conv1_w_0", "gpu_0/conv1_b_0"], "gpu_0.conv1"),
        ("n0", [], "conv"),
        ("node_conv2d_3", ["val_7"], "conv"),
        ("block1", ["dense/kernel"], "dense"),
    ],
)
def test_layers_are_called_as_their_modules(module, params, name):
    assert layer_name(node("Conv", " ".join(["x", *params]), "y", module), params) == name

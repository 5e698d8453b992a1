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


# Recurrent operators of ONNX as layers: names, params and outputs.
reference = pytest.importorskip("onnx.reference")
RANDOM = np.random.default_rng(0)
SIZE, INPUTS = 3, 4


def weights(name, gates, directions=1):
    """Return the params of a recurrent operator, by their names."""
    shapes = {"W": (gates * SIZE, INPUTS), "R": (gates * SIZE, SIZE), "B": (2 * gates * SIZE,)}
    return {f"{name}_{part}": RANDOM.normal(size=(directions, *s)).astype(np.float32) for part, s in shapes.items()}


def imported(folder, nodes, shapes, arrays):
    """Return the file and the model of nodes of inputs with these shapes."""
    file = graph_of(nodes, {name: ["N", *shape] for name, shape in shapes.items()}, arrays=arrays)
    return file, loaded(file, folder)


TURNED = {"perm": [1, 0, 2]}
STATES = [node("Squeeze", "all direction", "steps", ""), node("Transpose", "steps", "y", "", **TURNED)]


def test_a_decoder_begins_with_the_state_of_an_encoder(tmp_path):
    nodes = [
        node("Transpose", "a", "a_steps", "", **TURNED),
        node("Transpose", "b", "b_steps", "", **TURNED),
        node("LSTM", "a_steps enc_W enc_R enc_B", " h c", "/enc/LSTM", **{"hidden_size": SIZE}),
        node("LSTM", "b_steps dec_W dec_R dec_B  h c", "all", "/dec/LSTM", **{"hidden_size": SIZE}),
        *STATES,
    ]
    arrays = {**weights("enc", 4), **weights("dec", 4), "direction": np.array([1])}
    file, model = imported(tmp_path, nodes, {"a": (5, INPUTS), "b": (2, INPUTS)}, arrays)
    a, b = (RANDOM.normal(size=(6, steps, INPUTS)).astype(np.float32) for steps in (5, 2))
    (expected,) = reference.ReferenceEvaluator(file).run(None, {"a": a, "b": b})
    np.testing.assert_allclose(model.predict([a, b]), expected, rtol=1e-5, atol=1e-6)
    assert list(model.params) == [f"{layer}_{role}" for layer in ("enc", "dec") for role in ("hx", "hh", "b", "hb")]
    gates = np.split(arrays["enc_W"][0].astype(np.float32), 4)  # i o f c, of which ours are i f g o
    np.testing.assert_array_equal(model.params["enc_hx"], np.concatenate([gates[0], gates[2], gates[3], gates[1]]))


def test_a_second_recurrent_layer_of_a_module_is_stacked(tmp_path):
    nodes = [
        node("Transpose", "x", "t0", "", **TURNED),
        node("GRU", "t0 one_W one_R one_B", "all0", "/rnn/GRU", **{"hidden_size": SIZE, "linear_before_reset": 1}),
        node("Squeeze", "all0 direction", "t1", ""),
        node("GRU", "t1 two_W two_R two_B", "all", "/rnn/GRU_1", **{"hidden_size": SIZE, "linear_before_reset": 1}),
        *STATES,
    ]
    second = weights("two", 3)
    second["two_W"] = second["two_W"][..., :SIZE]
    second["two_B"][:, 3 * SIZE :] = 0
    arrays = {**weights("one", 3), **second, "direction": np.array([1])}
    file, model = imported(tmp_path, nodes, {"x": (5, INPUTS)}, arrays)
    x = RANDOM.normal(size=(6, 5, INPUTS)).astype(np.float32)
    np.testing.assert_allclose(
        model.predict(x), reference.ReferenceEvaluator(file).run(None, {"x": x})[0], rtol=1e-5, atol=1e-6
    )
    roles = [f"{gate}_{kind}" for kind in ("hx", "hh", "b", "hb") for gate in "zrc"]
    assert list(model.params) == [f"rnn_{role}" for role in roles] + [f"rnn.stacked1_{role}" for role in roles[:9]]


@pytest.mark.parametrize(
    ("op_type", "attributes", "reason"),
    [
        ("GRU", {}, "linear_before_reset 0"),
        ("LSTM", {"clip": 1.0, "input_forget": 1}, "with clip, input_forget"),
        ("RNN", {"activations": ["Relu"]}, "with the activations Relu"),
    ],
)
def test_what_recurrent_layers_lack_is_refused(op_type, attributes, reason, tmp_path):
    arrays = {**weights("rnn", {"LSTM": 4, "GRU": 3, "RNN": 1}[op_type]), "direction": np.array([1])}
    nodes = [
        node("Transpose", "x", "t", "", **TURNED),
        node(op_type, "t rnn_W rnn_R rnn_B", "all", "", **{"hidden_size": SIZE, **attributes}),
        *STATES,
    ]
    refused(lambda: imported(tmp_path, nodes, {"x": (5, INPUTS)}, arrays), reason)

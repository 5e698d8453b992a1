"""Recurrent operators of ONNX as layers: names, params and outputs."""

import numpy as np
import pytest

from tests.support.onnx_nets import graph_of, loaded, node
from tests.support.refusals import refused

onnx = pytest.importorskip("onnx")
reference = pytest.importorskip("onnx.reference")
RANDOM = np.random.default_rng(0)
SIZE, INPUTS = 3, 4


def weights(name, gates, directions=1):
    """Return the params of a recurrent operator, by their names."""
    shapes = {"W": (gates * SIZE, INPUTS), "R": (gates * SIZE, SIZE), "B": (2 * gates * SIZE,)}
    return {
        f"{name}_{part}": RANDOM.normal(size=(directions, *shape)).astype(np.float32) for part, shape in shapes.items()
    }


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

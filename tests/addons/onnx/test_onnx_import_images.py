"""ONNX's convolutions, pooling, normalisations and activations as layers, beside onnxruntime."""

import logging
import zlib

import numpy as np
import pytest

from dsinga import nn
from tests.support.onnx_nets import graph_of, loaded, node
from tests.support.refusals import refused

onnx = pytest.importorskip("onnx")
onnxruntime = pytest.importorskip("onnxruntime")

IMAGES, STEPS = (2, 6, 6), (2, 9)


def numbers(name, *shape):
    """Return random numbers by their name, those of variances above 0."""
    array = np.random.default_rng(zlib.crc32(name.encode())).normal(size=shape).astype(np.float32)
    return np.abs(array) + 0.5 if name == "variance" else array


def net(op_type, rows, inputs=(), version=21, **attributes):
    """Return a net of one operator of records with these rows; ``inputs`` are names with arrays, None for left out."""
    names = [name if array is not None else "" for name, array in inputs]
    return net_of([node(op_type, " ".join(["x", *names]), **attributes)], rows, inputs, version)


def net_of(nodes, rows, inputs=(), version=21):
    """Return a net from x, records with these rows, to y."""
    arrays = {name: array for name, array in inputs if array is not None}
    return graph_of(nodes, {"x": ["N", *rows]}, arrays=arrays, opset=version)


def weights(*shape):
    """Return the inputs of a convolution with these weights, and no bias."""
    return (("conv.weight", numbers("weight", *shape)),)


SCALE = ("n.weight", numbers("scale", 2)), ("n.bias", numbers("bias", 2))
STATISTICS = ("n.running_mean", numbers("mean", 2)), ("n.running_var", numbers("variance", 2))
WINDOW = {"kernel_shape": [3, 2], "strides": [2, 2], "pads": [1, 0, 0, 1]}
SIZES = (("roi", None), ("s", None))
CASES = {
    "conv": ("Conv", IMAGES, (*weights(4, 1, 3, 3), ("conv.bias", numbers("b", 4))), 21, {"group": 2, "pads": [1] * 4}),
    "conv uneven": ("Conv", IMAGES, weights(3, 2, 3, 2), 11, {"pads": [0, 1, 2, 0], "dilations": [2, 1]}),
    "conv upper": ("Conv", IMAGES, weights(3, 2, 3, 3), 11, {"auto_pad": "SAME_UPPER", "strides": [2, 2]}),
    "conv of steps": ("Conv", STEPS, weights(3, 2, 3), 11, {"strides": [2], "pads": [1, 0]}),
    "transposed steps": ("ConvTranspose", STEPS, weights(2, 3, 4), 11, {"strides": [2], "pads": [1, 1]}),
    "max uneven": ("MaxPool", IMAGES, (), 12, WINDOW),
    "max of steps": ("MaxPool", STEPS, (), 12, {"kernel_shape": [3], "dilations": [2]}),
    "mean uneven": ("AveragePool", IMAGES, (), 19, WINDOW),
    "max uneven, rounded up": ("MaxPool", IMAGES, (), 12, {**WINDOW, "ceil_mode": 1}),
    "mean uneven, rounded up": ("AveragePool", IMAGES, (), 19, {**WINDOW, "ceil_mode": 1}),
    "all steps": ("GlobalMaxPool", STEPS, (), 11, {}),
    "batch": ("BatchNormalization", IMAGES, (*SCALE, *STATISTICS), 9, {"epsilon": 1e-3}),
    "layer": ("LayerNormalization", IMAGES, (("n.weight", numbers("w", 6, 6)),), 17, {"axis": -2}),
    "pad of 7": ("Pad", IMAGES, (), 7, {"pads": [0, 0, 1, 0, 0, 1, 0, 2], "mode": "reflect"}),
    "pad of 11": ("Pad", STEPS, (("pads", [0, 1, -2, 0, 0, 1]),), 11, {}),
    "pad of 18": ("Pad", IMAGES, (("pads", [1, 2]), ("v", np.float32(0.5)), ("axes", [-1])), 18, {}),
    "resize of 10": ("Resize", IMAGES, (("scales", np.float32([1, 1, 2, 1.5])),), 10, {}),
    "resize of 19": ("Resize", IMAGES, (*SIZES, ("sizes", [9, 4])), 19, {"axes": [2, 3], "mode": "cubic"}),
    "resize of steps": ("Resize", STEPS, (("roi", None), ("s", np.float32([1, 1, 2]))), 13, {"mode": "linear"}),
    "upsample of 7": ("Upsample", IMAGES, (), 7, {"scales": [1.0, 1.0, 2.0, 3.0]}),
    "upsample of 9": ("Upsample", IMAGES, (("scales", np.float32([1, 1, 2, 2])),), 9, {"mode": "linear"}),
    "clip of 7": ("Clip", IMAGES, (), 7, {"min": -0.5}),
    "clip of 13": ("Clip", IMAGES, (("min", None), ("max", np.float32(0.5))), 13, {}),
    "slopes": ("PRelu", IMAGES, (("act.weight", numbers("s", 2, 1, 1)),), 16, {}),
    "slopes of columns": ("PRelu", IMAGES, (("act.weight", numbers("s", 6)),), 16, {}),
    "dropout of 7": ("Dropout", IMAGES, (), 7, {"ratio": 0.3}),
}


@pytest.mark.parametrize("case", CASES)
def test_operators_compute_what_onnxruntime_does(case, tmp_path):
    op_type, rows, inputs, version, attributes = CASES[case]
    model = net(op_type, rows, inputs, version, **attributes)
    x = numbers("x", 3, *rows)
    (expected,) = onnxruntime.InferenceSession(model.SerializeToString()).run(None, {"x": x})
    np.testing.assert_allclose(loaded(model, tmp_path).predict(x), expected, rtol=1e-5, atol=1e-5)


def test_params_have_the_names_of_the_file_and_train(tmp_path):
    model = loaded(net("BatchNormalization", IMAGES, (*SCALE, *STATISTICS), momentum=0.8), tmp_path)
    assert sorted(model.params) == ["n_bias", "n_mean", "n_scale", "n_variance"]
    np.testing.assert_array_equal(model.params["n_mean"], numbers("mean", 2))
    x = numbers("x", 8, *IMAGES)
    model.compile(optimizer=nn.SGD(0.1), loss="mse")
    model.fit(x, np.zeros_like(x), batch_size=8, epochs=1, verbose=0)
    expected = 0.8 * numbers("mean", 2) + 0.2 * x.mean(axis=(0, 2, 3))
    np.testing.assert_allclose(model.params["n_mean"], expected, rtol=1e-5, atol=1e-6)
    assert (model.params["n_scale"] != numbers("scale", 2)).all()


def test_ones_and_zeros_that_an_exporter_made_up_do_not_train(tmp_path):
    inputs = ("onnx::Instance_1", np.ones(2, np.float32)), ("onnx::Instance_2", np.zeros(2, np.float32))
    model = loaded(net("InstanceNormalization", IMAGES, inputs), tmp_path)
    assert not [layer for layer in model.layers if layer.trainable_weights]


def test_a_group_normalisation_that_pytorch_spells_out_is_one_layer(tmp_path):
    inputs = {"groups": [0, 2, -1], "ones": np.ones(2, np.float32), "zeros": np.zeros(2, np.float32)}
    inputs |= {"gn.weight": numbers("scale", 4, 1, 1), "gn.bias": numbers("bias", 4, 1, 1)}
    rows = [
        "Reshape x groups", "InstanceNormalization Reshape ones zeros", "Shape x",
        "Reshape InstanceNormalization Shape",
    ]  # fmt: skip
    rows += ["Mul y0 gn.weight", "Add Mul gn.bias"]
    outputs = "Reshape", "InstanceNormalization", "Shape", "y0", "Mul", "y"
    nodes = [node(*row.split(" ", 1), y) for row, y in zip(rows, outputs, strict=True)]
    graph, x = net_of(nodes, (4, 3, 5), inputs.items()), numbers("x", 3, 4, 3, 5)
    (expected,) = onnxruntime.InferenceSession(graph.SerializeToString()).run(None, {"x": x})
    model = loaded(graph, tmp_path)
    assert sorted(model.params) == ["gn_bias", "gn_scale"]
    np.testing.assert_allclose(model.predict(x), expected, rtol=1e-5, atol=1e-5)


def test_layers_without_params_leave_names_to_those_with_params(tmp_path):
    pad = node("Pad", "x pads", "h", "/conv/Pad", mode="reflect")
    convolution = node("Conv", "h conv.weight", "y", "/conv/Conv")
    inputs = {"pads": [0, 0, 1, 1, 0, 0, 1, 1], "conv.weight": numbers("w", 3, 2, 3, 3)}
    model = loaded(net_of([pad, convolution], IMAGES, inputs.items()), tmp_path)
    assert [layer.name for layer in model.layers] == ["conv.pad", "conv"]


def test_dropout_of_a_net_exported_in_training_mode_drops(tmp_path):
    inputs = ("ratio", np.float32(0.25)), ("mode", np.bool_(True))
    layers = loaded(net("Dropout", IMAGES, inputs), tmp_path).layers
    assert [layer.settings for layer in layers][-1]["rate"] == 0.25


def test_a_frozen_batch_normalisation_keeps_its_statistics(tmp_path):
    normalised = node("BatchNormalization", " ".join(["x", *(n for n, _ in (*SCALE, *STATISTICS))]), "z")
    nodes = [normalised, node("Flatten", "z", "f")]
    nodes.append(node("LayerNormalization", "f ln.weight", "y"))
    arrays = (*SCALE, *STATISTICS, ("ln.weight", numbers("ln", 72)))
    model = loaded(net_of(nodes, IMAGES, arrays), tmp_path)
    model.get_layer("n").trainable = False
    before = dict(model.params)
    assert before["ln_scale"].shape == IMAGES  # of features that are flattened where they are used
    model.compile("sgd", "mse")
    x = numbers("records", 8, *IMAGES)
    model.fit(x, x.reshape(8, -1), epochs=1, progress=False)
    assert [name for name in before if not np.array_equal(before[name], model.params[name])] == ["ln_scale"]


def test_the_log_says_that_batch_normalisations_are_folded(tmp_path, caplog):
    with caplog.at_level(logging.WARNING):
        loaded(net("Conv", IMAGES, (("onnx::Conv_12", numbers("weight", 3, 2, 1, 1)),)), tmp_path)
    assert [record.getMessage() for record in caplog.records] == [
        "net: the exporter has folded a batch normalisation into 1 layer, so that its statistics no longer move"
    ]


CROP = ("r", None), ("s", np.float32([1, 1, 2, 2]))


@pytest.mark.parametrize(
    ("op_type", "inputs", "attributes", "text"),
    [
        ("Resize", CROP, {"coordinate_transformation_mode": "tf_crop_and_resize"}, "or with tf_crop_and_resize"),
        ("Conv", weights(3, 5, 2, 2), {}, "of 2 channels with params for 5"),
        ("MaxPool", (), {"kernel_shape": [2]}, "whose windows have not 2 axes"),
        ("Pad", (("pads", [0, 0, 10**9, 0, 0, 0, 0, 0]),), {}, "makes more than"),
        ("GridSample", (("grid", numbers("grid", 3, 2, 2, 2)),), {}, "the nearest is kResize"),
        ("LayerNormalization", SCALE[:1], {"axis": 0}, "over the records of a batch"),
    ],
)
def test_what_no_layer_computes_is_refused_by_name(op_type, inputs, attributes, text, tmp_path):
    model = net(op_type, IMAGES, inputs, **attributes)
    refused(lambda: loaded(model, tmp_path), text)

"""Models exported to ONNX give in ONNX Runtime what ``predict`` gives, for batches of any size."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dsinga import nn
from dsinga.addons.onnx.export_graph import ExportedLayer, GraphWriter, Refused
from dsinga.addons.onnx.export_layers_records import lengths_of_codes
from dsinga.addons.onnx.export_net import LAYERS, SAME, finished, write_layer
from dsinga.base.errors import UserError
from dsinga.data import open_records
from dsinga.job import Phase
from dsinga.layers.interface.layer import Layer
from dsinga.ops.interface import NumpyOps
from dsinga.testing import LayerCase
from tests.support.layer_cases import CASES, context
from tests.support.onnx_nets import session_of
from tests.support.refusals import refused

onnx = pytest.importorskip("onnx")
onnxruntime = pytest.importorskip("onnxruntime")

ROWS = 17
Made = tuple[Any, Any]  # a model, and ROWS records or several such arrays by input


def numbers(*shape: int, seed: int = 0) -> np.ndarray:
    """Return ROWS records of random numbers."""
    return np.random.default_rng(seed).normal(size=(ROWS, *shape)).astype(np.float32)


def check(model: Any, x: Any, path: Path) -> Any:
    """Check that the file of a model computes its predictions for 1, 3 and 17 records; return its session.

    Where inputs take any number of steps, records have two steps less, too.
    """
    model.predict(x)  # of which it gets to know the shapes of records
    model.export(path)
    runner = session_of(path)
    records = x if isinstance(x, dict) else {model.input_names()[0]: x}
    batches = [{name: array[:rows] for name, array in records.items()} for rows in (1, 3, ROWS)]
    if any_length := [each.name for each in runner.get_inputs() if str(each.shape[1:2])[2:3] == "T"]:
        batches.append({name: array[:, :-2] if name in any_length else array for name, array in records.items()})
    for batch in batches:
        expected = model.predict(batch if isinstance(x, dict) else next(iter(batch.values())))
        compare(runner, batch, expected if isinstance(expected, list) else [expected])
    return runner


def compare(runner: Any, batch: dict[str, np.ndarray], expected: list[np.ndarray]) -> None:
    """Check the results of a batch."""
    results = runner.run(None, {each.name: batch[each.name] for each in runner.get_inputs()})
    for result, features in zip(results, expected, strict=True):
        assert result.shape == features.shape
        assert result.dtype == features.dtype
        np.testing.assert_allclose(result, features, rtol=1e-5, atol=1e-5)


def images() -> Made:
    layers = [
        nn.Rescaling(1 / 16, -1), nn.Conv2D(4, 3, padding="same", activation="relu"), nn.MaxPooling2D(2),
        nn.BatchNormalization(), nn.Dropout(0.5), nn.Flatten(), nn.Dense(5, activation="softmax"),
    ]  # fmt: skip
    return nn.Sequential([nn.Input((3, 8, 6)), *layers]), 16 * numbers(3, 8, 6)


def channels_last() -> Made:
    layers = [nn.Conv2D(4, 3, padding="same", activation="gelu"), nn.AveragePooling2D(2)]
    return nn.Sequential([nn.Input((8, 6, 3), data_format="channels_last"), *layers]), numbers(8, 6, 3)


def several() -> Made:
    left, right = nn.Input((4,), name="left"), nn.Input((6,), name="right")
    h = nn.Add()([nn.Dense(5, activation="tanh")(left), nn.Dense(5)(right)])
    model = nn.Model([left, right], [nn.Dense(2, name="one")(h), nn.Dropout(0.5, name="two")(h), h * 2])
    return model, {"left": numbers(4), "right": numbers(6, seed=1)}


def per_step() -> Made:
    x = nn.Input((5, 4))
    shared = nn.TimeDistributed(nn.Dense(3, activation="relu"))
    images = nn.TimeDistributed(nn.Conv2D(2, 2))(nn.Reshape([5, 1, 2, 2])(x))
    return nn.Model(x, [nn.Softmax()(shared(x)), nn.LayerNormalization()(shared(x)), images]), numbers(5, 4)


def masked() -> Made:
    x = numbers(6, 3)
    x[1, 3:] = x[2, 1] = 0
    return nn.Sequential([nn.Input((None, 3)), nn.Masking(0.0), nn.Bidirectional(nn.GRU(4))]), x


def masked_codes() -> Made:
    x = np.random.default_rng(0).integers(0, 5, (ROWS, 6)) * (np.arange(6) < 4)
    x[:, 1] = 3
    return nn.Sequential([nn.Input((None,)), nn.Embedding(5, 3, mask_zero=True), nn.LSTM(4)]), x


def shared() -> Made:
    left, right = nn.Input((5, 4), name="left"), nn.Input((5, 4), name="right")
    cell, convolution = nn.LSTM(3), nn.Conv1D(4, 2, padding="same")
    outputs = [nn.Dropout(0.5)(cell(convolution(x))) for x in (left, right)]
    return nn.Model([left, right], outputs), {"left": numbers(5, 4), "right": numbers(5, 4, seed=1)}


def cropped() -> Made:
    image = nn.Input((3, 12, 10), augment=[nn.augment.RandomCrop(size=[8, 6], pad=1)])
    return nn.Sequential([image, nn.Rescaling(2, 1), nn.Conv2D(2, 3)]), numbers(3, 12, 10)


def resized() -> Made:
    image = nn.Input((12, 10, 3), augment=[nn.augment.RandomResizedCrop(size=[6, 6])], data_format="channels_last")
    return nn.Sequential([image, nn.Conv2D(2, 3)]), numbers(12, 10, 3)


def passed_on() -> Made:
    x = nn.Input((5, 4, 3), data_format="channels_last")
    y = nn.ReLU()(x)
    return nn.Model(x, [x, nn.Dropout(0.5)(x), y, y]), numbers(5, 4, 3)


NETS: list[Callable[[], Made]] = [
    images, channels_last, several, per_step, masked, masked_codes, shared, cropped, resized, passed_on,
]  # fmt: skip


@pytest.mark.parametrize("make", NETS, ids=lambda make: make.__name__)
def test_a_file_computes_the_predictions(make, tmp_path):
    check(*make(), tmp_path / "net.onnx")


def test_a_trained_net_keeps_the_names_of_layers_and_params(tmp_path):
    model, x = images()
    model.compile("sgd", "sparse_categorical_crossentropy")
    named = open_records(
        (x, np.array(["a", "b", "c", "d", "e"])[np.arange(ROWS) % 5]), classes=["a", "b", "c", "d", "e"]
    )
    model.fit(named, epochs=1, verbose=0)
    runner = check(model, x, tmp_path / "net.onnx")
    net = onnx.load(tmp_path / "net.onnx")
    weights = {each.name: onnx.numpy_helper.to_array(each) for each in net.graph.initializer}
    for name, param in model.params.items():
        np.testing.assert_array_equal(weights[name].reshape(param.shape), param)
    assert weights["conv2d_weight"].shape == (4, 3, 3, 3)
    assert {"conv2d", "max_pooling2d", "batch_normalization", "dense"} <= {node.name for node in net.graph.node}
    assert [(each.name, each.shape) for each in runner.get_inputs()] == [("data", ["N", 3, 8, 6])]
    assert [(each.name, each.shape) for each in runner.get_outputs()] == [("dense_softmax", ["N", 5])]
    assert (net.ir_version, net.opset_import[0].version) == (10, 21)
    assert runner.get_modelmeta().custom_metadata_map["classes"] == '["a", "b", "c", "d", "e"]'


def test_a_net_cut_in_two_gives_the_same_file(tmp_path):
    model, _ = images()
    model.params  # noqa: B018
    model.export(tmp_path / "whole.onnx")
    model.compile("sgd", "sparse_categorical_crossentropy", cluster=nn.Cluster(workers=2))
    model.export(tmp_path / "cut.onnx")
    assert (tmp_path / "whole.onnx").read_bytes() == (tmp_path / "cut.onnx").read_bytes()


def test_params_that_layers_share_are_there_once(tmp_path):
    model, _ = shared()
    model.export(tmp_path / "net.onnx")
    names = {each.name for each in onnx.load(tmp_path / "net.onnx").graph.initializer}
    assert {name for name in names if "constant" not in name} == {
        "lstm_hx", "lstm_hh", "lstm_b", "conv1d_weight", "conv1d_bias",
    }  # fmt: skip


def test_a_model_of_texts_is_exported_before_and_after_it_is_saved(tmp_path):
    words = nn.Input((None,))
    vectors, lengths = nn.Embedding(9, 4)(words), nn.SequenceLength()(words)
    model = nn.Model(words, nn.Dense(2)(nn.LSTM(3)(vectors, lengths)))
    model.export(tmp_path / "net.onnx")
    assert session_of(tmp_path / "net.onnx").get_inputs()[0].shape == ["N", "T"]
    x = np.random.default_rng(0).integers(0, 9, (ROWS, 6))
    model.compile("sgd", "sparse_categorical_crossentropy")
    model.fit(x, np.arange(ROWS) % 2, epochs=1, verbose=0)
    model.save(tmp_path / "saved")
    loaded = nn.load_model(tmp_path / "saved")
    loaded.export(tmp_path / "loaded.onnx")
    assert not loaded.record_shapes
    compare(session_of(tmp_path / "loaded.onnx"), {"data": x}, [model.predict(x)])
    check(model, x, tmp_path / "net.onnx")


@pytest.mark.slow
def test_functions_of_pytorch_are_traced(tmp_path):
    torch = pytest.importorskip("torch")
    pytest.importorskip("onnxscript")

    class Squashed(nn.Layer):
        def build(self, input_shape):
            self.kernel = self.add_weight(shape=(input_shape[-1], 3), name="kernel")

        def call(self, x):
            return torch.tanh(x @ self.kernel) + torch.tensor([1.0, 2.0, 3.0])

    def joined(pair):
        return torch.cat([torch.sin(pair[0]), pair[1].reshape(-1, 2, 2).sum(2)], 1)

    x = nn.Input((4,))
    y = nn.Lambda(joined, name="joined")([Squashed(name="squashed")(x), x])
    check(nn.Model(x, y), numbers(4), tmp_path / "net.onnx")
    assert "squashed_kernel" in {each.name for each in onnx.load(tmp_path / "net.onnx").graph.initializer}
    by_len = nn.Lambda(lambda a: torch.sin(a).reshape(len(a), 2, 2), name="by_len")(x)
    refused(lambda: nn.Model(x, by_len).export(tmp_path / "net.onnx"), "'by_len'", "does not export")


def by_numpy(x):
    return np.sin(np.asarray(x, np.float32))


def test_what_cannot_be_exported_is_named_and_nothing_is_written(tmp_path):
    x = nn.Input((4,))
    model = nn.Model(x, nn.Lambda(by_numpy, name="first")(nn.Lambda(by_numpy, name="second")(x)))
    refused(lambda: model.export(tmp_path / "net.onnx"), "'second'", r"'first' \(kFunction")
    refused(lambda: images()[0].export(tmp_path / "net.onnx", opset=9), "opset is 9", "this version of")
    refused(lambda: images()[0].export(tmp_path / "net.onnx", opset="21"), "opset is '21'")
    assert not (tmp_path / "net.onnx").exists()


def test_an_input_called_as_a_param_is_refused(tmp_path):
    x = nn.Input((4,), name="dense_weight")
    with pytest.raises(UserError, match="the input 'dense_weight' is called as a param"):
        nn.Model(x, nn.Dense(2, name="dense")(x)).export(tmp_path / "net.onnx")


@pytest.mark.parametrize(
    "settings",
    [
        {"coordinates": "kAlignCorners", "scale": [1.5, 0.7]},
        {"coordinates": "kAlignCorners", "scale": [1.5], "method": "kNearest"},
        {"scale": [0.29], "size": []},
        {"size": [3, 4], "exclude_outside": True},
        {"size": [3, 4], "exclude_outside": True, "method": "kNearest"},
    ],
    ids=str,
)
def test_images_are_resized_as_by_onnxruntime_or_point_by_point(settings, tmp_path):
    model = nn.Sequential([nn.Input((2, 7, 100)), nn.Layer("kResize", **settings)])
    check(model, numbers(2, 7, 100), tmp_path / "net.onnx")


# Layers written as ONNX nodes compute in ONNX Runtime what they compute in dsinga: all cases of the layer contract.
pytest.importorskip("onnxruntime")

REFUSED = {
    "kConcate-rows": "joins batches", "kSlice-rows": "cuts the batch", "kDropout-member": "draws a member",
    "kDummy-input": "makes random numbers", "kRNNDummy-codes": "makes random numbers",
    "kPooling1D-FIRST windows": "by lengths", "kPooling1D-LAST windows": "by lengths",
}  # fmt: skip
WITHOUT = REFUSED.keys() | {"kDropout-member image", "kDropout-member rows", "kRNNDummy-numbers"}
WITHOUT |= {"kGRU-carry", "kLSTM-carry", "kRNN-carry"}  # a state that training alone has
assert LAYERS.keys() >= {"kInnerProduct", "kConvolution", "kGRU", "kArgSort"}
EXPORTED = [case for case in CASES if SAME.get(case.kind, case.kind) in LAYERS and str(case) not in WITHOUT]


def run(net: Any, feeds: dict[str, np.ndarray]) -> list[np.ndarray]:
    """Return what ONNX Runtime computes of a net."""
    proto = net.model
    proto.graph.initializer.extend(onnx.numpy_helper.from_array(array, name) for name, array in net.weights.items())
    session = session_of(proto)
    return list(session.run(None, {each.name: feeds[each.name] for each in session.get_inputs()}))


def written(case: LayerCase, layer: Layer, params: list[np.ndarray], sources: list[np.ndarray]) -> Any:
    """Return the net of one layer, whose inputs are its sources."""
    names = [spec.role for spec in layer.params]
    graph = GraphWriter(dict(zip(names, params, strict=True)))
    inputs = [graph.unique(f"source{k}") for k in range(len(sources))]
    graph.integers.update(name for name, x in zip(inputs, sources, strict=True) if x.dtype == np.int64)
    w = ExportedLayer(graph, layer, names, inputs, [None] * len(inputs), sources[0].ndim if sources else 0)
    w.lengths = [lengths_of_codes(w, name) if k == layer.labels.source else None for k, name in enumerate(inputs)]
    parts = write_layer(w)
    outputs = parts if isinstance(parts, list) else [parts]
    outputs = [graph.node("Identity", [value], f"output{k}")[0] for k, value in enumerate(outputs)]
    graph.integers.update(f"output{k}" for k, value in enumerate(parts if isinstance(parts, list) else [parts])
                          if value in graph.integers)  # fmt: skip
    graph.keep(outputs)
    shapes = layer.part_shapes or [layer.shape]
    ends = [(name, x.shape[1:]) for name, x in zip(inputs, sources, strict=True) if graph.takes(name)]
    return finished(graph, ends, [(name, shape[1:]) for name, shape in zip(outputs, shapes, strict=True)])


@pytest.mark.parametrize("case", EXPORTED, ids=str)
def test_a_layer_computes_the_same_in_onnxruntime(case):
    layer, ops = case.layer(), NumpyOps()
    params, sources = case.inputs(ops, np.float32)
    expected = layer.compute_feature(params, sources, context(ops, Phase.kTest)).feature
    results = run(written(case, layer, params, sources), {f"source{k}": x for k, x in enumerate(sources)})
    for result, feature in zip(results, expected if isinstance(expected, tuple) else [expected], strict=True):
        assert result.dtype == feature.dtype
        np.testing.assert_allclose(result, feature, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("case", [case for case in CASES if str(case) in REFUSED], ids=str)
def test_a_layer_that_is_refused_says_why(case):
    layer = case.layer()
    params, sources = case.inputs(NumpyOps(), np.float32)
    refused(lambda: written(case, layer, params, sources), REFUSED[str(case)], error=Refused)

"""Nets for servers: Triton's model repository, MLflow's models, and the comparison with ONNX Runtime."""

import json
import os
import re
import sys

import numpy as np
import pytest

from dsinga import nn
from dsinga.addons.onnx.files import read_onnx, tensor_array
from dsinga.addons.onnx.serving import greatest_difference, write_mlflow, write_triton
from dsinga.addons.onnx.written_files import write_onnx
from dsinga.base.errors import UserError
from tests.support.onnx_nets import graph_of, node
from tests.support.refusals import refused

onnx = pytest.importorskip("onnx")
from onnx import TensorProto, helper, numpy_helper  # noqa: E402

PARAMS = {"w": np.arange(12, dtype=np.float32).reshape(3, 4), "b": np.ones(4, np.float32)}
ROWS = np.random.default_rng(0).normal(size=(17, 3)).astype(np.float32)


def make_net():
    """Return a net of ONNX without its params: y = x @ w + b, and the sums of codes of any number of steps."""
    nodes = [
        node("Gemm", "x w b", "y", "dense"),
        node("ReduceSum", "codes", "all", keepdims=0),
        node("Mul", "one all", "sums"),
    ]
    values = {"x": ("FLOAT", ["N", 3]), "codes": ("INT64", ["N", "T"]), "one": ("INT64", ["N"])}
    results = {"y": ("FLOAT", ["N", 4]), "sums": ("INT64", ["N"])}
    inputs, outputs = (
        [helper.make_tensor_value_info(name, TensorProto.DataType.Value(kind), shape) for name, (kind, shape) in each]
        for each in (values.items(), results.items())
    )
    graph = helper.make_graph(nodes, "net", inputs, outputs)
    net = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    helper.set_model_props(net, {"dsinga": "1", "classes": json.dumps(["cat", "dog"])})
    return net


def files_of(folder):
    """Return the paths of the files below a folder."""
    return sorted(os.path.relpath(os.path.join(top, name), folder) for top, _, n in os.walk(folder) for name in n)


CONFIG = """name: "digits"
platform: "onnxruntime_onnx"
max_batch_size: 64
input [
  {
    name: "x"
    data_type: TYPE_FP32
    dims: [ 3 ]
  },
  {
    name: "codes"
    data_type: TYPE_INT64
    dims: [ -1 ]
  },
  {
    name: "one"
    data_type: TYPE_INT64
    dims: [ 1 ]
    reshape { shape: [ ] }
  }
]
output [
  {
    name: "y"
    data_type: TYPE_FP32
    dims: [ 4 ]
  },
  {
    name: "sums"
    data_type: TYPE_INT64
    dims: [ 1 ]
    reshape { shape: [ ] }
  }
]
dynamic_batching { }
"""


def test_tritons_repository(tmp_path):
    folder = tmp_path / "models" / "digits"
    write_triton(make_net(), PARAMS, folder)
    assert files_of(tmp_path) == ["models/digits/1/model.onnx", "models/digits/config.pbtxt"]
    assert (folder / "config.pbtxt").read_text() == CONFIG
    onnx.checker.check_model(folder / "1" / "model.onnx", full_check=True)


@pytest.mark.ci
def test_an_earlier_export_is_replaced_and_nothing_else(tmp_path):
    folder = tmp_path / "digits"
    write_triton(make_net(), PARAMS, folder)
    (folder / "1" / "model.onnx.data").write_text("of an earlier net")
    write_triton(make_net(), PARAMS, folder)
    assert files_of(tmp_path) == ["digits/1/model.onnx", "digits/config.pbtxt"]
    (other := tmp_path / "mine").mkdir()
    (other / "thesis.txt").write_text("years of work")
    for write, mark in ((write_triton, "config.pbtxt"), (write_mlflow, "MLmodel")):
        with pytest.raises(UserError, match=rf"mine is there, and has no {mark} .* name a new folder"):
            write(make_net(), PARAMS, other)
    assert files_of(other) == ["thesis.txt"]


def test_mlflow_reads_and_runs_its_model(tmp_path):
    pytest.importorskip("onnxruntime")
    mlflow = pytest.importorskip("mlflow")
    folder = tmp_path / "model"
    for _ in range(2):  # the second replaces the first
        write_mlflow(make_net(), PARAMS, folder)
    assert "MLmodel" in files_of(folder)
    assert os.listdir(tmp_path) == ["model"]
    assert str(tmp_path) not in (folder / "MLmodel").read_text()
    loaded = mlflow.onnx.load_model(str(folder))
    assert [tensor.name for tensor in loaded.graph.initializer] == ["w", "b"]
    info = mlflow.models.get_model_info(str(folder))
    assert info.metadata["classes"] == '["cat", "dog"]'
    assert [(each.name, each.shape, each.type.name) for each in info.signature.inputs] == [
        ("x", (-1, 3), "float32"), ("codes", (-1, -1), "int64"), ("one", (-1,), "int64"),
    ]  # fmt: skip
    assert [(each.name, each.shape) for each in info.signature.outputs] == [("y", (-1, 4)), ("sums", (-1,))]
    server = mlflow.pyfunc.load_model(str(folder))
    outputs = server.predict({"x": ROWS, "codes": np.ones((17, 5), np.int64), "one": np.ones(17, np.int64)})
    assert np.allclose(outputs["y"], ROWS @ PARAMS["w"] + PARAMS["b"], atol=1e-5)


def dense_net():
    """Return the net of ONNX of a dense layer."""
    return graph_of([node("Gemm", "x w b", "y", "dense")], outputs={"y": ["N", 4]})


@pytest.fixture
def model():
    """Return the model of that net."""
    x = nn.Input(3, name="x")
    model = nn.Model(x, nn.Dense(4, name="dense")(x))
    model.params = {"dense_weight": PARAMS["w"].T, "dense_bias": PARAMS["b"]}
    return model


def test_records_to_check_are_those_of_predict(tmp_path, model):
    pytest.importorskip("onnxruntime")
    texts = ["a b c", "b c d", "a"]
    words = nn.TextVectorization(max_tokens=9, output_sequence_length=4)
    words.adapt(texts)
    net = nn.Sequential([words, nn.Embedding(9, 3), nn.GlobalAveragePooling1D()])
    assert net.export(tmp_path / "texts.onnx", check=texts) < 1e-5
    x, y = nn.Input((2,), name="x"), nn.Input((2,), name="y")
    with pytest.raises(UserError, match="x needs 2 sources, one for each of x, y, not 1"):
        nn.Model([x, y], nn.Add()([x, y])).export(tmp_path / "two.onnx", check=[np.zeros((3, 2), np.float32)])


def test_the_greatest_difference_from_onnx_runtime(tmp_path, model):
    pytest.importorskip("onnxruntime")
    write_onnx(dense_net(), PARAMS, tmp_path / "net.onnx")
    for x in (ROWS, {"x": ROWS}, ROWS[:1], ROWS[:0]):
        assert greatest_difference(tmp_path / "net.onnx", model, x) < 1e-5
    write_onnx(dense_net(), {**PARAMS, "b": PARAMS["b"] + np.float32([0, 0, 0.5, 0])}, tmp_path / "net.onnx")
    assert greatest_difference(tmp_path / "net.onnx", model, ROWS) == pytest.approx(0.5, abs=1e-5)
    write_onnx(dense_net(), PARAMS | {"b": np.float32([np.inf, np.inf, -np.inf, 1])}, tmp_path / "net.onnx")
    assert greatest_difference(tmp_path / "net.onnx", model, ROWS) == np.inf
    model.params = {**model.params, "dense_bias": np.float32([np.inf, np.inf, -np.inf, 1])}
    assert greatest_difference(tmp_path / "net.onnx", model, ROWS) < 1e-5


def test_what_onnx_runtime_does_not_run_is_a_sentence(tmp_path, model):
    pytest.importorskip("onnxruntime")
    (path := tmp_path / "net.onnx").write_bytes(b"no net")
    with pytest.raises(UserError, match=rf"^ONNX Runtime [\d.]+ cannot run {re.escape(str(path))}: [^\n]*$"):
        greatest_difference(path, model, ROWS)


@pytest.mark.parametrize(
    ("package", "act", "words"),
    [
        ("onnx", lambda model: model.export("net.onnx"), r"dsinga\[onnx\]"),
        ("onnx", lambda model: nn.load_onnx("net.onnx"), r"dsinga\[onnx\]"),
        ("onnxruntime", lambda model: model.export("net.onnx", check=ROWS), r"dsinga\[onnxruntime\]"),
        ("mlflow", lambda model: write_mlflow(make_net(), PARAMS, "net"), r"dsinga\[mlflow,dataframe\]"),
    ],
)
def test_a_package_that_is_missing_is_named_before_anything_is_written(
    tmp_path, monkeypatch, model, package, act, words
):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, package, None)
    refused(lambda: act(model), f"{words}'$")
    assert os.listdir(tmp_path) == []


# ONNX files that are written: their bytes, in one file or two, which take the place of earlier ones together.
LARGE = np.arange(3000, dtype=np.float32).reshape(3, 1000)
SMALL = {"w": LARGE, "b": np.ones(3, np.float32), "s": np.float32([[2.0]])}


def make_small_net(operator="Mul"):
    """Return a net of ONNX without its params: y = s (x w' + b)."""
    return graph_of([node("Gemm", "x w b", "h"), node(operator, "h s")], outputs={"y": ["N", 1000]})


@pytest.mark.parametrize("apart", [False, True])
def test_what_is_written_is_read(tmp_path, apart):
    params = {**SMALL, "t": np.asfortranarray(SMALL["w"])}
    path = tmp_path / "new" / "net.onnx"
    write_onnx(make_small_net(), params, path, 10 if apart else 10**9)
    assert sorted(os.listdir(path.parent)) == ["net.onnx", *["net.onnx.data"] * apart]
    net = read_onnx(path)[0]
    read = {tensor.name: tensor_array(tensor, path.parent) for tensor in net.graph.initializer}
    assert read.keys() == params.keys()
    for name, array in params.items():
        assert read[name].dtype == np.float32
        assert (read[name] == array).all()
    own = onnx.load(path)
    assert {tensor.name: numpy_helper.to_array(tensor).sum() for tensor in own.graph.initializer}["w"] == 4498500


def test_a_net_takes_the_place_of_both_files_of_an_earlier_one_or_of_none(tmp_path):
    path = tmp_path / "net.onnx"
    write_onnx(make_small_net(), SMALL, path, external=10)
    before = {name: (tmp_path / name).read_bytes() for name in os.listdir(tmp_path)}
    refused(lambda: write_onnx(make_small_net("Nope"), SMALL, path), "onnx would not be as", "ONNX says")
    assert {name: (tmp_path / name).read_bytes() for name in os.listdir(tmp_path)} == before
    write_onnx(make_small_net(), SMALL, path)
    assert os.listdir(tmp_path) == ["net.onnx"]


def test_a_folder_in_the_place_of_a_file_is_left_alone(tmp_path):
    (tmp_path / "net.onnx").mkdir()
    (tmp_path / "other.onnx.data").mkdir()
    for name, words in (("net.onnx", "net.onnx is a folder; name a file"), ("other.onnx", "data is a folder")):
        with pytest.raises(UserError, match=words):
            write_onnx(make_small_net(), SMALL, tmp_path / name)
    refused(lambda: write_onnx(make_small_net(), SMALL, ""), "is a folder")
    assert sorted(os.listdir(tmp_path)) == ["net.onnx", "other.onnx.data"]


def test_the_name_of_another_format_is_refused(tmp_path):
    refused(lambda: write_onnx(make_small_net(), SMALL, tmp_path / "net.pb"), "net.pb", "name it net.onnx")

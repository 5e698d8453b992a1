"""Damaged files of whole nets: nn.load_onnx refuses them in a sentence, or they are other nets."""

import contextlib
import functools
import resource

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dsinga import nn
from dsinga.addons.onnx.export_net import model_to_onnx
from dsinga.base.errors import UserError

onnx = pytest.importorskip("onnx")
from onnx import TensorProto, helper, numpy_helper  # noqa: E402


def images():
    x = nn.Input((3, 8, 8))
    y = nn.MaxPooling2D(2)(nn.ReLU()(nn.Conv2D(4, 3)(x)))
    return nn.Model(x, nn.Softmax()(nn.Dense(5)(nn.Flatten()(y))))


def sequences():
    x = nn.Input((5, 4))
    return nn.Model(x, nn.Dense(2)(nn.LSTM(3)(x)))


def codes():
    x = nn.Input((5,))
    return nn.Model(x, nn.Dense(2)(nn.GRU(3)(nn.Embedding(10, 4)(x))))


@functools.cache
def content(make):
    """Return the bytes of the ONNX file of a model."""
    model, params = model_to_onnx(make())
    model.graph.initializer.extend(numpy_helper.from_array(array, name) for name, array in params.items())
    return model.SerializeToString()


@pytest.mark.parametrize("make", [images, sequences, codes])
@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_damaged_nets_are_refused_or_are_others(tmp_path, make, data):
    damaged = bytearray(content(make))
    for _ in range(data.draw(st.integers(1, 3))):
        damaged[data.draw(st.integers(0, len(damaged) - 1))] = data.draw(st.integers(0, 255))
    (path := tmp_path / "net.onnx").write_bytes(damaged)
    with contextlib.suppress(UserError):
        nn.load_onnx(path)


def test_a_node_whose_attributes_do_not_fit_is_named(tmp_path):
    nodes = [helper.make_node("Transpose", ["x"], ["y"], "turned", perm=[0, 7])]
    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["N", 3]) for name in "xy"]
    graph = helper.make_graph(nodes, "net", values[:1], values[1:])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10), tmp_path / "n.onnx")
    with pytest.raises(UserError, match=r"n has what no layer computes: turned \(Transpose\) whose attributes"):
        nn.load_onnx(tmp_path / "n.onnx")


def constant(name, *numbers):
    return numpy_helper.from_array(np.array(numbers), name)


def doubled(first, axis):
    """Return nodes that double a value 60 times."""
    names = [first, *(f"d{number}" for number in range(60))]
    return [helper.make_node("Concat", [a, a], [b], axis=axis) for a, b in zip(names, names[1:], strict=False)]


def save(nodes, tensors, path):
    """Write a net from x to y."""
    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["N", 3]) for name in "xy"]
    graph = helper.make_graph(nodes, "net", values[:1], values[1:], tensors)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10), path)


LAST = helper.make_node("Add", ["x", "d59"], ["y"])
HUGE, WIDTH = 10**15, 1 << 14
FILLED = helper.make_node("ConstantOfShape", ["s"], ["f"], value=helper.make_tensor("", TensorProto.FLOAT, [1], [1]))
SUMS = [helper.make_node("ReduceSum", ["f"], [f"r{number}"]) for number in range(99)]
SUMS.append(helper.make_node("Sum", [f"r{number}" for number in range(99)], ["d59"]))
ROW = numpy_helper.from_array(np.zeros((1, WIDTH), bool), "t")
TEXT = helper.make_node("Constant", [], ["t"], value_strings=[b"a" * 60])
SEEN = helper.make_node("Where", ["b", "x", "x"], ["y"])
RANGE = [numpy_helper.from_array(np.array(number), name) for name, number in (("a", 0), ("b", HUGE), ("c", 1))]


@pytest.mark.parametrize(
    ("nodes", "tensors", "words"),
    [
        ([helper.make_node("ConstantOfShape", ["s"], ["d59"]), LAST], [constant("s", HUGE, 2)], "ConstantOfShape that"),
        ([helper.make_node("Range", ["a", "b", "c"], ["d59"]), LAST], RANGE, "Range that makes more"),
        ([helper.make_node("Expand", ["x", "s"], ["y"])], [constant("s", 1, HUGE)], "Expand"),
        ([helper.make_node("Tile", ["x", "s"], ["y"])], [constant("s", 1, HUGE)], "Tile"),
        ([helper.make_node("Pad", ["x", "s"], ["y"])], [constant("s", 0, HUGE, 0, HUGE)], "Pad"),
        ([helper.make_node("Gather", ["x", "s"], ["y"], axis=1)], [constant("s", HUGE)], "indices beyond its 3 parts"),
        ([*doubled("s", 0), LAST], [numpy_helper.from_array(np.ones(10**5, np.float32), "s")], "grow without bounds"),
        ([FILLED, *SUMS, LAST], [constant("s", 1 << 25)], "grow without bounds"),
        ([FILLED, helper.make_node("MatMul", ["x", "f"], ["y"])], [constant("s", 3, 1 << 25)], "grow without bounds"),
        (
            [FILLED, helper.make_node("Where", ["t", "f", "x"], ["y"])],
            [constant("s", WIDTH, 1), ROW],
            "Where that makes",
        ),
        ([helper.make_node("Add", ["s", "t"], ["d59"]), LAST], [constant("s", *[[0]] * WIDTH), ROW], "Add that makes"),
        (
            [helper.make_node("Gather", ["s", "t"], ["d59"]), LAST],
            [constant("s", *[[0] * 9999]), ROW],
            "Gather that makes",
        ),
        (
            [TEXT, helper.make_node("RegexFullMatch", ["t"], ["b"], pattern="(a*)*b"), SEEN],
            [],
            "RegexFullMatch of const",
        ),
        ([TEXT, helper.make_node("StringSplit", ["t"], ["b", "n"], delimiter="a"), SEEN], [], "StringSplit of const"),
        ([helper.make_node("ImageDecoder", ["s"], ["b"]), SEEN], [constant("s", 1)], "ImageDecoder of"),
    ],
)
def test_small_files_that_ask_for_much_memory(tmp_path, nodes, tensors, words):
    if tensors == "abc":
        tensors = [
            numpy_helper.from_array(np.array(number), name) for name, number in zip("abc", (0, HUGE, 1), strict=True)
        ]
    save(nodes, tensors, tmp_path / "n.onnx")
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(UserError, match=words):
        nn.load_onnx(tmp_path / "n.onnx")
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss < peak + (300 << 10)


def test_long_files_become_models_in_linear_time_or_are_refused(tmp_path):
    letters = "n" * 10**5
    weight, names = numpy_helper.from_array(np.ones((3, 3), np.float32), f"{letters}w"), ["x", *map(str, range(19_999))]
    steps = [helper.make_node("Relu", [a], [b]) for a, b in zip(names, [*names[1:], "y"], strict=True)]
    named = [
        helper.make_node("MatMul", ["x", f"{letters}w"], ["h"], letters),
        helper.make_node("Relu", ["h"], ["y"], letters),
    ]
    for nodes, words in (
        ([helper.make_node("Sum", ["x"] * 4000, ["y"])], ""),
        (named, ""),
        (steps, "20,000 nodes, but a net may have 4,000 layers"),
        ([helper.make_node("Max", ["x"] * 9000, ["y"])], "Max of 9,000 tensors"),
        ([helper.make_node(letters, ["x"], ["y"], letters)], "No Op registered for"),
    ):
        save(nodes, [weight], tmp_path / "n.onnx")
        if not words:
            model = nn.load_onnx(tmp_path / "n.onnx")
            assert np.abs(model.predict(np.ones((2, 3), np.float32)) - (4000 if model.params == {} else 3)).max() == 0
            continue
        with pytest.raises(UserError, match=words) as caught:
            nn.load_onnx(tmp_path / "n.onnx")
        assert len(str(caught.value)) < 1000


def test_functions_that_write_out_many_bytes(tmp_path):
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("own", 1)]
    body = [helper.make_node("Relu", ["a"], ["n" * 10**5]), helper.make_node("Relu", ["n" * 10**5], ["b"])]
    function = helper.make_function("own", "f", ["a"], ["b"], body, opsets)
    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["N", 3]) for name in "xy"]
    names = ["x", *map(str, range(999)), "y"]
    nodes = [helper.make_node("f", [a], [b], domain="own") for a, b in zip(names, names[1:], strict=False)]
    graph = helper.make_graph(nodes, "net", values[:1], values[1:])
    model = helper.make_model(graph, opset_imports=opsets, ir_version=10, functions=[function])
    onnx.save(model, tmp_path / "n.onnx")
    with pytest.raises(UserError, match="nodes of more than 67,108,864 bytes"):
        nn.load_onnx(tmp_path / "n.onnx")


def message(number, content):
    """Return the bytes of a field of protobuf that is a message, shorter than 2**21."""
    size = len(content)
    return bytes([number << 3 | 2, size & 127 | 128, size >> 7 & 127 | 128, size >> 14]) + content


@pytest.mark.parametrize(("depth", "words"), [(20, "control flow"), (20_000, "not an ONNX file")])
def test_graphs_in_graphs_without_an_end(tmp_path, depth, words):
    graph = b""
    for _ in range(depth):
        graph = message(1, message(5, message(6, graph)))  # of a node, of an attribute
    (path := tmp_path / "net.onnx").write_bytes(b"\x08\x0a" + message(7, graph) + message(8, b"\x10\x15"))
    with pytest.raises(UserError, match=words):
        nn.load_onnx(path)

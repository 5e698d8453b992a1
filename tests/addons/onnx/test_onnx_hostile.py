"""Damaged files of whole nets: nn.load_onnx refuses them in a sentence, or they are other nets."""

import resource

import numpy as np
import pytest

from dsinga import nn
from dsinga.base.errors import UserError
from tests.support.onnx_nets import graph_of, loaded, node
from tests.support.refusals import refused

onnx = pytest.importorskip("onnx")
from onnx import TensorProto, helper  # noqa: E402


def test_mistakes_are_named_with_their_remedies(tmp_path) -> None:
    with pytest.raises(UserError, match=r"net has what no layer computes: turned \(Transpose\) whose attributes"):
        loaded(graph_of([node("Transpose", "x", "y", "turned", perm=[0, 7])]), tmp_path)
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("own", 1)]
    body = [node("Relu", "a", "n" * 10**5), node("Relu", "n" * 10**5, "b")]
    function = helper.make_function("own", "f", ["a"], ["b"], body, opsets)
    names = ["x", *map(str, range(999)), "y"]
    nodes = [node("f", a, b, domain="own") for a, b in zip(names, names[1:], strict=False)]
    with pytest.raises(UserError, match="nodes of more than 67,108,864 bytes"):
        loaded(graph_of(nodes, domains=["own"], functions=[function]), tmp_path)


def doubled(first, axis):
    """Return nodes that double a value 60 times."""
    names = [first, *(f"d{number}" for number in range(60))]
    return [node("Concat", f"{a} {a}", b, axis=axis) for a, b in zip(names, names[1:], strict=False)]


LAST = node("Add", "x d59", "y")
HUGE, WIDTH = 10**15, 1 << 14
FILLED = node("ConstantOfShape", "s", "f", value=helper.make_tensor("", TensorProto.FLOAT, [1], [1]))
SUMS = [node("ReduceSum", "f", f"r{number}") for number in range(99)]
SUMS.append(node("Sum", " ".join(f"r{number}" for number in range(99)), "d59"))
ROW = np.zeros((1, WIDTH), bool)
TEXT = node("Constant", "", "t", value_strings=[b"a" * 60])
SEEN = node("Where", "b x x", "y")
RANGE = {"a": 0, "b": HUGE, "c": 1}


@pytest.mark.parametrize(
    ("nodes", "arrays", "words"),
    [
        ([node("ConstantOfShape", "s", "d59"), LAST], {"s": [HUGE, 2]}, "ConstantOfShape that"),
        ([node("Range", "a b c", "d59"), LAST], RANGE, "Range that makes more"),
        ([node("Expand", "x s", "y")], {"s": [1, HUGE]}, "Expand"),
        ([node("Tile", "x s", "y")], {"s": [1, HUGE]}, "Tile"),
        ([node("Pad", "x s", "y")], {"s": [0, HUGE, 0, HUGE]}, "Pad"),
        ([node("Gather", "x s", "y", axis=1)], {"s": [HUGE]}, "indices beyond its 3 parts"),
        ([*doubled("s", 0), LAST], {"s": np.ones(10**5, np.float32)}, "grow without bounds"),
        ([FILLED, *SUMS, LAST], {"s": [1 << 25]}, "grow without bounds"),
        ([FILLED, node("MatMul", "x f", "y")], {"s": [3, 1 << 25]}, "grow without bounds"),
        ([FILLED, node("Where", "t f x", "y")], {"s": [WIDTH, 1], "t": ROW}, "Where that makes"),
        ([node("Add", "s t", "d59"), LAST], {"s": [[0]] * WIDTH, "t": ROW}, "Add that makes"),
        ([node("Gather", "s t", "d59"), LAST], {"s": [[0] * 9999], "t": ROW}, "Gather that makes"),
        ([TEXT, node("RegexFullMatch", "t", "b", pattern="(a*)*b"), SEEN], {}, "RegexFullMatch of const"),
        ([TEXT, node("StringSplit", "t", "b n", delimiter="a"), SEEN], {}, "StringSplit of const"),
        ([node("ImageDecoder", "s", "b"), SEEN], {"s": [1]}, "ImageDecoder of"),
    ],
)
def test_small_files_that_ask_for_much_memory(tmp_path, nodes, arrays, words):
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    refused(lambda: loaded(graph_of(nodes, arrays=arrays), tmp_path), words)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss < peak + (300 << 10)


def test_long_files_become_models_in_linear_time_or_are_refused(tmp_path):
    letters = "n" * 10**5
    weight, names = {f"{letters}w": np.ones((3, 3), np.float32)}, ["x", *map(str, range(19_999))]
    steps = [node("Relu", a, b) for a, b in zip(names, [*names[1:], "y"], strict=True)]
    named = [node("MatMul", f"x {letters}w", "h", letters), node("Relu", "h", "y", letters)]
    for nodes, words in (
        ([node("Sum", " ".join("x" * 4000))], ""),
        (named, ""),
        (steps, "20,000 nodes, but a net may have 4,000 layers"),
        ([node("Max", " ".join("x" * 9000))], "Max of 9,000 tensors"),
        ([node(letters, "x", "y", letters)], "No Op registered for"),
    ):
        net = graph_of(nodes, arrays=weight)
        if not words:
            model = loaded(net, tmp_path)
            assert np.abs(model.predict(np.ones((2, 3), np.float32)) - (4000 if model.params == {} else 3)).max() == 0
            continue
        with pytest.raises(UserError, match=words) as caught:
            loaded(net, tmp_path)
        assert len(str(caught.value)) < 1000


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
    refused(lambda: nn.load_onnx(path), words)

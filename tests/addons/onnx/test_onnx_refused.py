"""ONNX nets that cannot be models: each is refused in one sentence that names its nodes, before anything is made."""

import resource
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper

from dsinga import nn
from dsinga.base.errors import UserError
from tests.support.onnx_nets import graph_of, loaded, node
from tests.support.refusals import refused


def integers(*numbers: int) -> np.ndarray:
    """Return a constant of integers, as shapes and axes are."""
    return np.array(numbers, np.int64)


def numbers(*shape: int) -> np.ndarray:
    """Return a constant of different numbers."""
    return np.arange(np.prod(shape), dtype=np.float32).reshape(shape)


UNFIT = "net.onnx: its nodes do not fit together .*node name: "
# The nodes from x to y, the shape of x, the initializers, and what is said.
NETS: dict[str, tuple[list[Any], list[Any], dict[str, np.ndarray], str]] = {
    "operators without layers, all at once": (
        [node("Det", "x", "a", "first"), node("Ceil", "a", "b", "second"), node("NonZero", "b", "y", "third")],
        ["N", 3, 3], {},
        r"computes: first \(Det\); second \(Ceil\) \(the nearest is nn.Lambda .*\); third \(NonZero\); docs/",
    ),
    "softmax over the records": ([node("Softmax", "x", "y", "s", axis=0)], ["N", 3], {}, r"s \(Softmax\) .*batch"),
    "mean over the records": ([node("ReduceMean", "x axes", "y", "m")], ["N", 3], {"axes": integers(0)}, r"m \(Red"),
    "records as columns": ([node("Transpose", "x", "y", perm=[1, 0])], ["N", 3], {}, "output y, which moves the batch"),
    "two records as one": (
        [node("Reshape", "x shape", "y", "r")], ["N", 3], {"shape": integers(-1, 6)}, r"r \(Reshape\) from",
    ),
    "every second record": (
        [node("Slice", "x zero end axis two", "y", "s")], ["N", 3],
        {"zero": integers(0), "end": integers(9), "axis": integers(0), "two": integers(2)}, r"s \(Slice\) of some",
    ),
    "numbers for each record of a batch of four": (
        [node("Mul", "x c", "y", "m")], [4, 3], {"c": numbers(4, 3)}, r"m \(Mul\) .*differ among the records",
    ),
    "the number of records as a number": (
        [node("Shape", "x", "s"), node("Cast", "s", "f", to=1), node("Slice", "f zero one", "n"),
         node("Mul", "x n", "y", "m")],
        ["N", 3], {"zero": integers(0), "one": integers(1)}, "net computes something else for 1009 records than for",
    ),
    "rows of any length": (
        [node("Relu", "x", "y")], ["N", "length", 4], {}, r"'x' has axes of any size, .*load_onnx\(path, \(32",
    ),
    "no axis of the batch": ([node("Relu", "x", "y")], [], {}, "the input 'x' has no axis of the batch"),
    "an output that is a constant": ([node("Relu", "c", "y")], ["N", 3], {"c": numbers(3)}, "y, which is the same"),
    "shapes that do not fit": ([node("Add", "x c", "y", "a")], ["N", 3], {"c": numbers(4)}, r"a \(Add\)"),
    "a size beyond integers": (
        [node("Reshape", "x shape", "y", "r")], ["N", 3], {"shape": integers(0, 2**62, 2**62)}, r"r \(Reshape\)",
    ),
    "padding beyond integers": (
        [node("Pad", "x pads", "y", "p")], ["N", 3, 4, 4], {"pads": integers(*[0] * 7, 2**62)}, r"p \(Pad\)",
    ),
    "a table with more rows than there are": (
        [node("Gather", "x codes", "y", "g", axis=1)], ["N", 3], {"codes": integers(5)}, r"g \(Gather\) .*beyond its 3",
    ),
    "an axis that is not there": ([node("Softmax", "x", "y", "s", axis=7)], ["N", 3], {}, r"s \(Softmax\) .*axis 7"),
    "weights of other inputs": ([node("Gemm", "x w", "y", "g")], ["N", 3], {"w": numbers(4, 5)}, UNFIT + "g.* 4 and 3"),
    "a weight of integers": ([node("Gemm", "x w", "y", "g")], ["N", 3], {"w": integers(1, 2, 3)[:, None]}, UNFIT + "g"),
    "integers added": ([node("Add", "x c", "y", "a")], ["N", 3], {"c": integers(1, 2, 3)}, UNFIT + "a.*int64"),
    "a kernel of truth values": (
        [node("Conv", "x w", "y", "c")], ["N", 1, 4, 4], {"w": numbers(1, 1, 2, 2) > 1}, UNFIT + "c.*bool",
    ),
    "numbers as codes": ([node("Gather", "w x", "y", "g")], ["N", 3], {"w": numbers(4, 5)}, UNFIT + "g.*float"),
    "one axis twice": ([node("Transpose", "x", "y", "t", perm=[0, 0])], ["N", 3], {}, UNFIT + "t.* repeated"),
    "one new axis twice": ([node("Unsqueeze", "x a", "y", "u")], ["N", 3], {"a": integers(1, 1)}, UNFIT + "u.* once"),
    "parts of less than nothing": (
        [node("Split", "x s", "y z", "s", axis=1)], ["N", 3], {"s": integers(-1, 4)},
        r"s \(Split\) into 2 parts that are not the 3",
    ),
    "parts without end": (
        [node("SplitToSequence", "x", "s", "q", axis=1), node("SequenceAt", "s i", "y")], ["N", 1 << 26],
        {"i": np.array(0)}, r"q \(SplitToSequence\) of 67108864 parts",
    ),
    "params that do not fit": (
        [node("Add", "a b", "c", "first"), node("Add", "x c", "y")], ["N", 3], {"a": numbers(3), "b": numbers(4)},
        r"first \(Add\): .*combines .a., 1 x 3, with .b., 1 x 4",
    ),
    "random numbers": ([node("RandomNormalLike", "x", "y", "r")], ["N", 3], {}, r"r \(RandomNormalLike\)"),
}  # fmt: skip


@pytest.mark.parametrize("name", NETS)
def test_what_is_no_model_is_refused_in_a_sentence(name: str, tmp_path: Path) -> None:
    nodes, shape, arrays, words = NETS[name]
    with pytest.raises(UserError, match=words) as caught:
        loaded(graph_of(nodes, {"x": shape}, arrays=arrays), tmp_path)
    assert "\n" not in str(caught.value)


def test_shapes_that_the_net_does_not_take_are_refused(tmp_path: Path) -> None:
    net, path = graph_of([node("Relu")], {"x": ["N", "length", 4]}), tmp_path / "net.onnx"
    assert loaded(net, tmp_path, (5, 4)).predict(np.ones((2, 5, 4), np.float32)).shape == (2, 5, 4)
    for shapes, words in {
        ((5, 3),): r"takes records \(None, 4\), not \(5, 3\)",
        ((5, 4), (2,)): "takes 1 inputs, but 2 shapes",
        ((0, 4),): r"takes records \(None, 4\), not \(0, 4\)",
        ((-1, 4),): r"takes records \(None, 4\), not \(-1, 4\)",
        ("abc",): r"takes records \(None, 4\), not",
    }.items():
        with pytest.raises(UserError, match=words):
            nn.load_onnx(path, *shapes)


# Damaged files of whole nets: nn.load_onnx refuses them in a sentence, or they are other nets.
onnx = pytest.importorskip("onnx")


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


def test_a_file_of_pytorch_is_refused_with_the_call_to_write(tmp_path):
    torch = pytest.importorskip("torch")
    torch.save(torch.nn.Linear(2, 2).state_dict(), path := tmp_path / "net.pt")
    refused(lambda: nn.load_onnx(path), "net.pt is a file of PyTorch", r"dsinga.convert.from_torch\(module, shape\)")


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

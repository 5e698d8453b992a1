"""ONNX nets that cannot be models: each is refused in one sentence that names its nodes, before anything is made."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dsinga import nn
from dsinga.base.errors import UserError
from tests.support.onnx_nets import graph_of, loaded, node


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
    "an axis below 0": ([node("Transpose", "x", "y", "t", perm=[0, -1])], ["N", 3], {}, UNFIT + "t.* perm"),
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

"""ONNX files of some hundred bytes or long ones that ask for memory or time: a sentence or a net, within bounds.

Each case is one of :data:`BOMBS`, by its number; ``--only NUMBER`` runs one.
"""

from __future__ import annotations

import random as random_module
import resource
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from onnx import TensorProto, helper, numpy_helper

from tools.faults.verdicts import WRONG, run_dsinga, say_damage

MOST_BYTES, MOST_SECONDS = 512 << 20, 5.0
MOST_ADDRESSES = 8 << 30  # of memory, so that a failed case does not take the machine with it
Arrays = dict[str, np.ndarray]


def node(operator: str, inputs: str | Sequence[str], outputs: str = "c", **attributes: Any) -> Any:
    """Return a node; names are texts in a row, "_" an input that is left out."""
    names = inputs.split() if isinstance(inputs, str) else inputs
    return helper.make_node(operator, ["" if name == "_" else name for name in names], outputs.split(), **attributes)


def net(nodes: Sequence[Any], x: Sequence[Any] = ("N", 3), opset: int = 21, kind: int = 1, **tensors: Any) -> Any:
    """Return the net from x to y; ``tensors`` are its initializers: arrays, or lists of integers."""
    arrays = {name: np.asarray(array, None if hasattr(array, "dtype") else np.int64) for name, array in tensors.items()}
    infos = [helper.make_tensor_value_info("x", kind, x)], [helper.make_tensor_value_info("y", 1, None)]
    initializers = [numpy_helper.from_array(array, name) for name, array in arrays.items()]
    graph = helper.make_graph(list(nodes), "net", *infos, initializers)
    domains = {each.domain for each in nodes} - {""}
    opsets = [helper.make_opsetid("", opset), *(helper.make_opsetid(name, 1) for name in domains)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10)


def constant(operator: str, inputs: str = "", domain: str = "", after: str = "Add", **more: Any) -> Any:
    """Return a net that adds the result of an operator of constants; ``more`` are arrays, and attributes."""
    arrays = {name: x for name, x in more.items() if name in inputs.split()}
    attributes = {name: x for name, x in more.items() if name not in arrays}
    return net([node(operator, inputs, domain=domain, **attributes), node(after, "x c", "y")], **arrays)


def repeated(operator: str, count: int, second: str | None = None, **more: Any) -> Any:
    """Return a net with a chain of nodes of constants, each of the one before, twice or with ``second``."""
    names = ["a", *(f"c{number}" for number in range(count))]
    attributes = {name: more.pop(name) for name in ("axis",) if name in more}
    nodes = [
        node(operator, f"{a} {second or a}" if operator != "Relu" else a, b, **attributes)
        for a, b in zip(names, names[1:], strict=False)
    ]
    before = more.pop("before", [])
    return net([*before, *nodes, node("Add", f"x {names[-1]}", "y")], **more)


def chain(operator: str, count: int, inputs: str = "{}", **more: Any) -> Any:
    """Return a net of a chain of nodes from x to y."""
    names = ["x", *(f"v{number}" for number in range(count - 1)), "y"]
    attributes = {name: more.pop(name) for name in [*more] if name in ("name", "axis", "perm")}
    nodes = [node(operator, inputs.format(a, a), b, **attributes) for a, b in zip(names, names[1:], strict=False)]
    return net(nodes, **more)


def one(operator: str, inputs: str = "x", x: Sequence[Any] = ("N", 3), **more: Any) -> Any:
    """Return the net of one node from x to y; ``more`` are arrays, and attributes."""
    arrays = {name: array for name, array in more.items() if name in inputs.split()}
    opset = more.pop("opset", 21)
    attributes = {name: value for name, value in more.items() if name not in arrays}
    return net([node(operator, inputs, "y", **attributes)], x, opset, **arrays)


def many(operator: str, count: int = 4000, is_constant: bool = False, **attributes: Any) -> Any:
    """Return a net whose one node has thousands of inputs: x again and again, or constants beside it."""
    names = [f"c{number}" if is_constant and number else "x" for number in range(count)]
    arrays = {name: np.full((1, 3), 2, np.float32) for name in names if name != "x"}
    return net([node(operator, names, "y", **attributes)], **arrays)


def functions(count: int, calls: int, body: Any = None, name: str = "f") -> Any:
    """Return a net of functions, each of which calls the next one several times."""
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("own", 1)]
    made = []
    for number in range(count):
        names = ["a", *(f"v{each}" for each in range(calls - 1)), "b"]
        pairs = list(zip(names, names[1:], strict=False))
        steps = [node(f"{name}{number + 1}", a, b, domain="own") for a, b in pairs]
        if number == count - 1:
            steps = body or [node("Relu", "a", "b")]
        made.append(helper.make_function("own", f"{name}{number}", ["a"], ["b"], steps, opsets))
    whole = net([node(f"{name}0", "x", "y", domain="own")])
    whole.functions.extend(made)
    return whole


def field(number: int, content: bytes) -> bytes:
    """Return a field of protobuf that is a message, shorter than 2**21 bytes."""
    size = len(content)
    return bytes([number << 3 | 2, size & 127 | 128, size >> 7 & 127 | 128, size >> 14]) + content


def nested(depth: int) -> bytes:
    """Return a file of graphs in graphs."""
    content = b""
    for _ in range(depth):
        for number in (6, 5, 1):  # of a graph, an attribute, a node
            content = field(number, content)
    return b"\x08\x0a" + field(7, content) + field(8, b"\x10\x15")


def external(**entries: str) -> Any:
    """Return a net with a weight in another file, beside 64 GB of zeros that take no disk."""
    whole = net([node("MatMul", "x w", "y")])
    tensor = TensorProto(name="w", data_type=1, dims=[3, 4], data_location=TensorProto.EXTERNAL)
    for key, value in entries.items():
        tensor.external_data.add(key=key, value=value)
    whole.graph.initializer.append(tensor)
    return whole


def inputs(count: int) -> Any:
    """Return a net with thousands of inputs and outputs."""
    whole = net([node("Relu", f"x{number}", f"y{number}") for number in range(count)])
    for values, name in ((whole.graph.input, "x"), (whole.graph.output, "y")):
        del values[:]
        values.extend(helper.make_tensor_value_info(f"{name}{number}", 1, ["N", 3]) for number in range(count))
    return whole


def named(text: str) -> Any:
    """Return a net whose names are all as long as ``text``."""
    nodes = [node("MatMul", ["x", text + "w"], text + "h", name=text), node("Relu", [text + "h"], "y", name=text + "2")]
    whole = net(nodes, **{text + "w": np.ones((3, 4), np.float32)})
    whole.graph.node[0].metadata_props.add(key="pkg.torch.onnx.name_scopes", value=f"['{text}', '{text}']")
    return whole


def fixed(nodes: Sequence[Any], **tensors: Any) -> Any:
    """Return a net with nodes of constants to ``c``, to which x is added."""
    return net([*nodes, node("Add", "x c", "y")], **tensors)


LETTERS, HUGE, F = "n" * 100_000, 10**15, np.float32
ONE, BIG = np.ones(1, F), 1 << 26
FULL = node("ConstantOfShape", "s", "a")
TEXT = helper.make_node("Constant", [], ["t"], value_strings=[b"a" * 60])
BOMBS: dict[str, Callable[[], Any]] = {
    # Constants that fill the memory or take hours.
    "Range": lambda: constant("Range", "a b d", a=F(0), b=F(HUGE), d=F(1)),
    "Range of small steps": lambda: constant("Range", "a b d", a=F(0), b=F(1), d=F(1e-12)),
    "Range of no number": lambda: constant("Range", "a b d", a=F(0), b=F("nan"), d=F(1)),
    "ConstantOfShape": lambda: constant("ConstantOfShape", "s", s=[HUGE, 2]),
    "ConstantOfShape of a weight": lambda: constant("ConstantOfShape", "s", s=[3, BIG], after="MatMul"),
    "ConstantOfShape of ten weights": lambda: net(
        [n for k in range(10) for n in (node("ConstantOfShape", "s", f"w{k}"), node("MatMul", f"x w{k}", f"h{k}"))]
        + [node("Sum", [f"h{k}" for k in range(10)], "y")],
        s=[3, BIG // 4],
    ),
    "ConstantOfShape added": lambda: constant("ConstantOfShape", "s", s=[1, BIG]),
    "Expand": lambda: constant("Expand", "a s", a=ONE, s=[HUGE, HUGE]),
    "Expand, computed with": lambda: repeated("Add", 100, before=[FULL], s=[BIG // 2]),
    "sums over many numbers": lambda: fixed(
        [FULL, *(node("ReduceSum", "a", f"c{k}") for k in range(3000)), node("Sum", [f"c{k}" for k in range(3000)])],
        s=[BIG // 2],
    ),
    "Tile": lambda: constant("Tile", "a s", a=ONE, s=[HUGE]),
    "Tile of nothing": lambda: constant("Tile", "a s", a=np.ones((0, 1), F), s=[1, 2**62]),
    "Concat": lambda: repeated("Concat", 60, axis=0, a=np.ones(1000, F)),
    "products that grow": lambda: constant("MatMul", "a b", a=np.ones((1 << 16, 1), F), b=np.ones((1, 1 << 16), F)),
    "MatMul of three": lambda: constant(
        "MatMul", "a b", a=np.ones((200, 1, 80, 80), F), b=np.ones((1, 200, 80, 80), F)
    ),
    "sums that grow": lambda: constant("Add", "a b", a=np.ones((1 << 16, 1), F), b=np.ones((1, 1 << 16), F)),
    "Where": lambda: constant(
        "Where", "a b d", a=np.ones((1 << 11, 1, 1), bool), b=np.ones((1, 1 << 11, 1), F), d=np.ones((1, 1, 1 << 11), F)
    ),
    "Pad": lambda: constant("Pad", "a s", a=ONE, s=[0, HUGE]),
    "Pad by less": lambda: constant("Pad", "a s", a=ONE, s=[-(2**63), 2**62]),
    "OneHot": lambda: constant("OneHot", "a d b", a=np.arange(9), d=np.int64(HUGE), b=np.array([0, 1], F)),
    "EyeLike": lambda: fixed([FULL, node("EyeLike", "a")], s=[1 << 14, 1 << 14]),
    "Resize": lambda: constant("Resize", "a _ s", a=np.ones((1, 1, 2), F), s=np.array([1, 1, 1e12], F)),
    "Gather": lambda: constant("Gather", "a b", a=np.ones((2, 1 << 16), F), b=np.zeros(1 << 16, np.int64)),
    "GatherND": lambda: constant("GatherND", "a b", a=np.ones((2, 1 << 16), F), b=np.zeros((1 << 16, 1), np.int64)),
    "Einsum": lambda: constant("Einsum", "a a a", a=np.ones(5000, F), equation="a,b,c->abc"),
    "ConvTranspose": lambda: constant("ConvTranspose", "a a", a=np.ones((1, 1, 9), F), strides=[10**9]),
    "LSTM": lambda: constant(
        "LSTM", "a b d", a=np.ones((30_000, 1, 1), F), b=np.ones((1, 4, 1), F), d=np.ones((1, 4, 1), F), hidden_size=1
    ),
    "Attention": lambda: fixed([FULL, node("Attention", "a a a")], opset=23, s=[1, 1, 1 << 18, 4]),
    "HannWindow": lambda: constant("HannWindow", "a", a=np.int64(HUGE)),
    "MelWeightMatrix": lambda: constant(
        "MelWeightMatrix", "a b d e g", a=np.int64(10**5), b=np.int64(10**6), d=np.int64(10**6), e=F(1), g=F(9)
    ),
    "DFT": lambda: constant("DFT", "a b", a=np.ones((1, 2, 1), F), b=np.int64(10**10)),
    "AffineGrid": lambda: constant("AffineGrid", "a s", a=np.ones((1, 2, 3), F), s=[1, 1, 10**6, 10**6]),
    "CenterCropPad": lambda: constant("CenterCropPad", "a s", a=ONE, s=[HUGE]),
    "MaxUnpool": lambda: constant(
        "MaxUnpool", "a b s", a=np.ones((1, 1, 1), F), b=np.zeros((1, 1, 1), np.int64), s=[1, 1, HUGE], kernel_shape=[1]
    ),
    "RoiAlign": lambda: constant(
        "RoiAlign",
        "a b d",
        a=np.ones((1, 1, 2, 2), F),
        b=np.ones((1, 4), F),
        d=[0],
        output_height=10**6,
        output_width=10**6,
    ),
    "RandomNormal": lambda: constant("RandomNormal", shape=[HUGE]),
    "CumSum": lambda: repeated("CumSum", 2000, second="z", before=[FULL], s=[BIG // 8], z=np.int64(0)),
    "Det": lambda: constant("Det", "a", a=np.eye(3000, dtype=F)),
    "Pow": lambda: repeated("Pow", 2000, second="z", a=np.full(10**5, 3), z=np.int64(10**9)),
    "BitShift": lambda: constant(
        "BitShift", "a b", a=np.ones(1, np.uint64), b=np.full(1, 2**63, np.uint64), direction="LEFT"
    ),
    # Texts, images, trees.
    "RegexFullMatch": lambda: fixed([TEXT, node("RegexFullMatch", "t", pattern="(a*)*b")]),
    "StringSplit": lambda: fixed([TEXT, node("StringSplit", "t", "c d", delimiter="a")]),
    "StringConcat": lambda: fixed(
        [
            TEXT,
            *(
                node("StringConcat", [b, b], a)
                for b, a in zip(["t", *"abdefghijklmnop"], [*"abdefghijklmnop", "c"], strict=False)
            ),
        ]
    ),
    "ImageDecoder": lambda: fixed(
        [node("ImageDecoder", "i")], i=np.frombuffer(b"\x89PNG\r\n\x1a\n" + bytes(40), np.uint8)
    ),
    "Cast to texts": lambda: fixed([FULL, node("Cast", "a", "t", to=8), node("Cast", "t", to=1)], s=[BIG // 8]),
    "LabelEncoder": lambda: constant("LabelEncoder", "a", "ai.onnx.ml", a=[1], keys_int64s=[1], values_int64s=[2]),
    # Long files.
    "chain": lambda: chain("Relu", 20_000),
    "chain of names": lambda: chain("Relu", 20_000, name="/model/relu/Relu"),
    "chain of doubles": lambda: chain("Add", 5000, "{} {}"),
    "chain of products": lambda: chain("Mul", 5000, "{} {}"),
    "chain of views": lambda: chain("Reshape", 20_000, "{} s", s=[0, -1]),
    "chain of permutations": lambda: chain("Transpose", 20_000, x=("N", 2, 3), perm=[0, 2, 1]),
    "chain of constants": lambda: repeated("Add", 20_000, second="a", a=np.ones(3, F)),
    "chain of large constants": lambda: repeated("Add", 20_000, a=np.ones(10**5, F)),
    "copies of constants": lambda: repeated("Relu", 20_000, a=np.ones(10**5, F)),
    "Sum": lambda: many("Sum"),
    "Max": lambda: many("Max", is_constant=True),
    "Min": lambda: many("Min"),
    "Mean": lambda: many("Mean"),
    "Concat of 4,000": lambda: many("Concat", axis=1),
    "Concat of constants": lambda: many("Concat", is_constant=True, axis=1),
    "Sum of constants": lambda: fixed([node("Sum", ["a"] * 4000)], a=np.ones(3, F)),
    "parts": lambda: net(
        [
            node("Split", "x", " ".join(f"p{k}" for k in range(4000)), axis=1),
            node("Concat", [f"p{k}" for k in range(4000)], "y", axis=1),
        ],
        x=("N", 4000),
    ),
    "inputs and outputs": lambda: inputs(4000),
    "names": lambda: named(LETTERS),
    "names of slashes": lambda: named("a/" * 50_000),
    "names of dots": lambda: named("weight_w_1." * 9000),
    "an operator's name": lambda: one(LETTERS),
    "hyphens in an error": lambda: one("Relu", "a-" * 50_000),
    "functions": lambda: functions(50, 8),
    "deep functions": lambda: functions(5000, 1),
    "deep functions that grow": lambda: functions(20_000, 2),
    "functions with long names": lambda: functions(3, 40, [node("Relu", "a", LETTERS), node("Relu", [LETTERS], "b")]),
    "functions with tensors": lambda: functions(
        3,
        40,
        [
            helper.make_node("Constant", [], ["w"], value=numpy_helper.from_array(np.ones((3, 3), F).repeat(9999, 0))),
            node("Relu", "a", "b"),
        ],
    ),
    "graphs in graphs": lambda: nested(25),
    "graphs without end": lambda: nested(20_000),
    # Layers that have much to compute, or shapes that no net has.
    "axes": lambda: one("Reshape", "x s", s=[1] * 50_000),
    "a long shape": lambda: net(
        [
            node("ConstantOfShape", "n", "s", value=numpy_helper.from_array(np.ones(1, np.int64))),
            node("Reshape", "x s", "y"),
        ],
        n=[BIG],
    ),
    "axes of Unsqueeze": lambda: one("Unsqueeze", "x s", s=np.arange(50_000)),
    "Expand of x": lambda: one("Expand", "x s", s=[1, HUGE]),
    "Expand of x to what memory holds": lambda: net(
        [node("Expand", "x s", f"v{k}") for k in range(9)] + [node("Sum", [f"v{k}" for k in range(9)], "y")],
        ("N", 1),
        s=[1, BIG],
    ),
    "Tile of x": lambda: one("Tile", "x s", x=("N", 3, 1, 1, 1), s=[1, 64, 64, 64, 64]),
    "Gather of x": lambda: net(
        [
            node("ConstantOfShape", "n", "i", value=numpy_helper.from_array(np.zeros(1, np.int64))),
            node("Gather", "x i", "y", axis=1),
        ],
        n=[BIG],
    ),
    "SplitToSequence": lambda: net(
        [node("SplitToSequence", "x", "s", axis=1), node("SequenceAt", "s i", "y")], ("N", 1 << 26), i=np.int64(0)
    ),
    "Pad of x": lambda: one("Pad", "x s", x=("N", 3, 4, 4), s=[0] * 7 + [2**62]),
    "Resize of x": lambda: one("Resize", "x _ s", x=("N", 3, 4, 4), s=np.array([1, 1, 1e30, "inf"], F)),
    "Conv": lambda: one("Conv", "x w", x=("N", 1, 4), w=np.ones((1, 1, 1), F), pads=[2**62, 2**62]),
    "strides of 0": lambda: one("Conv", "x w", x=("N", 1, 4), w=np.ones((1, 1, 1), F), strides=[0]),
    "dilations": lambda: one("Conv", "x w", x=("N", 1, 4), w=np.ones((1, 1, 2), F), dilations=[2**62]),
    "kernels": lambda: one("AveragePool", x=("N", 1, 1 << 13), kernel_shape=[1 << 25], pads=[1 << 25, 1 << 24]),
    "ConvTranspose of x": lambda: one("ConvTranspose", "x w", x=("N", 1, 9), w=np.ones((1, 1, 1), F), strides=[2**40]),
    "Attention of x": lambda: one("Attention", "x x x", x=("N", 1, 1 << 17, 4), opset=23, is_causal=1, softcap=1.0),
    "heads": lambda: net(
        [node("Slice", "x a b d", "k"), node("Attention", "x k k", "y", q_num_heads=1 << 20, kv_num_heads=1)],
        ("N", 2, 1 << 20),
        23,
        a=[0],
        b=[1],
        d=[2],
    ),
    "channels": lambda: one("InstanceNormalization", "x a a", x=("N", 1 << 27, 2), a=ONE),
    "LayerNormalization": lambda: one("LayerNormalization", "x a a", x=("N", 1 << 27), a=ONE),
    "in_proj": lambda: net(
        [node("MatMul", "x w", "h"), node("Add", "h m.in_proj_bias", "p"), node("Gather", "p i", "y", axis=1)],
        ("N", 1 << 26, 1),
        w=np.ones((1, 3), F),
        i=np.int64(0),
        **{"m.in_proj_bias": np.ones(3, F)},
    ),
    "DepthToSpace": lambda: one("DepthToSpace", x=("N", 4, 2, 2), blocksize=2**31),
    "offsets": lambda: external(location="w.bin", offset="9" * 4300, length="9" * 4300),
    "folders": lambda: external(location="a/" * 50_000),
    "a long path": lambda: external(location="a" * 10**6),
}


def create(folder: Path) -> None:
    """Write the file of each bomb."""
    for number, make in enumerate(BOMBS.values()):
        content = make()
        content = content if isinstance(content, bytes) else content.SerializeToString()
        (folder / f"{number}.onnx").write_bytes(content)
    (folder / "w.bin").touch()


def run(random: random_module.Random, original: Path, folder: Path) -> int:
    """Import the bomb of this case, and return the status."""
    number = int(folder.name.removeprefix("case"))
    say_damage(list(BOMBS)[number])
    resource.setrlimit(resource.RLIMIT_AS, (MOST_ADDRESSES, MOST_ADDRESSES))
    status = run_dsinga(["import", str(original / f"{number}.onnx"), "--out", "net"])
    return WRONG if status and (folder / "net").exists() else status

"""ONNX files: what damaged and hostile ones are refused with, and the bytes of those that are written."""

import contextlib
import os
import socket
from pathlib import Path

import numpy as np
import pytest

from dsinga.addons.onnx.files import checked_net, read_onnx, tensor_array
from dsinga.base.errors import UserError
from tests.support.onnx_nets import graph_of, node

onnx = pytest.importorskip("onnx")
from onnx import TensorProto, helper, numpy_helper  # noqa: E402

WEIGHTS = np.arange(12, dtype=np.float32).reshape(3, 4)


def make_net(nodes=None, tensors=None, inputs=None, outputs=None, **more):
    """Return a net of ONNX: y = relu(x @ w), or what is given."""
    if nodes is None:
        nodes = [node("MatMul", "x w", "h", "product"), node("Relu", "h", "y", "relu")]
    tensors = [numpy_helper.from_array(WEIGHTS, "w")] if tensors is None else tensors
    return graph_of(nodes, inputs, outputs or {"y": ["N", "M"]}, tensors, **more)


def external(name="w", location="w.bin", shape=(3, 4), **entries):
    """Return a tensor whose numbers are in another file."""
    tensor = TensorProto(name=name, data_type=TensorProto.FLOAT, dims=shape, data_location=TensorProto.EXTERNAL)
    for key, value in {"location": location, **entries}.items():
        tensor.external_data.add(key=key, value=str(value))
    return tensor


def saved(net, folder):
    """Return the path of a net that is written without any check."""
    path = Path(folder) / "net.onnx"
    path.write_bytes(net.SerializeToString())
    return path


def refused(net, folder, words):
    """Read a net, which must be refused in a sentence that names its file and has these words."""
    path = saved(net, folder)
    with pytest.raises(UserError, match=words) as caught:
        read_onnx(path)
    text = str(caught.value)
    assert text.startswith(str(path))
    assert "\n" not in text
    return text


def test_a_net_and_its_numbers_are_read(tmp_path):
    net = read_onnx(saved(make_net(), tmp_path))[0]
    assert [each.op_type for each in net.graph.node] == ["MatMul", "Relu"]
    assert (tensor_array(net.graph.initializer[0], tmp_path) == WEIGHTS).all()


@pytest.mark.parametrize("dtype", "f4 f8 i1 i2 i4 i8 u1 u2 u4 u8 ?".split())
def test_each_kind_of_numbers_is_read_from_raw_bytes_one_by_one_and_from_a_file(tmp_path, dtype):
    array = np.arange(6).reshape(2, 3).astype(dtype)
    raw = numpy_helper.from_array(array, "raw")
    single = helper.make_tensor("single", raw.data_type, array.shape, array.ravel())
    (tmp_path / "w.bin").write_bytes(b"12345" + array.tobytes())
    apart = external("apart", shape=array.shape, offset=5, length=array.nbytes)
    apart.data_type = raw.data_type
    net = read_onnx(saved(make_net(tensors=[numpy_helper.from_array(WEIGHTS, "w"), raw, single, apart]), tmp_path))[0]
    for tensor in net.graph.initializer[1:]:
        got = tensor_array(tensor, tmp_path)
        assert got.dtype == array.dtype, tensor.name
        assert (got == array).all(), tensor.name


@pytest.mark.parametrize("content", [b"", b"hello", b"\xff" * 40, b"PK\x03\x04archive", b"\x08\x07", b"\x0a" * 10**6])
def test_other_files_are_no_onnx(tmp_path, content):
    (path := tmp_path / "net.onnx").write_bytes(content)
    with pytest.raises(UserError, match="ONNX|opset"):
        read_onnx(path)


def test_mistakes_are_named_with_their_remedies(tmp_path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path, words in (("pipe", "a pipe"), ("none", "No such file"), (".", "directory")):
        with pytest.raises(UserError, match=words):
            read_onnx(tmp_path / path)
    nodes = [
        node("FusedMatMul", "x w", "h", "first", domain="com.microsoft"),
        node("Mine", "h", "y", "second", domain="my.own"),
    ]
    words = r"'first' \(com.microsoft.FusedMatMul\), the node 'second' \(my.own.Mine\)"
    refused(make_net(nodes, domains=["com.microsoft", "my.own"]), tmp_path, words)
    nodes = [
        node("If", "c", "y", "choice", then_branch=branch("a"), else_branch=branch("b")),
        node("Loop", " c", "z", "rounds", body=branch("d")),
    ]
    refused(make_net(nodes), tmp_path, r"control flow .*'choice' \(If\), the node 'rounds' \(Loop\)")
    (path := tmp_path / "net.onnx").touch()
    os.truncate(path, 3 << 30)
    with pytest.raises(UserError, match=r"it has 3,221,225,472 bytes, and such a file at most 2,147,483,647"):
        read_onnx(path)
    (tmp_path / "w.bin").write_bytes(WEIGHTS.tobytes())
    net = read_onnx(saved(make_net(tensors=[external()]), tmp_path))[0]
    for content in (WEIGHTS.tobytes()[:-4], b""):
        (tmp_path / "w.bin").write_bytes(content)
        with pytest.raises(UserError, match="'w'"):
            tensor_array(net.graph.initializer[0], tmp_path)
    (tmp_path / "w.bin").write_bytes(WEIGHTS.tobytes())
    refused(make_net(tensors=[external(), *(external(f"t{i}") for i in range(99))]), tmp_path, "same bytes of files")
    sparse = helper.make_sparse_tensor(
        helper.make_tensor("w", TensorProto.FLOAT, [1], [1.0]),
        helper.make_tensor("i", TensorProto.INT64, [1], [2]),
        [9],
    )
    net = make_net()
    net.graph.sparse_initializer.append(sparse)
    refused(net, tmp_path, "sparse tensor")
    nodes = [node("Constant", "", "y", "few", sparse_value=sparse)]
    refused(make_net(nodes), tmp_path, "'few' .* sparse tensor")


VERSIONS = [
    ({"ir": 99}, "IR version 99.*upgrade onnx"), ({"ir": 2}, "IR version 2, older than 3"),
    ({"opset": 99}, "opset 99.*upgrade onnx"), ({"opset": 6}, "opset 6, older than 7"),
]  # fmt: skip


@pytest.mark.parametrize(("versions", "words"), VERSIONS)
def test_versions_that_are_not_known(tmp_path, versions, words):
    refused(make_net(**versions), tmp_path, words)


def branch(name):
    """Return a graph that gives a constant."""
    value = node("Constant", "", name, value_float=1.0)
    return helper.make_graph([value], name, [], [helper.make_tensor_value_info(name, TensorProto.FLOAT, [])])


def function(name, *called):
    """Return a function of a file, of which each of its nodes calls another function, or is a Relu without any."""
    values = ["a", *(f"v{number}" for number in range(len(called))), "b"]
    steps = [node(each, values[i], values[i + 1], domain="own") for i, each in enumerate(called)]
    steps.append(node("Relu", values[-2], "b"))
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("own", 1)]
    return helper.make_function("own", name, ["a"], ["b"], steps, opsets)


def net_of_functions(called, functions):
    return make_net([node(called, domain="own")], functions=functions, domains=["own"])


def test_functions_of_the_file_are_written_out(tmp_path):
    net = read_onnx(saved(net_of_functions("f", [function("f", "g", "g"), function("g")]), tmp_path))[0]
    assert [each.op_type for each in net.graph.node] == ["Relu"] * 3


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: [function("f", "g"), function("g", "f")], "calls itself"),
        (lambda: [function("f", "f")], "calls itself"),
        (lambda: [function("f", *["f1"] * 8), *(function(f"f{i}", *[f"f{i + 1}"] * 8) for i in range(1, 30))], "nodes"),
        (lambda: [function("f", "f1"), *(function(f"f{i}", f"f{i + 1}") for i in range(1, 5000))], "nested too deeply"),
        (
            lambda: [function("f", *["f1"] * 2), *(function(f"f{i}", *[f"f{i + 1}"] * 2) for i in range(1, 15_000))],
            "too deep",
        ),
    ],
    ids=["circle", "itself", "bomb", "deep", "deep bomb"],
)
def test_functions_without_an_end_are_refused(tmp_path, make, words):
    refused(net_of_functions("f", make()), tmp_path, words)


@pytest.mark.parametrize(
    "location", ["", *"../w.bin sub/../../w.bin /etc/passwd .. . a\0b C:\\w.bin sub\\w.bin \\\\host\\w".split()]
)
def test_paths_that_leave_the_folder(tmp_path, location):
    (folder := tmp_path / "net").mkdir()
    (tmp_path / "w.bin").write_bytes(WEIGHTS.tobytes())
    refused(make_net(tensors=[external(location=location)]), folder, "the tensor 'w' .* not in the folder")


def test_links_pipes_sockets_and_folders_in_place_of_external_data(tmp_path):
    (folder := tmp_path / "net").mkdir()
    (tmp_path / "w.bin").write_bytes(WEIGHTS.tobytes())
    (folder / "link.bin").symlink_to(tmp_path / "w.bin")
    (folder / "linked").symlink_to(tmp_path)
    (folder / "inside.bin").write_bytes(WEIGHTS.tobytes())
    (folder / "within.bin").symlink_to(folder / "inside.bin")
    os.mkfifo(folder / "pipe")
    (folder / "sub").mkdir()
    for location in ("link.bin", "linked/w.bin", "within.bin"):
        refused(make_net(tensors=[external(location=location)]), folder, "is a link")
    for location, words in (("pipe", "a pipe"), ("sub", "directory"), ("none", "No such"), ("a/" * 50_000, "too long")):
        refused(make_net(tensors=[external(location=location)]), folder, f"{words}.*beside the net")
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(os.path.relpath(folder / "s"))
        refused(make_net(tensors=[external(location="s")]), folder, "a socket")
    assert read_onnx(saved(make_net(tensors=[external(location="inside.bin")]), folder))


@pytest.mark.parametrize(
    ("entries", "words"),
    [
        ({"offset": 8}, "has 40 bytes, but its shape .* needs 48"),
        ({"offset": 1, "length": 48}, "bytes that it does not have, 1 to 49"),
        ({"offset": -4, "length": 48}, "does not have"),
        ({"length": -48}, "does not have"),
        ({"length": 10**30}, "does not have"),
        ({"length": 44}, "has 44 bytes"),
        ({"offset": "1e3"}, "no number"),
        ({"offset": "9" * 6000}, "no number"),
        ({"offset": "9" * 4300, "length": "9" * 4300}, "no number"),
        ({"shape": (10**15,)}, "which no array has"),
        ({"shape": (10**9,)}, "needs 4,000,000,000"),
        ({"shape": (-3, -4)}, "which no array has"),
        ({"shape": (0, 2**40)}, "which no array has"),
        ({"shape": (1,) * 1000}, "which no array has"),
    ],
)
def test_places_outside_the_file_and_absurd_shapes(tmp_path, entries, words):
    (tmp_path / "w.bin").write_bytes(WEIGHTS.tobytes())
    refused(make_net(tensors=[external(**entries)]), tmp_path, words)


def test_external_numbers_of_a_node_are_in_the_net_then(tmp_path):
    (tmp_path / "w.bin").write_bytes(WEIGHTS.tobytes())
    nodes = [node("Constant", "", "w", value=external("")), node("MatMul", "x w", "y")]
    constant = read_onnx(saved(make_net(nodes, []), tmp_path))[0].graph.node[0]
    assert (numpy_helper.to_array(constant.attribute[0].t) == WEIGHTS).all()


def changed(**fields):
    """Return a tensor with some of its fields set."""
    tensor = numpy_helper.from_array(WEIGHTS, "w")
    for field, value in fields.items():
        if isinstance(value, list):
            getattr(tensor, field)[:] = value
        else:
            setattr(tensor, field, value)
    return tensor


@pytest.mark.parametrize(
    ("tensor", "words"),
    [
        (changed(raw_data=b"123"), "has 3 bytes, but its shape .* needs 48"),
        (changed(dims=[10**15]), "which no array has"),
        (changed(dims=[3, 400000000]), "needs 4,800,000,000"),
        (TensorProto(name="w", data_type=1, dims=[3, 4], float_data=[1.0]), "has 4 bytes"),
        (TensorProto(name="w", data_type=1, dims=[3, 4], int64_data=[1] * 12), "has 0 bytes"),
        (changed(data_type=TensorProto.FLOAT16), "FLOAT16.*float32"),
        (changed(data_type=TensorProto.BFLOAT16), "BFLOAT16"),
        (changed(data_type=TensorProto.COMPLEX64), "COMPLEX64"),
        (changed(data_type=TensorProto.FLOAT8E4M3FN), "FLOAT8E4M3FN"),
        (changed(data_type=0), "UNDEFINED"),
        (changed(data_type=7777), "unknown kind 7777"),
        (helper.make_tensor("w", TensorProto.STRING, [1], [b"text"]), "STRING"),
        (TensorProto(name="w", data_type=1, dims=[1], raw_data=b"1234", segment={"begin": 0, "end": 1}), "a part of"),
    ],
)
def test_tensors_whose_numbers_are_not_those_of_their_shape(tmp_path, tensor, words):
    refused(make_net(tensors=[tensor]), tmp_path, f"the tensor 'w' .*{words}")
    constant = node("Constant", "", "w", "weights", value=tensor)
    product = node("MatMul", "x w", "y")
    refused(make_net([constant, product], []), tmp_path, rf"the tensor of the node 'weights' \(Constant\) .*{words}")


INFO = helper.make_tensor_value_info
RELU = node("Relu", "x", "y", "relu")


@pytest.mark.parametrize(
    ("net", "words"),
    [
        (make_net([node("Relu", "h", "y", "b"), node("Relu", "x", "h")]), "'h' of node: name: b OpType: Relu is not"),
        (make_net([node("Relu", "y", "y", "b")]), "input 'y' of node: name: b OpType"),
        (make_net([node("Relu", "none", "y")]), "input 'none' of node"),
        (make_net([RELU, RELU]), "'y' has been used as output names multiple"),
        (make_net([node("Relu", "x", "w", "b")]), "'w' has been used as output"),
        (make_net(tensors=[numpy_helper.from_array(WEIGHTS, "w")] * 2), "'w' has been used as graph input"),
        (make_net(inputs=[INFO("x", 1, ["N"])] * 2), "'x' has been used as graph input"),
        (make_net([node("Relu", "x", "z")]), "output 'y' is not an output of any node"),
        (make_net(inputs=[INFO("x", TensorProto.DOUBLE, ["N"])]), "'x' has numbers of DOUBLE"),
        (make_net(outputs=[INFO("y", TensorProto.FLOAT16, ["N"])]), "'y' has numbers of FLOAT16"),
        (make_net(inputs=[INFO("x", 1, ["N", 10**9, 10**9])]), "'x' has the shape .* no record has"),
        (make_net(inputs=[INFO("x", 1, ["N", -3])]), "'x' has the shape .* no record has"),
        (make_net(inputs=[helper.make_tensor_sequence_value_info("x", 1, None)]), "'x' is a sequence_type"),
        (make_net([node("Nope", "x", "y", "b")]), "No Op registered for Nope .*Name: b OpType: Nope"),
        (make_net([node("Relu", "x w", "y", "b")]), r"Node\(b\) .*input size 2"),
        (make_net([node("Relu", "x", "y", "b", speed=3)]), "attribute: speed for operator Relu .*Name: b"),
        (make_net([node("Upsample", "x w", "y", "b")]), "Upsample is deprecated .*Name: b"),
    ],
)
def test_nets_that_are_not_as_onnx_says(tmp_path, net, words):
    refused(net, tmp_path, words)


def test_long_nets_and_long_names_are_taken(tmp_path):
    values = ["x", *(f"v{i}" for i in range(2000)), "y"]
    net = make_net([node("Relu", a, b, "n" * 500) for a, b in zip(values, values[1:], strict=False)])
    assert len(read_onnx(saved(net, tmp_path))[0].graph.node) == 2001


def test_the_domain_ai_onnx_is_the_default_one(tmp_path):
    net = make_net([node("Relu", "x", "y", domain="ai.onnx")], opset=21)
    net.opset_import[0].domain = "ai.onnx"
    assert read_onnx(saved(net, tmp_path))[0].graph.node[0].domain == ""


def whole_net():
    """Return a net with a function, a tensor of each form, and attributes of several kinds."""
    constant = node("Constant", "", "w", value=numpy_helper.from_array(WEIGHTS))
    nodes = [constant, node("Gemm", "x w b", "h", "dense", alpha=0.5, transB=0), node("f", "h", "y", domain="own")]
    tensors = [helper.make_tensor("b", TensorProto.FLOAT, [4], [1.0] * 4), external()]
    tensors[1].name = "apart"
    return make_net(nodes, tensors, functions=[function("f")], domains=["own"])


def read_damaged(folder, content):
    """Read a net of these bytes: it is refused, or all its tensors can be read. Nothing is written."""
    (path := folder / "net.onnx").write_bytes(content)
    before = sorted(os.listdir(folder))
    with contextlib.suppress(UserError):
        for tensor in read_onnx(path)[0].graph.initializer:
            assert tensor_array(tensor, folder).nbytes < 10**4
    assert sorted(os.listdir(folder)) == before


@pytest.mark.parametrize("value", [0, 255])
def test_any_byte_that_is_wrong_is_refused_or_gives_another_net(tmp_path, value):
    (tmp_path / "w.bin").write_bytes(WEIGHTS.tobytes())
    content = whole_net().SerializeToString()
    for place in range(len(content)):
        read_damaged(tmp_path, content[:place] + bytes([value]) + content[place + 1 :])


def test_a_net_in_memory_is_checked_as_a_file_is(tmp_path):
    assert checked_net(make_net(), tmp_path)
    with pytest.raises(UserError, match="FLOAT16"):
        checked_net(make_net(inputs=[INFO("x", TensorProto.FLOAT16, ["N"])]), tmp_path)

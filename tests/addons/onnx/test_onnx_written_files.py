"""ONNX files that are written: their bytes, in one file or two, which take the place of earlier ones together."""

import os

import numpy as np
import pytest

from dsinga.addons.onnx.files import read_onnx, tensor_array
from dsinga.addons.onnx.written_files import write_onnx
from dsinga.base.errors import UserError
from tests.support.onnx_nets import graph_of, node
from tests.support.refusals import refused

onnx = pytest.importorskip("onnx")
from onnx import numpy_helper  # noqa: E402

LARGE = np.arange(3000, dtype=np.float32).reshape(3, 1000)
PARAMS = {"w": LARGE, "b": np.ones(3, np.float32), "s": np.float32([[2.0]])}


def make_net(operator="Mul"):
    """Return a net of ONNX without its params: y = s (x w' + b)."""
    return graph_of([node("Gemm", "x w b", "h"), node(operator, "h s")], outputs={"y": ["N", 1000]})


@pytest.mark.parametrize("apart", [False, True])
def test_what_is_written_is_read(tmp_path, apart):
    params = {**PARAMS, "t": np.asfortranarray(PARAMS["w"])}
    path = tmp_path / "new" / "net.onnx"
    write_onnx(make_net(), params, path, 10 if apart else 10**9)
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
    write_onnx(make_net(), PARAMS, path, external=10)
    before = {name: (tmp_path / name).read_bytes() for name in os.listdir(tmp_path)}
    refused(lambda: write_onnx(make_net("Nope"), PARAMS, path), "onnx would not be as", "ONNX says")
    assert {name: (tmp_path / name).read_bytes() for name in os.listdir(tmp_path)} == before
    write_onnx(make_net(), PARAMS, path)
    assert os.listdir(tmp_path) == ["net.onnx"]


def test_a_folder_in_the_place_of_a_file_is_left_alone(tmp_path):
    (tmp_path / "net.onnx").mkdir()
    (tmp_path / "other.onnx.data").mkdir()
    for name, words in (("net.onnx", "net.onnx is a folder; name a file"), ("other.onnx", "data is a folder")):
        with pytest.raises(UserError, match=words):
            write_onnx(make_net(), PARAMS, tmp_path / name)
    refused(lambda: write_onnx(make_net(), PARAMS, ""), "is a folder")
    assert sorted(os.listdir(tmp_path)) == ["net.onnx", "other.onnx.data"]


def test_the_name_of_another_format_is_refused(tmp_path):
    refused(lambda: write_onnx(make_net(), PARAMS, tmp_path / "net.pb"), "net.pb", "name it net.onnx")

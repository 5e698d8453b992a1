"""Damaged files of whole nets: nn.load_onnx refuses them in a sentence, or they are other nets."""

import contextlib
import functools

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

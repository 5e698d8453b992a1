"""The whole nets that the wheel of onnx has, from AlexNet to ShuffleNet: models give what lies beside them."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dsinga import nn

onnx = pytest.importorskip("onnx")

pytestmark = pytest.mark.slow
FOLDER = Path(onnx.__file__).parent / "backend" / "test" / "data" / "light"
NETS = [
    "bvlc_alexnet", "densenet121", "inception_v1", "inception_v2", "resnet50", "shufflenet", "squeezenet", "vgg19",
    "zfnet512",
]  # fmt: skip


def with_random_weights(model: Any) -> Any:
    """Replace the weights of a net, which are all one number, by such as keep features as large; leave out Softmax."""
    random = np.random.default_rng(0)
    shapes = {tensor.name: tuple(onnx.numpy_helper.to_array(tensor)) for tensor in model.graph.initializer}
    aliases = {node.input[0]: node.output[0] for node in model.graph.node if node.op_type == "Unsqueeze"}
    roles = {name: (node.op_type, i) for node in model.graph.node for i, name in enumerate(node.input)}
    nodes = [onnx.NodeProto.FromString(node.SerializeToString()) for node in model.graph.node]
    for node in [node for node in nodes if node.op_type == "ConstantOfShape"]:
        shape, name = shapes[node.input[0]], node.output[0]
        operator, position = roles[aliases.get(name, name)]
        if operator == "BatchNormalization" and position == 4:
            array = random.uniform(0.5, 2, shape)
        elif len(shape) > 1:
            array = random.normal(0, math.sqrt(2 / math.prod(shape[1:])), shape)
        else:
            array = random.uniform(-0.1, 0.1, shape) + (operator in ("BatchNormalization", "Mul") and position == 1)
        model.graph.initializer.append(onnx.numpy_helper.from_array(array.astype(np.float32), name))
        nodes.remove(node)
    used = {name for node in nodes for name in node.input}
    kept = [tensor for tensor in model.graph.initializer if tensor.name in used]
    inputs = [info for info in model.graph.input if info.name not in shapes]
    if nodes[-1].op_type == "Softmax":
        model.graph.output[0].name = nodes.pop().input[0]
    graph = onnx.helper.make_graph(nodes, "net", inputs, model.graph.output, kept)
    return onnx.helper.make_model(graph, opset_imports=model.opset_import, ir_version=4)


@pytest.mark.parametrize("net", NETS)
def test_a_whole_net_with_random_weights_gives_what_onnx_runtime_does_for_several_records(net: str, tmp_path: Path):
    runtime = pytest.importorskip("onnxruntime")
    path = tmp_path / "net.onnx"
    onnx.save(with_random_weights(onnx.load(FOLDER / f"light_{net}.onnx")), path)
    session = runtime.InferenceSession(path, providers=["CPUExecutionProvider"])
    x = np.random.default_rng(1).normal(size=(3, 3, 7, 7)).astype(np.float32)
    x = x.repeat(32, axis=2).repeat(32, axis=3)  # so that the means over images differ
    name = session.get_inputs()[0].name
    expected = np.concatenate([session.run(None, {name: record[None]})[0] for record in x])
    scale = np.abs(expected).max()
    assert np.abs(expected[0] - expected[1]).max() > 1e-3 * scale
    actual = nn.load_onnx(path).predict(x).reshape(expected.shape)
    np.testing.assert_allclose(actual, expected, rtol=1e-4, atol=1e-5 * scale)

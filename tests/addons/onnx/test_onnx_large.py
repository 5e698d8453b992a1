"""A net of 3 GB goes out to ONNX and in again within 1.5 times its bytes of memory."""

import os

import pytest

from tests.support.programs import python

pytest.importorskip("onnx")
pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

SIZE, LAYERS = 8192, 12
PROGRAM = """
import resource, sys
import numpy as np, onnx, onnx.checker, onnx.inliner
from dsinga import nn
import dsinga.addons.onnx.export_net, dsinga.addons.onnx.load

what, size, layers, path = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
if what == "out":
    y = x = nn.Input(size, name="x")
    for number in range(layers):
        y = nn.Dense(size, use_bias=False, name=f"layer{number}")(y)
    model = nn.Model(x, y)
    model.params = {f"layer{number}_weight": np.full((size, size), number, np.float32) for number in range(layers)}
    model.export(path)
else:
    params = nn.load_onnx(path).params
    assert len(params) == layers
    for number, (name, array) in enumerate(params.items()):
        assert (array[:: size // 8, -1] == number).all(), name
print(1024 * (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / (layers * size * size * 4))
"""


def test_its_memory(tmp_path):
    path = tmp_path / "net.onnx"
    for what in ("out", "in"):
        ended = python("-c", PROGRAM, what, SIZE, LAYERS, path, timeout=300)
        assert float(ended.stdout) < 1.5, what
    assert os.path.getsize(data := tmp_path / "net.onnx.data") >= 3 * 10**9
    assert os.path.getsize(path) < 10**5
    data.unlink()  # pytest would keep it for days

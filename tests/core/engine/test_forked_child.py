"""A forked child of a process whose kernels have used several cores computes, too, with one core."""

import pytest

from dsinga.ops import get_ops
from tests.support.programs import python

SCRIPT = """
import os, signal
import numpy as np
from dsinga import nn
from dsinga.ops import get_ops
from dsinga.ops.onednn.thread import thread_state

x, y = np.random.default_rng(0).standard_normal((64, 300)).astype("f"), np.arange(64) % 2
model = nn.Sequential([nn.Input((300,)), nn.layers.Dense(256, activation="relu"), nn.layers.Dense(2)])
model.compile("sgd", nn.losses.SparseCategoricalCrossentropy(from_logits=True))
model.fit(x, y, verbose=0)
expected = model.predict(x)
ops, large = get_ops(), np.ones(1 << 20, np.float32)
ops.set_threads(2)
ops.relu(large)

faces = [lambda: ops.relu(large), lambda: np.testing.assert_allclose(model.predict(x), expected, rtol=1e-4),
         lambda: model.evaluate(x, y, verbose=0), lambda: ops.set_threads(4), lambda: model.fit(x, y, verbose=0)]
for face in faces:
    child = os.fork()
    if not child:
        signal.alarm(30)
        face()
        os._exit(thread_state.team.size - 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0, face
ops.relu(large)
assert thread_state.team.size == 2
"""


@pytest.mark.skipif(get_ops().name != "onednn", reason="oneDNN is not installed")
def test_a_forked_child_computes_with_one_core():
    python("-W", "ignore", "-c", SCRIPT)

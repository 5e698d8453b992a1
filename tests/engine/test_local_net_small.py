"""Small nets by the quickest kernels: the numbers of the usual ones up to rounding."""

from __future__ import annotations

import numpy as np

import dsinga
from dsinga.engine.local_net import LocalNet

JOB = """
neuralnet {
  layer { name: "data" type: kRecordInput store_conf { batchsize: 8 } }
  layer { name: "fc" type: kInnerProduct srclayers: "data" innerproduct_conf { num_output: 16 }
          param { init { type: kUniformSqrtFanIn } } }
  layer { name: "act" type: kActivation srclayers: "fc" activation_conf { type: TANH } }
  layer { name: "ip" type: kInnerProduct srclayers: "act" innerproduct_conf { num_output: 3 }
          param { init { type: kUniformSqrtFanIn } } }
  layer { name: "loss" type: kSoftmaxLoss srclayers: "ip" srclayers: "data" }
}
"""


def test_a_small_net_has_the_gradients_of_the_usual_kernels() -> None:
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(8, 5)).astype(np.float32), rng.integers(0, 3, 8)
    job = dsinga.loads(JOB)
    usual, small = LocalNet(job, x, y), LocalNet(job, x, y, is_small=True)
    params = usual.initial_params()
    expected, found = (net.backward(params, x, y) for net in (usual, small))
    for name, gradient in expected.gradients.items():
        np.testing.assert_allclose(found.gradients[name], gradient, rtol=1e-5, atol=1e-7)


def test_overflow_is_not_warned_of() -> None:
    x = np.full((8, 5), 1e30, np.float32)
    net = LocalNet(dsinga.loads(JOB), x, np.zeros(8, int), is_small=True)
    params = {name: value * np.float32(1e30) for name, value in net.initial_params().items()}
    assert not np.isfinite(net.forward(params, x, layers=["fc"]).outputs["fc"]).all()

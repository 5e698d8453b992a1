"""Small params that an updater changes as one array: the same bits as each alone, and state that can be set."""

from __future__ import annotations

import copy
import pickle

import numpy as np
import pytest

import dsinga
from dsinga.nn import LocalNet
from dsinga.training import create_updater
from dsinga.training.local_updater import LocalUpdater

JOB = """
updater {{ {updater} learning_rate {{ type: kFixed base_lr: 0.01 }} {settings} }}
neuralnet {{
  layer {{ name: "data" type: kRecordInput store_conf {{ batchsize: 4 }} }}
  layer {{ name: "fc" type: kInnerProduct srclayers: "data" innerproduct_conf {{ num_output: 7 }}
          param {{ name: "w1" init {{ type: kUniform }} }} param {{ name: "b1" lr_scale: 2 }} }}
  layer {{ name: "ip" type: kInnerProduct srclayers: "fc" innerproduct_conf {{ num_output: 3 }}
          param {{ name: "w2" init {{ type: kUniform }} }} param {{ name: "b2" }} }}
  layer {{ name: "loss" type: kSoftmaxLoss srclayers: "ip" srclayers: "data" }}
}}
"""
X, Y = np.random.default_rng(0).normal(size=(4, 5)).astype(np.float32), np.array([0, 1, 2, 0])
UPDATERS = {
    "Adam": ("type: kAdam", "adam_conf { bias_correction: true } weight_decay: 0.1"),
    "momentum": ("type: kSGD momentum: 0.9", 'param_settings { match: "w2" base_lr: 0.1 }'),
    "clipped": ("type: kAdaGrad", "clip_low: -0.01 clip_high: 0.01"),
}


def net_of(kind: str) -> LocalNet:
    updater, settings = UPDATERS[kind]
    return LocalNet(dsinga.loads(JOB.format(updater=updater, settings=settings)), X, Y)


def train(net: LocalNet, updater: LocalUpdater, params: dict[str, np.ndarray], steps: int) -> None:
    for _ in range(steps):
        updater.step(params, net.backward(params, X, Y).gradients)


@pytest.mark.parametrize("kind", UPDATERS)
def test_joined_params_get_the_bits_that_each_would_get_alone(kind: str) -> None:
    net = net_of(kind)
    params, updater = net.initial_params(), net.updater()
    kept = params["w1"]
    alone, formulas, state = copy.deepcopy(params), create_updater(net.job.updater), {}
    for step in range(3):
        gradients = net.backward(params, X, Y).gradients
        updater.step(params, gradients)
        for name, param in net.net.params.items():
            formula = formulas.of(name)
            slots = state.setdefault(name, formula.create_state(param.size))
            gradient = gradients[name].reshape(-1)
            formula.update(step, alone[name].reshape(-1), gradient, slots, param.lr_scale, param.wd_scale)
            np.testing.assert_array_equal(params[name], alone[name])
            for slot, array in slots.items():
                np.testing.assert_array_equal(updater.state[name][slot], array)
    assert params["w1"] is kept  # changed in place


@pytest.mark.parametrize("way", ["state is set", "pickled"])
def test_an_updater_goes_on_from_a_state(way: str) -> None:
    net = net_of("Adam")
    unbroken, updater = net.initial_params(), net.updater()
    train(net, updater, unbroken, 2)
    params = copy.deepcopy(unbroken)
    if way == "pickled":
        resumed = pickle.loads(pickle.dumps(updater))
    else:
        resumed = net.updater()
        train(net, resumed, net.initial_params(), 1)  # its own state is replaced
        resumed.state, resumed.steps = copy.deepcopy(updater.state), updater.steps
    train(net, updater, unbroken, 2)
    train(net, resumed, params, 2)
    for name, value in unbroken.items():
        np.testing.assert_array_equal(params[name], value)


def test_params_that_get_gradients_by_turns_keep_their_state() -> None:
    net = net_of("momentum")
    params, updater = net.initial_params(), net.updater()
    gradients = {name: np.ones_like(value) for name, value in params.items()}
    for names in (("w1", "b1", "b2"), ("w1",), ("w1", "b2")):
        updater.step(params, {name: gradients[name] for name in names})
    history = -0.01 * (1 + 0.9 + 0.81)
    np.testing.assert_allclose(updater.state["w1"]["history"], history, rtol=1e-5)
    np.testing.assert_allclose(updater.state["b2"]["history"], -0.01 * (1 + 0.9), rtol=1e-5)


def test_all_gradients_are_scaled_to_a_norm_together() -> None:
    net = net_of("momentum")
    for max_norm, factor in ((0.0, 1.0), (100.0, 1.0), (0.5, 0.5 / np.sqrt(66))):  # the net has 66 numbers
        params, updater = net.initial_params(), net.updater()
        before = copy.deepcopy(params)
        updater.step(params, {name: np.ones_like(value) for name, value in params.items()}, max_norm)
        np.testing.assert_allclose(before["w1"] - params["w1"], 0.01 * factor, rtol=1e-4)
        np.testing.assert_allclose(before["b1"] - params["b1"], 0.02 * factor, rtol=1e-4)  # has an lr_scale of 2


@pytest.mark.parametrize("max_norm", [0.0, 0.3])
def test_the_norm_of_all_gradients_is_clipped_as_by_pytorch(max_norm: float) -> None:
    """torch divides by the norm + 1e-6."""
    torch = pytest.importorskip("torch")
    net = net_of("momentum")
    net.job.updater.clip_global_norm = 0.5
    params, updater = net.initial_params(), net.updater()
    tensors = {name: torch.nn.Parameter(torch.tensor(value)) for name, value in params.items()}
    rates = {"w1": 0.01, "b1": 0.02, "w2": 0.1, "b2": 0.01}
    peer = torch.optim.SGD([{"params": [tensors[name]], "lr": lr} for name, lr in rates.items()], momentum=0.9)
    rng = np.random.default_rng(1)
    for step in range(4):
        gradients = {
            name: rng.normal(0, 0.01 if step == 2 else 1, value.shape).astype(np.float32)
            for name, value in params.items()
        }
        for name, tensor in tensors.items():
            tensor.grad = torch.tensor(gradients[name])
        torch.nn.utils.clip_grad_norm_(tensors.values(), max_norm or 0.5)
        peer.step()
        updater.step(params, gradients, max_norm)
        for name, tensor in tensors.items():
            np.testing.assert_allclose(params[name], tensor.detach().numpy(), rtol=1e-5, atol=1e-6)
